"""The settings of the LoRA adapters on a model, read off the model itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradleak.models.adapter import Part
from gradleak.models.lora_text import LoraSettings


def adapter_settings(module: Any, parts: Sequence[Mapping[str, Part]]) -> str | None:
    """Rank, alpha and the parts with adapters, in the form that `lora` has; None if the model has none."""
    configs = getattr(module, "peft_config", None)
    roles = [role for layer in parts for role, part in layer.items() if hasattr(part.module, "lora_A")]
    if not configs or not roles:
        return None
    config = next(iter(configs.values()))
    settings = LoraSettings.model_construct(
        r=config.r,
        alpha=config.lora_alpha,
        targets=tuple(dict.fromkeys(roles)),
        dropout=config.lora_dropout,
        rslora=bool(config.use_rslora),
        dora=bool(config.use_dora),
    )
    return str(settings)
