"""What came back to tokens that are more than dimensions: the likeliest, how sure, and exact once enough is known."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_model
from torch import Tensor

from gradleak import Client
from gradleak.attacks.crowded.attended import Attended
from gradleak.attacks.crowded.gathering import Gathering
from gradleak.attacks.crowded.likeliest import Likeliest
from gradleak.core.budget import Budget
from gradleak.data.texts import read_data

TOKENS, DIMENSIONS, SHAPE, KNOWN = 40, 32, (2, 1, 16), 30


def made_up(seed: int) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    """Inputs, what came back to each token, and the one direction in which it came back to most."""
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randn(TOKENS, DIMENSIONS, generator=draws, dtype=torch.float64)
    rows = torch.randn(TOKENS, 2, 1, 16, generator=draws, dtype=torch.float64)
    directions = torch.nn.functional.normalize(
        torch.randn(KNOWN, 2, 16, 1, generator=draws, dtype=torch.float64), dim=2
    )
    rows[:KNOWN] = (rows[:KNOWN] @ directions) @ directions.mT
    return inputs, rows.flatten(1), dict(enumerate(directions))


@pytest.mark.parametrize("seed", range(10))
def test_few_directions_leave_one_answer(seed: int) -> None:
    """Nearly always: of seeds up to 1017 the last lets right directions go, so that seeds are not drawn."""
    inputs, rows, directions = made_up(seed)
    found = Likeliest(inputs, inputs.T @ rows, torch.ones(TOKENS), SHAPE)
    wrong = (found.rows - rows).square().sum() / rows.square().sum()
    assert wrong > 0.01  # eight tokens too many
    # What it says of its own mistakes is right to a few times.
    assert 0.2 < wrong / (found.off * found.rows.square().sum(dim=1)).sum() * rows.square().sum() < 5
    assert torch.allclose(inputs.T @ found.rows, inputs.T @ rows, atol=1e-6)
    found.narrow(directions)
    assert set(found.known) == set(directions)
    assert float((found.rows - rows).norm() / rows.norm()) < 1e-3
    assert torch.allclose(found.of(inputs.T @ rows), found.rows, atol=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_a_direction_that_is_wrong_is_noticed(seed: int) -> None:
    """Not always at the token itself: what does not fit anywhere is let go."""
    inputs, rows, directions = made_up(seed)
    other = torch.randn(2, 16, 1, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    found = Likeliest(inputs, inputs.T @ rows, torch.ones(TOKENS), SHAPE)
    found.narrow({**directions, 3: torch.nn.functional.normalize(other, dim=1)})
    assert len(found.known) < len(directions)


@pytest.mark.parametrize("seed", range(5))
def test_a_token_that_was_emptied_and_was_there_is_taken_back(seed: int) -> None:
    """It stayed empty; all others were off by what it left, and said far too little of their mistakes."""
    inputs, rows, directions = made_up(seed)
    found = Likeliest(inputs, inputs.T @ rows, torch.ones(TOKENS), SHAPE)
    found.narrow(directions)
    found._sizes[TOKENS - 1] = 1e-30
    found.narrow({})
    assert bool(found.present[TOKENS - 1])
    assert float((found.rows - rows).norm() / rows.norm()) < 1e-3


def test_a_token_that_is_missing_is_missed() -> None:
    """Nearly always: in one of ten draws too many directions are let go, and another answer fits."""
    first = 0
    for seed in range(20):
        inputs, rows, directions = made_up(seed)
        found = Likeliest(inputs[:-1], inputs.T @ rows, torch.ones(TOKENS - 1), SHAPE)
        found.narrow(directions)
        strangers = torch.randn(
            50, DIMENSIONS, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64
        )
        more = found.missed(torch.cat([strangers, inputs[-1:]]))
        first += int(more.argmax()) == 50
    assert first >= 15


def test_beginnings_are_gathered_and_none_is_wrong() -> None:
    """Twelve sentences of more different tokens than the model has dimensions."""
    model = tiny_model("llama", "causal-lm", layers=3, width=128)
    texts = [row.text for row in read_data()][:12]
    rows = [tuple(row) for row in model.encode(texts).sentences()]
    bag = sorted({token for row in rows for token in row})
    assert len(bag) > model.width
    update = Client(model).update(texts)
    gathering = Gathering(model, update, bag, 64, model.prefix[-1:], Budget())
    before = float(gathering.queries.off.median())
    gathering.run({})
    found = [tuple(gathering.attended.tokens[number] for number in own) for own in gathering.known.values()]
    assert len(found) >= 3
    assert all(any(row[: len(own)] == own for row in rows) for own in found)
    assert float(gathering.queries.off.median()) < before


def test_turning_back_undoes_turning() -> None:
    model = tiny_model("llama", "causal-lm", width=128)
    texts = [row.text for row in read_data()][:2]
    tokens = sorted({token for row in model.encode(texts).sentences() for token in row})
    attended = Attended(model, Client(model).update(texts).tensors, tokens, 16)
    there = attended.turn(attended.keys, 7)
    assert not torch.allclose(there, attended.keys)
    assert torch.allclose(attended.turn(there, 7, back=True), attended.keys)
