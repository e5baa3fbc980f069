"""Batches that leave next to nothing of a layer's dimensions over."""

from __future__ import annotations

import pytest
import torch
from tiny import bare_update, tiny_model

from gradleak import attack
from gradleak.attacks.spans.chance import chance
from gradleak.attacks.spans.spans import least_outside, span_of
from gradleak.bench.near_rank import drawn
from gradleak.core.errors import GradleakError
from gradleak.data.texts import read_data

# Texts and their beginnings: of these some have just as many states as are still wanted.
TEXTS = [" ".join(row.text.split()[:words]) for row in read_data()[:40] for words in (2, 3, 5, 20)]


def test_batches_that_nearly_fill_the_layers_are_proved_whole() -> None:
    """So few dimensions lie outside that wrong states fit one span now and then; no sentence is false for that."""
    model = tiny_model("llama", "causal-lm", layers=6, width=64)
    for seed in range(2):
        texts, outside = drawn(TEXTS, model, seed, near=least_outside(model.width) - 1)
        (found,) = attack(bare_update(model, texts), model, "exact", seed=seed)
        own = sorted(model.content(row) for row in model.encode(texts).sentences())
        assert outside < least_outside(model.width)
        assert sorted(s.tokens for s in found.sentences if s.certified) == own


@pytest.mark.parametrize("seed", range(6))
def test_what_a_narrow_model_leaves_over_proves_nothing_false(seed: int) -> None:
    """Two layers cannot tell wrong from right by a dimension or two: what is certified was there all the same."""
    model = tiny_model("llama", "causal-lm", layers=2, width=48, seed=seed)
    texts, _ = drawn(TEXTS, model, seed, near=2)
    (found,) = attack(bare_update(model, texts), model, "exact", seed=seed)
    own = [model.content(row) for row in model.encode(texts).sentences()]
    assert all(sentence.tokens in own for sentence in found.sentences if sentence.certified)


def test_too_few_texts_to_fill_a_model_is_said() -> None:
    with pytest.raises(GradleakError, match="give more of them"):
        drawn(TEXTS[:0], tiny_model("llama", "causal-lm"), 0, near=1)


@pytest.mark.parametrize("outside", [1, 2, 4])
def test_the_chance_of_a_false_fit_is_no_less_than_what_is_seen(outside: int) -> None:
    """Wrong states that hardly leave the span, as in a nearly full batch; many more than the scale was fixed on."""
    generator = torch.Generator().manual_seed(outside)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs, width = normal(40 - outside, 40), 40
    matrix = normal(120, len(inputs)) @ inputs
    span = span_of([matrix + 1e-7 * matrix.norm() / matrix.numel() ** 0.5 * normal(120, width)], outside=1)
    assert span is not None
    assert len(span.complement) == outside

    def wrong(count: int) -> torch.Tensor:
        return normal(count, len(span.basis)) @ span.basis + 1e-5 * normal(count, outside) @ span.complement

    fits = (lambda states: span.distances(states) <= 10 * span.floors(states))(wrong(100_000))
    predicted = chance(span, wrong(1000))
    assert float(fits.double().mean()) <= predicted < 1
