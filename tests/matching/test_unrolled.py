"""Differentiating through a client's local steps: exact where the averaged gradient is not."""

import pytest
import torch
from tiny import ALL_KNOWN, TEXTS, tiny_model

from gradleak import Client, GradleakError, attack
from gradleak.matching.distances import Distance
from gradleak.matching.dummies import Dummies
from gradleak.matching.naive import NaiveEngine
from gradleak.matching.unrolled import UnrolledEngine
from gradleak.updates.gradient import as_gradient

RULE = "fedavg:epochs=2,batch=2,lr=0.1"


def setup(*, embedding_moves: bool = True):
    model = tiny_model("bert", "classification")
    model.module.double()
    model.adapter.token_embedding.weight.requires_grad_(embedding_moves)
    update = Client(model, client=RULE).update(TEXTS, [0, 1, 1])
    batch = model.encode(TEXTS)
    target = torch.zeros(1, dtype=torch.long)
    truth = Dummies(model.embed(batch.ids)[None], batch.mask[None], torch.tensor([[0, 1, 1]]), target)
    return model, update, truth


def test_the_truth_explains_long_local_training_exactly():
    model, update, truth = setup(embedding_moves=False)
    exact, average = distances(model, update, truth)
    assert exact < 1e-12
    assert average > 1e-2


def test_a_moving_token_embedding_which_dummies_do_not_read_costs_little():
    exact, average = distances(*setup())
    assert average > 10 * exact


@pytest.mark.parametrize("rule", ["adamw", "fedavg:momentum=0.9", "fedavg:clip=1", "fedavg:accumulate=2"])
def test_only_plain_steps_are_taken_again(rule):
    model = tiny_model("bert", "classification")
    update = Client(model, ALL_KNOWN, client=rule).update(TEXTS, [0, 1, 1])
    with pytest.raises(GradleakError, match="repeats plain steps of SGD; this client trained by") as error:
        attack(update, model, "dlg", fedavg="unrolled", steps=1)
    assert "\n" not in str(error.value)


def test_steps_that_come_round_again_are_taken_again():
    model = tiny_model("bert", "classification")
    model.module.double()
    model.adapter.token_embedding.weight.requires_grad_(False)
    update = Client(model, client="fedavg:steps=3,batch=2,lr=0.1").update(TEXTS, [0, 1, 1])
    batch = model.encode(TEXTS)
    target = torch.zeros(1, dtype=torch.long)
    truth = Dummies(model.embed(batch.ids)[None], batch.mask[None], torch.tensor([[0, 1, 1]]), target)
    assert distances(model, update, truth)[0] < 1e-12


def distances(model, update, truth):
    """How far the truth is from the update, by its steps taken again and by its averaged gradient."""
    exact = UnrolledEngine(model, [update.tensors], Distance("cosine"), [update.manifest.client])
    average = NaiveEngine(model, [as_gradient(update, model).tensors], Distance("cosine"))
    return float(exact.values(truth)), float(average.values(truth))


def test_one_step_is_the_plain_gradient():
    model, _, truth = setup()
    update = Client(model, client="fedavg:epochs=1,batch=3,lr=0.1").update(TEXTS, [0, 1, 1])
    other = truth.with_embeds(truth.embeds + 0.1)
    unrolled = UnrolledEngine(model, [update.tensors], Distance("cosine"), [update.manifest.client])
    plain = NaiveEngine(model, [as_gradient(update, model).tensors], Distance("cosine"))
    for found, expected in zip(unrolled.values_and_gradients(other), plain.values_and_gradients(other), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_the_derivative_is_that_of_the_value():
    model, update, truth = setup()
    engine = UnrolledEngine(model, [update.tensors], Distance("cosine"), [update.manifest.client])
    start = truth.with_embeds(truth.embeds + 0.1)
    _, gradient = engine.values_and_gradients(start)
    direction = torch.randn(start.embeds.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    direction = direction * start.mask[..., None]
    up, down = (engine.values(start.with_embeds(start.embeds + h * direction)) for h in (1e-5, -1e-5))
    torch.testing.assert_close((up - down) / 2e-5, (gradient * direction).sum()[None], rtol=1e-4, atol=1e-8)
