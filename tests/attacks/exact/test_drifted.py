"""Sentences read back after several local steps, over which what layers see drifts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TEXTS, tiny_model

from gradleak import Client, TextModel, attack
from gradleak.attacks.exact.drifted import ALL, Evidence, at_mean_weights, drifts, trimmed
from gradleak.attacks.exact.growing import Prefix
from gradleak.attacks.exact.limits import coherence, rounding_edge
from gradleak.attacks.spans.certify import Rounding
from gradleak.attacks.spans.chance import reach
from gradleak.attacks.spans.spans import span_of
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.gradient import undo

SEVERAL = "fedavg:epochs=4,batch=2,lr=1e-3,precision=fp64,wire=fp64"


@pytest.fixture(scope="module")
def model() -> TextModel:
    return tiny_model("llama", "causal-lm", layers=4, width=128)


def test_sentences_come_back_though_inputs_drifted(model: TextModel) -> None:
    update = Client(model, client=SEVERAL).update(TEXTS)
    (found,) = attack(update, model, "exact")
    own = sorted(model.content(row) for row in model.encode(TEXTS).sentences())
    assert sorted(sentence.tokens for sentence in found.sentences) == own
    assert not any(sentence.certified for sentence in found.sentences)  # limits are no proof
    assert all(0 < sentence.confidence < 1 for sentence in found.sentences)


def test_one_step_in_fp32_hides_nothing(model: TextModel) -> None:
    """Rounding leaves the spectrum of the layers no gap."""
    update = Client(model, client="fedavg:epochs=1,batch=3,lr=1e-4").update(TEXTS)
    (found,) = attack(update, model, "exact")
    own = sorted(model.content(row) for row in model.encode(TEXTS).sentences())
    assert sorted(sentence.tokens for sentence in found.sentences) == own
    assert not any(sentence.certified for sentence in found.sentences)


def test_no_more_sentences_are_given_than_there_are(model: TextModel) -> None:
    """In fp32, where rounding leaves room for echoes: wrong tokens whose states are close to right ones."""
    update = Client(model, client="fedavg:epochs=4,batch=2,lr=1e-3").update(TEXTS)
    (found,) = attack(update, model, "exact")
    own = sorted(model.content(row) for row in model.encode(TEXTS).sentences())
    assert sorted(sentence.tokens for sentence in found.sentences) == own


def test_an_echo_is_trimmed(model: TextModel) -> None:
    """A sentence up to a token that stands once too often, which explains nothing that the sentence does not."""
    gradient = undo(Client(model, client=SEVERAL).update(TEXTS), model).gradient
    rounding = Rounding(lambda carrier: rounding_edge(gradient, model, carrier), coherence(gradient))
    halfway = at_mean_weights(model, gradient)
    evidence = Evidence(halfway, gradient, halfway.adapter.parts[0]["ffn_in"], rounding)
    own = [Prefix(0, tuple(row[:-1])) for row in model.encode(TEXTS).sentences()]
    echo = Prefix(0, (*own[0].tokens[:5], own[0].tokens[4]))
    assert trimmed(evidence, [echo, *own], len(own)) == own
    assert trimmed(evidence, [echo, *own], None) == [echo, *own]
    assert evidence.left(own) < ALL < evidence.left(own[1:])


@pytest.mark.parametrize(
    ("rule", "expected"), [("epochs=1,batch=1", 1.0), ("epochs=9,batch=1", 3.0), ("steps=4,batch=3", 2.0)]
)
def test_steps_that_come_round_again_are_rounded_alike(model: TextModel, rule: str, expected: float) -> None:
    gradient = undo(Client(model, client=f"fedavg:{rule},lr=1e-4").update(TEXTS[:3]), model).gradient
    assert coherence(gradient) == pytest.approx(expected)


def test_mean_weights_are_those_that_gradients_were_computed_at(model: TextModel) -> None:
    """Against a plain loop: with gradients that stay the same, the mean is halfway less half a step."""
    rule = ClientRule.parse("fedavg:epochs=3,batch=3,lr=0.001,precision=fp64,wire=fp64")
    update = Client(model, client=rule).update(TEXTS)
    name = "model.layers.0.mlp.up_proj.weight"
    step, before = update.tensors[name] / 3, model.parameters()[name].detach()
    mean = torch.stack([before - number * step for number in range(3)]).mean(dim=0)
    halfway = at_mean_weights(model, undo(update, model).gradient)
    torch.testing.assert_close(halfway.parameters()[name].detach(), mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(model.parameters()[name].detach(), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("fedsgd", False), ("fedavg:epochs=1,batch=3", True), (SEVERAL, True), ("fedavg:epochs=4,mode=train", False)],
)
def test_only_plain_steps_are_followed(model: TextModel, rule: str, expected: bool) -> None:
    assert drifts(undo(Client(model, client=rule).update(TEXTS), model), model) is expected


@settings(max_examples=5, deadline=None)  # each takes a second
@given(st.data())
def test_nothing_that_is_certified_after_local_steps_is_false(model: TextModel, data: st.DataObject) -> None:
    """Whatever the batch and the step size: rounding, drift or neither hides the spans."""
    word = st.sampled_from(sorted({word for text in TEXTS for word in text.split()}))
    texts = data.draw(st.lists(st.lists(word, min_size=2, max_size=6).map(" ".join), min_size=1, max_size=4))
    lr = data.draw(st.sampled_from(["1e-4", "1e-3", "1e-2", "0.1"]))
    precision = data.draw(st.sampled_from(["fp32", "fp64"]))
    rule = f"fedavg:epochs=2,batch=2,lr={lr},precision={precision},wire={precision}"
    (found,) = attack(Client(model, client=rule).update(texts), model, "exact")
    own = [model.content(row) for row in model.encode(texts).sentences()]
    assert all(sentence.tokens in own for sentence in found.sentences if sentence.certified)


def test_tokens_are_not_blamed_for_what_rounding_hides(model: TextModel) -> None:
    """Thirty tokens on 128 dimensions: steps so small that rounding covers them."""
    update = Client(model, client="fedavg:epochs=4,batch=2,lr=1e-7").update(TEXTS)
    (found,) = attack(update, model, "exact")
    (note,) = [note for note in found.notes if "singular values" in note]
    assert "tokens or more" not in note
    assert "stand above rounding" in note


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 30), st.integers(0, 1000))
def test_so_few_wrong_states_are_within_reach(rank: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rank, 40, generator=generator, dtype=torch.float64)
    span = span_of([torch.randn(90, rank, generator=generator, dtype=torch.float64) @ inputs])
    assert span is not None
    wrong, others = (torch.randn(count, 40, generator=generator, dtype=torch.float64) for count in (1000, 20_000))
    limit = reach(span, wrong, 1e-3)
    assert limit > 0
    assert float((span.distances(others) < limit).double().mean()) < 1e-3
