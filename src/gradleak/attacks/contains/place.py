"""Where gradients of candidates are taken: halfway between the weights before and after several local steps."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from gradleak.models.text import TextModel
from gradleak.updates.update import Update


def at_the_middle(model: TextModel, update: Update) -> TextModel:
    """A copy of the model halfway along the update; weights that no step moved are the model's own.

    Early steps took their gradients near the beginning, late ones near the end. And LoRA's A factors, which have no
    gradient while B is zero, have one there.
    """
    names = dict(model.module.named_parameters())
    kept: dict[int, Tensor] = {id(p): p for name, p in names.items() if name not in update.tensors}
    kept |= {id(buffer): buffer for buffer in model.module.buffers()}
    module = copy.deepcopy(model.module, kept)
    halfway = TextModel(module, model.tokenizer, model.task, model.name, model.origin)
    weights = dict(module.named_parameters())
    with torch.no_grad():
        for name, moved in update.tensors.items():
            weights[name] -= moved.to(weights[name]) / 2
    return halfway
