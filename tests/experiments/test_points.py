"""Joining leak and cost, and the Pareto front."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import HIDDEN, LOWERED, NONE, point

from gradleak.experiments.frontier.pareto import dominates, front
from gradleak.experiments.frontier.points import cost, mark_front
from gradleak.experiments.utility import SettingUtility, summary

NUMBERS = st.integers(0, 8).map(float)  # few values, so that ties happen
PLACES = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12)


@given(PLACES)
def test_front_is_exactly_what_nothing_beats(points):
    chosen = front(points)
    for number, place in enumerate(points):
        beaten = [i for i in chosen if dominates(points[i], place)]
        assert (number in chosen) == (not beaten)
    assert bool(chosen) == bool(points)


@given(PLACES, st.randoms())
def test_front_does_not_depend_on_order(points, random):
    shuffled = random.sample(points, len(points))
    assert sorted(points[i] for i in front(points)) == sorted(shuffled[i] for i in front(shuffled))


@given(PLACES)
def test_equal_leak_or_a_lone_point(points):
    assert front(points[:1]) == [0][: len(points)]
    assert not any(dominates(place, place) for place in points)


def test_unfinished_points_neither_join_nor_push_out():
    points = [NONE, point("a", LOWERED), point("b", HIDDEN, utility=(99, 98, 100), status="unfinished")]
    assert [p.on_front for p in mark_front(points, "accuracy")] == [False, True, False]
    worse = point("c", HIDDEN, utility=(60, 59, 61))
    assert [p.on_front for p in mark_front([*points, worse], "accuracy")] == [False, True, False, True]


def test_perplexity_turns_the_front_round():
    points = [point("none", (90, 85, 95), utility=(20, 19, 21)), point("a", LOWERED, utility=(30, 29, 31))]
    assert [p.on_front for p in mark_front(points, "perplexity")] == [True, True]
    assert [p.on_front for p in mark_front(points, "accuracy")] == [False, True]


def setting(name, metric, *values):
    by_seed = {seed: {metric: value} for seed, value in enumerate(values)}
    return SettingUtility(
        setting=name, defenses=[], status="completed", by_seed=by_seed, metrics=summary(list(by_seed.values()))
    )


def test_cost_is_taken_seed_by_seed():
    plain, other = setting("none", "accuracy", 90.0, 70.0), setting("a", "accuracy", 88.0, 68.0)
    lost = cost(other, plain, "accuracy")
    assert lost.mean == 2
    assert -3 < lost.low < lost.high < 7  # the accuracies are 20 points apart, the differences are alike
    assert cost(plain, plain, "accuracy").high == 0
    assert cost(setting("a", "accuracy"), plain, "accuracy") is None
    ratio = cost(setting("a", "perplexity", 22.0, 33.0), setting("none", "perplexity", 20.0, 30.0), "perplexity")
    assert ratio.mean == pytest.approx(10)


def test_few_seeds_that_differ_leave_the_cost_open():
    """A bootstrap of two would call this a clear 1 to 3 points."""
    interval = cost(setting("a", "accuracy", 89.0, 67.0), setting("none", "accuracy", 90.0, 70.0), "accuracy")
    assert interval.mean == 2
    assert interval.low < -5
    assert interval.high > 9


def test_two_seeds_that_agree_to_a_row_leave_the_cost_open():
    """Twice half a point was "clearly within" a tolerance of two."""
    interval = cost(setting("a", "accuracy", 80.5, 81.0), setting("none", "accuracy", 81.0, 81.5), "accuracy")
    assert interval.mean == 0.5
    assert interval.high > 2


def test_one_seed_says_nothing_of_the_spread():
    one = cost(setting("a", "accuracy", 88.0), setting("none", "accuracy", 90.0), "accuracy")
    assert (one.mean, one.low, one.high) == (2, -100, 100)
