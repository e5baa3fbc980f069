"""An update as the gradient it stands for."""

import dataclasses

import pytest
import torch
from tiny import TEXTS

from gradleak import Client, GradleakError
from gradleak.updates.gradient import as_gradient


def test_a_step_size_that_cannot_be_is_said(tiny_bert):
    update = Client(tiny_bert, client="fedavg:lr=0.1").update(TEXTS, [0, 1, 1])
    client = update.manifest.client.model_copy(update={"lr": 1e-300})
    forged = dataclasses.replace(update, manifest=update.manifest.model_copy(update={"client": client}))
    with pytest.raises(GradleakError, match=r"size 1e-300.* infinite"):
        as_gradient(forged)


def test_small_steps_average_to_the_gradient(tiny_bert):
    """Weights that moved by tiny steps stand for the gradient of the whole batch."""
    gradient = Client(tiny_bert).update(TEXTS[:2], [0, 1])
    tiny_bert.module.double()
    try:
        moved = Client(tiny_bert, client="fedavg:epochs=2,batch=1,lr=1e-6").update(TEXTS[:2], [0, 1])
    finally:
        tiny_bert.module.float()
    estimate = as_gradient(moved).tensors
    for name, tensor in gradient.tensors.items():
        torch.testing.assert_close(estimate[name].float(), tensor, rtol=1e-3, atol=1e-5)
