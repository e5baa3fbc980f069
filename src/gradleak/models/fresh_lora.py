"""Fresh LoRA adapters on a loaded model: the same settings give the same factors on every machine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.registry import suggest
from gradleak.models.adapter import Part
from gradleak.models.huggingface import checked, reading
from gradleak.models.lora import peft_library
from gradleak.models.lora_text import ALL, LoraSettings
from gradleak.models.quiet import quiet
from gradleak.models.stored import trained_in_fp32
from gradleak.models.text import TextModel


def with_fresh_lora(model: TextModel, settings: LoraSettings) -> TextModel:
    """The model with adapters on the modules of some roles; nothing else of it is trained. Its module is changed."""
    peft = peft_library()
    if any("lora_" in name for name, _ in model.module.named_parameters()):
        raise GradleakError(f"{model.name} has adapters already; fresh ones go on a model without")
    parts = _targets(model, settings)
    with quiet(), reading(model.name):
        config = peft.LoraConfig(
            r=settings.r,
            lora_alpha=settings.strength,
            target_modules=[part.name for part in parts],
            fan_in_fan_out=any(part.transposed for part in parts),
            lora_dropout=settings.dropout,
            use_rslora=settings.rslora,
            use_dora=settings.dora,
        )
        module: Any = trained_in_fp32(peft.get_peft_model(model.module, config).get_base_model())
        _draw(module, settings)
        origin = model.origin.with_lora(settings)
        return checked(TextModel(module, model.tokenizer, model.task, model.name, origin))


def _targets(model: TextModel, settings: LoraSettings) -> list[Part]:
    """The modules of the roles; of those that live in one matrix, one."""
    roles = list(model.adapter.family.roles)
    for role in settings.targets:
        if role not in (*roles, ALL):
            raise GradleakError(f"lora: {model.name} has no part {role!r}; {suggest(role, [*roles, ALL])}")
    chosen = roles if ALL in settings.targets else settings.targets
    found = [parts[role] for parts in model.adapter.parts for role in chosen if role in parts]
    return list({part.name: part for part in found}.values())


def _draw(module: Any, settings: LoraSettings) -> None:
    """Draw the factors ourselves, one after the other by name, since versions of the library draw differently.

    A is uniform within one over the root of its inputs, as the library has it; DoRA's lengths stay as they are.
    """
    generator = torch.Generator().manual_seed(settings.seed)

    def uniform(shape: torch.Size) -> Tensor:
        return (2 * torch.rand(shape, generator=generator) - 1) / shape[1] ** 0.5

    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            if ".lora_A." in name:
                parameter.copy_(uniform(parameter.shape))
            elif ".lora_B." in name:
                parameter.copy_(settings.b * torch.randn(parameter.shape, generator=generator))
