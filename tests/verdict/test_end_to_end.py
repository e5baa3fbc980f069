"""Real audits of a tiny model, each with one thing in the attack's way: the verdict names it, with its numbers."""

import pytest
from tiny import TEXTS

from gradleak import audit
from gradleak.audits.text import CONTROL_DRAWS
from gradleak.core.budget import Budget
from gradleak.data.texts import Row
from gradleak.verdict.judge import judge

ROWS = [Row(text, number % 2) for number, text in enumerate(TEXTS)]


def obstacles(model, **settings):
    results = audit(model, data=ROWS, attack="exact", **{"batch_size": 1, "trials": 1, **settings})
    (attack,) = judge([results]).scenarios[0].attacks
    return results, {obstacle.kind: obstacle for obstacle in attack.obstacles}


def test_rank_limit(tiny_bert):
    """Width 16, and more tokens than that."""
    results, found = obstacles(tiny_bert, batch_size=3)
    assert results.trials[0].tokens >= 16
    assert found["rank-limit"].numbers == {"tokens": results.trials[0].tokens, "limit": 16}


def test_noise(tiny_bert):
    results, found = obstacles(tiny_bert, defenses=["noise:sigma=0.5"])
    (trial,) = results.trials
    assert found["noise"].numbers["ratio"] == pytest.approx(trial.noise / trial.signal)
    assert found["noise"].numbers["ratio"] > 1
    assert "above the signal" in found["noise"].text


def test_tensors_missing(tiny_bert):
    _, found = obstacles(tiny_bert, observe="head")
    assert set(found) == {"tensors-missing"}
    assert "was not seen" in found["tensors-missing"].text


def test_local_steps(tiny_bert):
    results, found = obstacles(tiny_bert, client="fedavg:epochs=20,batch=1,lr=0.5")
    assert found["local-steps"].numbers["steps"] == 20
    assert found["local-steps"].numbers["distance"] == pytest.approx(results.trials[0].truth_distance)


def test_budget(tiny_bert):
    results, found = obstacles(tiny_bert, budget=Budget(0))
    assert results.status == "budget-exhausted"
    assert "budget" in found
    assert judge([results]).level == "unfinished"


def test_names_and_numbers_are_counted_in_the_control_too(tiny_bert):
    """Ten draws a trial, each asked for all names and numbers of the batch."""
    results, _ = obstacles(tiny_bert, trials=3)
    (attack,) = judge([results]).scenarios[0].attacks
    found, guessed = attack.leaked.pieces, attack.leaked.guessed
    assert found.names.total + found.numbers.total > 0
    assert (guessed.names.total, guessed.numbers.total) == (
        CONTROL_DRAWS * found.names.total,
        CONTROL_DRAWS * found.numbers.total,
    )
    assert guessed.names_by == found.names_by
