"""Clients as projects configure them, by name: the rule that they train by, and the adapters that they train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """The settings of a client rule, of its adapters (empty: all weights are trained), and where they are from."""

    client: Mapping[str, Any]
    lora: Mapping[str, Any]
    source: str


# What Hugging Face's Trainer does where a project says nothing: no decay, gradients clipped to 1, dropout on.
_TRAINER: dict[str, Any] = {"name": "adamw", "wd": 0.0, "decay": "matrices", "clip": 1.0, "mode": "train"}

# Read from the projects' own configuration files, March to May 2026. All of them keep adapters in fp32, also where
# the model below is in bf16 or in 4 bits; that model is in fp32 here.
PRESETS: dict[str, Preset] = {
    "flowertune": Preset(
        {**_TRAINER, "lr": 5e-5, "steps": 10, "batch": 16, "loss": "completion"},
        {"r": 32, "alpha": 64, "targets": "query+value", "dropout": 0.075},
        "Flower's FlowerTune apps: Mistral-7B, LoRA on queries and values, ten steps of sixteen instructions",
    ),
    "flowertune-edge": Preset(
        {**_TRAINER, "lr": 2e-4, "steps": 3, "batch": 8},
        {"r": 8, "alpha": 32, "targets": "query+key+value+attention_out"},
        "EdgeFlowerTune: Gemma-3 and Qwen of up to a billion weights on phones, three steps of eight",
    ),
    "nvflare-hf": Preset(
        {**_TRAINER, "lr": 2e-5, "epochs": 1, "batch": 1, "accumulate": 4},
        {"r": 8, "alpha": 16, "targets": "all", "dropout": 0.05},
        "NVFlare hello-huggingface: Qwen2.5-0.5B, LoRA on all linear layers, an epoch of four single texts a step",
    ),
    "nvflare-llm": Preset(
        {**_TRAINER, "lr": 5e-4, "epochs": 1, "batch": 4, "accumulate": 10, "clip": 0.3},
        {"r": 64, "alpha": 16, "targets": "query+value", "dropout": 0.1},
        "NVFlare llm_hf: Llama-3.2-1B or GPT-Neo, LoRA on queries and values, an epoch of ten times four a step",
    ),
    "nvflare-ner": Preset(
        {"name": "adamw", "lr": 1e-5, "epochs": 1, "batch": 16, "mode": "train"},
        {},
        "NVFlare's named-entity example: BERT-base, all weights, an epoch of batches of sixteen",
    ),
    "flower-quickstart": Preset(
        {"name": "adamw", "lr": 5e-5, "epochs": 1, "batch": 32, "mode": "train"},
        {},
        "Flower's Hugging Face quickstart: a small BERT, all weights, an epoch of batches of thirty-two",
    ),
    "fedllm": Preset(
        {**_TRAINER, "lr": 5e-5, "steps": 10, "batch": 16, "loss": "completion"},
        {"r": 32, "alpha": 64, "targets": "query+value", "dropout": 0.05},
        "OpenFedLLM: Llama-2-7B, LoRA on queries and values, ten steps of sixteen instructions",
    ),
}
