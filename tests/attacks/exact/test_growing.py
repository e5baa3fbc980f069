"""Sentences of a decoder, grown token by token."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny import TEXTS, bare_update, wide_model

from gradleak import attack
from gradleak.attacks.exact import growing
from gradleak.attacks.exact.attack import recover
from gradleak.core.budget import Budget
from gradleak.updates.gradient import undo


def quiet(text: str) -> None:
    pass


def test_growing_that_was_cut_short_proves_nothing() -> None:
    model = wide_model("gpt2", "classification")
    (row,) = model.encode(TEXTS[:1]).sentences()
    outcome = recover(undo(bare_update(model, TEXTS[:1]), model), model, 0, Budget(steps=3), quiet)
    assert outcome.sentences
    assert all(len(s.tokens) < len(row) and not s.whole for s in outcome.sentences)


def test_padding_on_the_left_moves_the_start() -> None:
    """With learned positions a sentence padded on the left begins further on; it is found there."""
    model = wide_model("gpt2", "causal-lm")
    row = model.encode(TEXTS[:1]).sentences()[0]
    ids = torch.tensor([[0, 0, *row]])
    mask = torch.tensor([[0, 0, *[1] * len(row)]])
    places = torch.arange(ids.shape[1])[None]
    logits = model.module(input_ids=ids, attention_mask=mask, position_ids=places).logits[0, 2:-1]
    loss = torch.nn.functional.cross_entropy(logits, ids[0, 3:])
    parameters = model.parameters()
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    tensors = {name: g for name, g in zip(parameters, gradients, strict=True) if g is not None}
    update = dataclasses.replace(bare_update(model, TEXTS[:1]), tensors=tensors)
    (found,) = attack(update, model, "exact")
    assert [sentence.tokens for sentence in found.sentences] == [model.content(row)]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_places_looked_at_together_or_one_after_another_tell_the_same(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = wide_model(family, "causal-lm")
    update, found = bare_update(model, TEXTS[:2]), []
    for few in (0, 10_000):
        monkeypatch.setattr(growing, "FEW", few)
        outcome = recover(undo(update, model), model, 0, Budget(), quiet)
        found.append([(sentence.tokens, sentence.certificate.holds) for sentence in outcome.sentences])
    assert found[0] == found[1]
    assert sorted(tokens for tokens, holds in found[0] if holds) == sorted(model.encode(TEXTS[:2]).sentences())
