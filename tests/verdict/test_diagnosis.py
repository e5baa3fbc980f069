"""Why attacks failed comes from facts: what the attack met, and what the audit knows of the update."""

import pytest
from invented import audit

from gradleak.attacks.reasons import TEXTS, Reason
from gradleak.updates.client_rule import ClientRule
from gradleak.verdict.judge import judge

NO_GAP = Reason(kind="no-gap", about="query", numbers={"largest": 1.0, "smallest": 0.1, "limit": 16})
LOCAL = ClientRule.parse("fedavg:epochs=5,batch=1,lr=0.01")


def obstacles(leak=20, **given):
    (one,) = judge([audit([leak] * 3, **given)]).scenarios
    return {obstacle.kind: obstacle for obstacle in one.attacks[0].obstacles}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"reasons": [NO_GAP], "tokens": 16}, {"rank-limit"}),
        ({"reasons": [NO_GAP], "tokens": 15}, {"no-gap"}),
        ({"reasons": [NO_GAP], "tokens": 15, "signal": 2.0, "noise": 0.5}, {"noise"}),
        ({"reasons": [NO_GAP], "tokens": 20, "signal": 2.0, "noise": 0.5}, {"rank-limit", "noise"}),
        ({"signal": 2.0, "noise": 0.5}, {"search"}),  # faint noise that nothing met
        ({"signal": 2.0, "noise": 3.0}, {"noise"}),
        ({"reasons": [Reason(kind="matrix-missing", about="query")]}, {"tensors-missing"}),
        ({"status": "budget-exhausted"}, {"budget"}),
        ({"reasons": [Reason(kind="size-unknown")]}, {"not-told"}),
        ({"truth_distance": 0.2, "scenario": {"client": LOCAL}}, {"local-steps"}),
        ({"truth_distance": 0.2, "scenario": {"client": ClientRule(mode="train")}}, {"dropout"}),
        ({"truth_distance": 0.2, "scenario": {"defenses": ["sign"]}}, {"coarse-values"}),
        ({"truth_distance": 0.2, "scenario": {"defenses": ["noise:sigma=0.1"]}}, {"defended"}),  # not measured
        ({"truth_distance": 0.2, "scenario": {"defenses": ["frozen"]}}, {"search"}),
        ({"reasons": [NO_GAP], "tokens": 15, "scenario": {"client": LOCAL}}, {"local-steps"}),
        ({"reasons": [NO_GAP], "tokens": 16, "scenario": {"client": LOCAL}}, {"rank-limit"}),
        ({"reasons": [NO_GAP], "tokens": 15, "scenario": {"client": ClientRule(mode="train")}}, {"dropout"}),
        # Of a defence that is not known here nobody can say how much of the distance it makes: none is given.
        (
            {"truth_distance": 0.2, "scenario": {"client": LOCAL, "defenses": ["theirs:Own:x=1"]}},
            {"local-steps", "defended"},
        ),
        ({"truth_distance": 0.0, "scenario": {"client": LOCAL}}, {"search"}),
        ({}, {"search"}),
    ],
)
def test_cause(facts, expected):
    assert set(obstacles(**facts)) == expected


def test_what_was_read_whole_needs_no_excuse():
    assert not obstacles(100, reasons=[NO_GAP], tokens=99)


def test_numbers_are_told():
    found = obstacles(reasons=[NO_GAP], tokens=40, signal=2.0, noise=5.0)
    assert found["rank-limit"].numbers == {"tokens": 40, "limit": 16}
    assert found["noise"].numbers == {"ratio": 2.5}
    assert "2.5 times" in found["noise"].text
    assert "above the signal" in found["noise"].text
    steps = obstacles(truth_distance=0.25, scenario={"client": LOCAL})["local-steps"]
    assert steps.numbers == {"steps": 5, "distance": 0.25}
    assert "too many local steps (5)" in steps.text
    assert steps.trials == 3


def test_a_distance_that_nobody_knows_is_not_told():
    """Without the labels of a truth it is not measured, which is not the same as none."""
    for rule, kind in ((ClientRule(mode="train"), "dropout"), (LOCAL, "local-steps")):
        found = obstacles(reasons=[NO_GAP], tokens=15, scenario={"client": rule})[kind]
        assert "distance" not in found.numbers
        assert "only up to" not in found.text
    known = obstacles(truth_distance=0.2, scenario={"client": ClientRule(mode="train")})["dropout"]
    assert "only up to a cosine distance of 0.2" in known.text


def test_a_note_is_not_parsed():
    """The same words without the facts change nothing."""
    one = audit([20] * 3)
    for trial in one.trials:
        trial.reconstruction.notes.append(NO_GAP.text)
    assert [o.kind for o in judge([one]).scenarios[0].attacks[0].obstacles] == ["search"]


def test_every_reason_has_a_text():
    numbers = dict.fromkeys(("told", "unknown", "tokens", "largest", "smallest", "limit", "starts", "rank"), 7)
    for kind in TEXTS:
        text = Reason(kind=kind, about="query", numbers=numbers).text
        assert text
        assert "{" not in text
