"""The level follows the rule that docs/verdict.md writes down, and no text calls anything safe."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invented import attack_verdict

from gradleak.verdict.model import LEVELS
from gradleak.verdict.rule import ENOUGH_TRIALS, level, strongest
from gradleak.verdict.sentences import CAVEAT, headline

DOCS = Path(__file__).parents[2] / "docs" / "verdict.md"


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        (attack_verdict((40, 0, 100), trials=1, whole=100), "critical"),  # one trial is proof enough of a leak
        (attack_verdict((40, 30, 50), whole=10), "critical"),
        (attack_verdict((40, 30, 50), whole=10, guessed=1), "high"),  # guessing reads such sentences too
        (attack_verdict((40, 30, 50), whole=10, guessed=10), "high"),  # by its distance alone
        (attack_verdict((12, 8.1, 15), whole=10, guessed=10), "moderate"),
        (attack_verdict((40, 30, 50), whole=5), "high"),
        (attack_verdict((31, 20, 50)), "high"),
        (attack_verdict((30.9, 20, 50)), "moderate"),
        (attack_verdict((12, 8.1, 15), whole=5), "high"),
        (attack_verdict((12, 8.1, 15)), "moderate"),
        (attack_verdict((12, 8, 15)), "not shown"),  # touching intervals are not clearly apart
        (attack_verdict((12, 8, 15), trials=ENOUGH_TRIALS - 1), "unclear"),
        (attack_verdict((12, 8, 16)), "unclear"),  # a leak of ten points fits in
        (attack_verdict((12, 8, 15), unfinished=1), "unfinished"),
        (attack_verdict((40, 30, 50), unfinished=20), "high"),  # what was read is read, however the run ended
        (attack_verdict((0, 0, 0), tokens=(60, 50)), "moderate"),
        (attack_verdict((0, 0, 0), tokens=(90, 90)), "high"),
        (attack_verdict((0, 0, 0), tokens=(90, 90), unfinished=20), "high"),  # tokens that were read are read
        (attack_verdict((40, 30, 50), whole=10, tokens=(0, 0)), "critical"),
        (attack_verdict((0, 0, 0), tokens=(60, 49)), "not shown"),
        (attack_verdict((0, 0, 0)), "not shown"),
    ],
)
def test_level(attack, expected):
    assert level([attack]) == expected


# Of images, PSNR in dB: guessing has 12.
@pytest.mark.parametrize(
    ("leak", "more", "expected"),
    [
        ((22, 20, 24), {"whole": 60}, "critical"),
        ((22, 20, 24), {"whole": 15, "guessed": 5}, "critical"),
        ((13, 12.6, 13.4), {"whole": 14, "guessed": 5}, "high"),
        ((13, 12.6, 13.4), {"whole": 5, "guessed": 5}, "moderate"),  # guessing is as often as close
        ((18, 17, 19), {}, "high"),
        ((17.9, 17, 19), {}, "moderate"),
        ((12.4, 11.9, 14.9), {}, "not shown"),
        ((12.4, 11.9, 15), {}, "unclear"),
        ((12.4, 11.9, 13), {"trials": 9}, "unclear"),
        ((12.4, 11.9, 13), {"unfinished": 2}, "unfinished"),
        ((9, 8, 10), {}, "not shown"),
    ],
)
def test_level_of_images(leak, more, expected):
    one = attack_verdict(leak, (12, 11.5, 12.5), measure="psnr", **more)
    assert level([one]) == expected
    text = headline(expected, one, [one])
    assert "PSNR" in text
    assert not re.search(r"\bsafe|ROUGE|sentence", text, re.IGNORECASE)


def test_nothing_tried_is_unfinished():
    assert level([]) == "unfinished"


numbers = st.floats(0, 100)
attacks = st.builds(
    lambda bounds, trials, whole, cut: attack_verdict(
        (sorted(bounds)[1], min(bounds), max(bounds)), trials=trials, whole=whole, unfinished=min(cut, trials)
    ),
    st.lists(numbers, min_size=3, max_size=3),
    st.integers(1, 40),
    st.sampled_from([0.0, 2.5, 10.0, 100.0]),
    st.integers(0, 3),
)


@given(st.lists(attacks, min_size=1, max_size=4), attacks)
def test_a_further_attack_never_lowers_a_proven_leak(tried, more):
    """Only what is unproven can go from one of its kinds to another."""
    before, after = level(tried), level([*tried, more])
    if before in ("critical", "high", "moderate"):
        assert LEVELS.index(after) <= LEVELS.index(before)
    if any(one.unfinished for one in [*tried, more]):
        assert after not in ("unclear", "not shown")


@given(st.lists(attacks, min_size=1, max_size=4))
def test_no_text_says_safe(tried):
    text = headline(level(tried), strongest(tried), tried)
    assert not re.search(r"\bsafe", text, re.IGNORECASE)
    assert not re.search(r"\bsafe", CAVEAT, re.IGNORECASE)


def test_the_rule_is_written_down():
    text = DOCS.read_text()
    for name in LEVELS:
        assert f"**{name}**" in text
    for number in ("10 %", "25 points", "10 points", "10 trials", "50 %", "20 dB", "6 dB", "3 dB"):
        assert number in text
