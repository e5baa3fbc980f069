"""What is left of an update without the recovered sentences."""

from __future__ import annotations

import dataclasses

import torch
from tiny import TEXTS, wide_model

from gradleak import Client
from gradleak.attacks.exact.attack import recover
from gradleak.attacks.exact.contribution import sentence_gradient
from gradleak.attacks.exact.remaining import remaining
from gradleak.core.budget import Budget
from gradleak.updates.gradient import undo


def quiet(text: str) -> None:
    pass


def test_what_remains_of_another_multiple_of_the_mean_is_not_known() -> None:
    model = wide_model("bert", "classification")
    update = Client(model).update(TEXTS, [0, 1, 0])
    update = dataclasses.replace(update, tensors={name: 0.1 * t for name, t in update.tensors.items()})
    outcome = recover(undo(update, model), model, 0, Budget(), quiet)
    outcome.sentences.pop()
    assert remaining(update, outcome, model) is None


def test_what_remains_is_the_gradient_of_the_others() -> None:
    model = wide_model("bert", "classification")
    update = Client(model).update(TEXTS, [0, 1, 0])
    outcome = recover(undo(update, model), model, 0, Budget(), quiet)
    outcome.sentences = [s for s in outcome.sentences if s.tokens != model.encode(TEXTS[1:2]).sentences()[0]]
    rest = remaining(update, outcome, model)
    assert rest is not None
    assert rest.known.batch_size == 1
    own = sentence_gradient(model, model.encode(TEXTS[1:2]).sentences()[0], 1, list(rest.tensors))
    for name, tensor in own.items():
        assert torch.allclose(rest.tensors[name].double(), tensor, atol=1e-5), name
