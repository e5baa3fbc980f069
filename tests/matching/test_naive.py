"""The oracle itself, against definitions: distances by hand, derivatives by finite differences."""

import pytest
import torch
from tiny import TEXTS, tiny_model

from gradleak import Client, GradleakError
from gradleak.matching.distances import Distance
from gradleak.matching.dummies import Dummies
from gradleak.matching.engine import FactorEngine
from gradleak.matching.naive import NaiveEngine
from gradleak.matching.parameters import matched_parameters


def true_dummies(model, texts, labels):
    """Dummies that are the truth, for tests of the engine."""
    batch = model.encode(texts)
    y = batch.ids[None] if labels is None else torch.tensor([labels])
    return Dummies(model.embed(batch.ids)[None], batch.mask[None], y, torch.zeros(1, dtype=torch.long))


@pytest.mark.parametrize("name", ["cosine", "l2", "l2+l1", "sign"])
@pytest.mark.parametrize("count", [1, 3])
def test_the_truth_is_at_distance_zero(tiny, name, count):
    labels = [0, 1, 1][:count] if tiny.task == "classification" else None
    update = Client(tiny).update(TEXTS[:count], labels)
    engine = NaiveEngine(tiny, [update.tensors], Distance(name))
    dummies = true_dummies(tiny, TEXTS[:count], labels)
    assert float(engine.values(dummies)) == pytest.approx(0, abs=1e-4)
    noise = torch.randn(dummies.embeds.shape, generator=torch.Generator().manual_seed(0))
    other = dummies.with_embeds(dummies.embeds + noise)
    assert float(engine.values(other)) > 1e-3


@pytest.mark.parametrize("name", ["cosine", "l2", "l2+l1", "sign"])
def test_derivative_by_finite_differences(name):
    model = tiny_model("bert", "classification", layers=1, width=8)
    model.module.double()
    update = Client(model).update(TEXTS[:2], [0, 1])
    engine = NaiveEngine(model, [update.tensors], Distance(name))
    dummies = true_dummies(model, TEXTS[:2], [0, 1])
    torch.manual_seed(0)
    dummies = dummies.with_embeds(dummies.embeds + 0.1 * torch.randn_like(dummies.embeds))
    _, gradient = engine.values_and_gradients(dummies)
    direction = torch.randn_like(dummies.embeds)
    step = 1e-6
    ahead = engine.values(dummies.with_embeds(dummies.embeds + step * direction))
    behind = engine.values(dummies.with_embeds(dummies.embeds - step * direction))
    expected = float((ahead - behind) / (2 * step))
    assert float((gradient * direction).sum()) == pytest.approx(expected, rel=1e-4)


def test_rows_are_independent_and_padding_is_ignored(tiny_bert):
    updates = [Client(tiny_bert).update([text], [1]) for text in TEXTS[:2]]
    engine = NaiveEngine(tiny_bert, [u.tensors for u in updates], Distance("cosine"))
    batch = tiny_bert.encode(TEXTS[:2])
    together = Dummies(
        tiny_bert.embed(batch.ids)[:, None], batch.mask[:, None], torch.tensor([[1], [1]]), torch.tensor([0, 1])
    )
    noisy = together.embeds + 5.0 * (~together.mask[..., None])
    values, gradients = engine.values_and_gradients(together.with_embeds(noisy))
    torch.testing.assert_close(values, torch.zeros(2), atol=1e-4, rtol=0)
    assert gradients[~together.mask].abs().max() == 0
    crossed = Dummies(together.embeds, together.mask, together.labels, torch.tensor([1, 0]))
    assert (engine.values(crossed) > 0.01).all()


def test_rounding_and_the_token_embedding_are_left_out(tiny_bert):
    update = Client(tiny_bert).update(TEXTS[:1], [1])
    names = matched_parameters(tiny_bert, [update.tensors])
    embedding = tiny_bert.adapter.parameter_of(tiny_bert.adapter.token_embedding)
    keys = [f"{parts['key'].name}.bias" for parts in tiny_bert.adapter.parts]
    assert embedding not in names
    assert not set(keys) & set(names)
    assert len(names) == len(update.tensors) - 1 - len(keys)
    with pytest.raises(GradleakError, match="nothing to match beside the token embedding"):
        matched_parameters(tiny_bert, [{embedding: update.tensors[embedding]}])
    with pytest.raises(GradleakError, match="every tensor of the update is zero"):
        matched_parameters(tiny_bert, [{name: torch.zeros_like(t) for name, t in update.tensors.items()}])


@pytest.mark.parametrize("kind", ["naive", "factor"])
@pytest.mark.parametrize("scale", [1e-28, 1e-22, 1e20, 1e30])
def test_an_update_of_any_size_can_be_compared_by_direction(tiny_bert, scale, kind):
    """Squares of such numbers leave single precision; the update was said to be zero."""
    update = Client(tiny_bert).update(TEXTS[:1], [1])
    targets = [update.tensors, {name: scale * tensor for name, tensor in update.tensors.items()}]
    dummies = true_dummies(tiny_bert, TEXTS[1:2], [1])
    engines = {
        "naive": lambda target: NaiveEngine(tiny_bert, [target], Distance("cosine")),
        "factor": lambda target: FactorEngine(tiny_bert, [target], Distance("cosine"), tokens=12),
    }
    usual, extreme = (float(engines[kind](target).values(dummies)) for target in targets)
    assert 0.01 < usual == pytest.approx(extreme, rel=1e-3)


def test_an_update_too_large_to_compare_sizes_is_said(tiny_bert):
    update = Client(tiny_bert).update(TEXTS[:1], [1])
    huge = {name: 1e25 * tensor for name, tensor in update.tensors.items()}
    with pytest.raises(GradleakError, match=r"values up to .*e\+2., too large for l2"):
        NaiveEngine(tiny_bert, [huge], Distance("l2"))
