"""An update as the gradient it stands for."""

import dataclasses

import pytest
import torch
from tiny import TEXTS

from gradleak import Client, GradleakError, attack
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.gradient import as_gradient
from gradleak.updates.manifest import Known
from gradleak.updates.update import Update


def test_an_impossible_step_size_is_refused(tiny_bert):
    update = Client(tiny_bert, client="fedavg:lr=0.1").update(TEXTS, [0, 1, 1])
    client = update.manifest.client.model_copy(update={"lr": 1e-300})
    forged = dataclasses.replace(update, manifest=update.manifest.model_copy(update={"client": client}))
    with pytest.raises(GradleakError, match=r"size 1e-300.* infinite"):
        as_gradient(forged, tiny_bert)


def test_small_steps_average_to_the_gradient(tiny_bert):
    """Weights that moved by tiny steps stand for the gradient of the whole batch."""
    gradient = Client(tiny_bert).update(TEXTS[:2], [0, 1])
    tiny_bert.module.double()
    try:
        moved = Client(tiny_bert, client="fedavg:epochs=2,batch=1,lr=1e-6").update(TEXTS[:2], [0, 1])
    finally:
        tiny_bert.module.float()
    estimate = as_gradient(moved, tiny_bert).tensors
    for name, tensor in gradient.tensors.items():
        torch.testing.assert_close(estimate[name].float(), tensor, rtol=1e-3, atol=1e-5)


def test_an_aggregate_stands_for_the_mean_gradient(tiny_bert):
    """Clients with as many sentences each and a small step: their mean, divided by step size and steps."""
    rule = ClientRule.parse("fedavg:epochs=1,batch=1,lr=1e-3")
    single = [Client(tiny_bert, client=rule).update([text], [1]) for text in TEXTS]
    mean = {name: sum(each.tensors[name] for each in single) / 3 for name in single[0].tensors}
    manifest = single[0].manifest.model_copy(update={"clients": 3, "known": Known(batch_size=3)})
    whole = Client(tiny_bert).update(TEXTS, [1, 1, 1])
    found = as_gradient(Update(mean, manifest), tiny_bert).tensors
    for name in ("classifier.weight", "classifier.bias"):
        assert torch.allclose(found[name], whole.tensors[name], atol=1e-3)
    with pytest.raises(GradleakError, match="mean of several"):
        attack(Update(mean, manifest), tiny_bert, "dlg", fedavg="unrolled", steps=1)
