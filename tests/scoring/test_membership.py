"""Candidates against the truth: the numbers add up, checked by plain loops."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak.scoring.interval import auc_interval, share_interval, student
from gradleak.scoring.membership import KnownCandidate, TrialCandidates, summarise


def listed(inside, outside, seed=0, **more) -> TrialCandidates:
    """One trial, given by scores."""
    both = [(score, True) for score in inside] + [(score, False) for score in outside]
    candidates = [
        KnownCandidate(text=f"{member} {i}", score=score, false_alarm_rate=0.5, likelihood_ratio=1.0, member=member)
        for i, (score, member) in enumerate(both)
    ]
    return TrialCandidates(seed=seed, status="completed", candidates=candidates, **more)


def drawn(trials: int, members: int, others: int, shift: float, seed: int = 0) -> list[TrialCandidates]:
    chance = random.Random(seed)
    return [
        listed([chance.gauss(shift, 1) for _ in range(members)], [chance.gauss(0, 1) for _ in range(others)], number)
        for number in range(trials)
    ]


scores = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=8)


@given(st.lists(st.tuples(scores, scores), min_size=1, max_size=4))
def test_the_area_is_that_of_a_plain_loop(trials):
    confirmed = summarise([listed(inside, outside) for inside, outside in trials], 8)
    ours = [score for inside, _ in trials for score in inside]
    theirs = [score for _, outside in trials for score in outside]
    won = sum((a > b) + 0.5 * (a == b) for a in ours for b in theirs)
    assert confirmed.auc is not None
    assert confirmed.auc.mean == pytest.approx(won / len(ours) / len(theirs))
    assert 0 <= confirmed.auc.low <= confirmed.auc.mean + 1e-9
    assert confirmed.auc.mean - 1e-9 <= confirmed.auc.high <= 1
    assert (confirmed.members, confirmed.others) == (len(ours), len(theirs))
    assert confirmed.at(0.01) is None  # so few others show no such rate


@pytest.mark.parametrize(("trials", "others"), [(1, 99), (4, 100), (10, 100), (3, 400)])
def test_recall_is_counted(trials, others):
    every = drawn(trials, 6, others, 2.5)
    confirmed = summarise(every, others)
    theirs = sorted((score for trial in every for score in trial.scores(member=False)), reverse=True)
    ours = [score for trial in every for score in trial.scores(member=True)]
    for recall in confirmed.recall:
        room = int(recall.level * (len(theirs) + 1) + 1e-9) - 1
        if room < 0:
            assert recall.share is None
            continue
        threshold = theirs[room]  # so many others pass, and no more
        found = sum(score > threshold for score in ours)
        assert recall.share is not None
        assert recall.share.mean == pytest.approx(100 * found / len(ours))
        exact = share_interval(found, len(ours))
        assert recall.share.low <= exact.low
        assert recall.share.high >= exact.high
        assert recall.false_alarms == share_interval(room, len(theirs))


def test_one_update_unlike_another_widens_the_interval():
    outside = [0.0] * 100
    apart = summarise([listed([5.0] * 8, outside), listed([-5.0] * 8, outside), listed([5.0] * 8, outside)], 100)
    mixed = summarise([listed([5.0] * 5 + [-5.0] * 3, outside) for _ in range(3)], 100)
    over = student([100.0, 0.0, 100.0], 0, 100)
    assert apart.at(0.01).low == over.low
    assert mixed.at(0.01).low == share_interval(15, 24).low


def test_the_area_of_chance_is_covered():
    """Without any leak the interval holds one half in about 95 of 100 runs."""
    held = 0
    for seed in range(300):
        confirmed = summarise(drawn(1, 20, 60, 0.0, seed), 60)
        held += confirmed.auc.low <= 0.5 <= confirmed.auc.high
    assert held >= 0.92 * 300
    assert auc_interval(1.0, 10, 100).low < 0.95  # an area of 1 out of ten is not certain


def test_what_is_missing_is_said():
    without = TrialCandidates(seed=1, status="completed", problem="it has no matrix", candidates=[])
    cut = listed([1.0], [0.0] * 40, public="wikitext").model_copy(update={"status": "budget-exhausted"})
    confirmed = summarise([cut, None, without], 100)
    assert (confirmed.trials, confirmed.without) == (1, 2)
    text = " ".join(confirmed.notes)
    for part in ("40 other sentences", "WikiText-2", "In 1 trial the time ended", "of 1 trial there was no time"):
        assert part in text
    assert "No candidates were looked at in 1 trial: it has no matrix." in text
    assert summarise([None], 5).auc is None
