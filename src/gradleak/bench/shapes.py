"""Models of real shapes with drawn weights: folders that `load_model` takes like any other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradleak.core.files import filling
from gradleak.core.tensor_writer import TensorWriter
from gradleak.models.load import load_text_model

SPREAD = 0.02


@dataclass(frozen=True)
class Shape:
    """A decoder as its config.json describes it."""

    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    tied: bool = True

    def config(self) -> Any:
        """The library's configuration."""
        from transformers import CONFIG_MAPPING

        return CONFIG_MAPPING[self.family](
            num_hidden_layers=self.layers,
            hidden_size=self.width,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            intermediate_size=self.ffn,
            vocab_size=self.vocabulary,
            tie_word_embeddings=self.tied,
            max_position_embeddings=2048,
            dtype="bfloat16",
        )


SHAPES = {
    "llama-0.3b": Shape("llama", 12, 1024, 16, 16, 4096, 49152),
    "qwen2-0.5b": Shape("qwen2", 24, 896, 14, 2, 4864, 151936),
    "qwen2-1.5b": Shape("qwen2", 28, 1536, 12, 2, 8960, 151936),
    "llama-3-8b": Shape("llama", 32, 4096, 32, 8, 14336, 128256, tied=False),
}


def drawn(name: str, folder: Path, tokenizer: str = "smollm2") -> Path:
    """The folder of a shape with weights drawn in bf16, made if it is not there; the tokenizer is another model's."""
    from transformers import AutoModelForCausalLM

    place = folder / name
    if (place / "config.json").exists():
        return place
    config = SHAPES[name].config()
    with torch.device("meta"):
        outline = AutoModelForCausalLM.from_config(config)
    sizes = {each: tuple(parameter.shape) for each, parameter in outline.named_parameters()}  # a tied matrix once
    config.architectures = [type(outline).__name__]
    generator = torch.Generator().manual_seed(0)
    with filling(place) as scratch:
        load_text_model(tokenizer).tokenizer.save_pretrained(scratch)
        with (scratch / "model.safetensors").open("wb") as stream:
            writer = TensorWriter(stream, sizes)
            for each, shape in sizes.items():
                flat = torch.ones(shape) if "norm" in each else SPREAD * torch.randn(shape, generator=generator)
                writer.add(each, flat.bfloat16())
            writer.finish()
        (scratch / "config.json").write_text(json.dumps(config.to_dict(), indent=2))
    return place
