"""Budgets of time and steps."""

import pytest

from gradleak import GradleakError
from gradleak.core.budget import Budget, parse_duration


@pytest.mark.parametrize("text", ["", "5 parsecs", "-3s", "0", "s"])
def test_bad_durations(text):
    with pytest.raises(GradleakError, match="duration"):
        parse_duration(text)


def test_budget_says_why_it_ended():
    budget = Budget()
    assert budget.reason == "completed"
    budget.interrupt()
    assert (budget.over, budget.reason) == (True, "interrupted")
    assert Budget(seconds=0).reason == "budget-exhausted"


def test_a_part_of_a_budget_takes_steps_from_the_whole():
    whole = Budget(steps=10)
    part = whole.part(0.25)
    assert [part.tick() for _ in range(4)] == [False, False, False, True]
    assert (part.limit, part.reason) == ("steps", "budget-exhausted")
    assert whole.limit is None
    rest = whole.part(1.0)
    assert [rest.tick() for _ in range(8)] == [False] * 7 + [True]
    assert whole.tick()
    assert whole.limit == "steps"


def test_exactly_enough_steps_are_enough():
    budget = Budget(steps=3)
    assert not any(budget.tick() for _ in range(3))
    assert budget.reason == "completed"
