"""Norms of whole gradients."""

from __future__ import annotations

import math

import pytest
import torch
from tiny import TEXTS, tiny_model

from gradleak.matching.gradient_norms import GradientNorms


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_norms_are_those_of_whole_gradients(family: str) -> None:
    model = tiny_model(family, "causal-lm", layers=3, width=32)
    sentences = model.encode(TEXTS).sentences()
    losses, norms = GradientNorms(model)(sentences)
    for number, sentence in enumerate(sentences):
        ids = torch.tensor([sentence])
        loss = model.loss(ids, ids=ids, mask=torch.ones_like(ids, dtype=torch.bool))
        gradients = torch.autograd.grad(loss, list(model.parameters().values()))
        wanted = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        assert float(losses[number]) == pytest.approx(float(loss.detach()), rel=1e-5)
        assert float(norms[number]) == pytest.approx(wanted, rel=1e-4)
