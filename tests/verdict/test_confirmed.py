"""What the verdict says of candidates: a floor where nothing was read, a line beside a leak, or that nobody asked."""

import io

from invented import audit

from gradleak.core.console import SafeConsole
from gradleak.scoring.membership import KnownCandidate, TrialCandidates, summarise
from gradleak.verdict.judge import judge
from gradleak.verdict.sentences import scenario_words
from gradleak.verdict.show import print_verdict

LOW = [5, 6, 4, 5, 6, 5, 4, 6, 5, 5]


def asking(leaks, confirmed, *, late=0, **more):
    """An audit in which a server confirms the true sentence of the first `confirmed` trials, among 20 others each."""
    results = audit(leaks, **more)
    trials = []
    for i, trial in enumerate(results.trials):
        scores = [(9.0 if i < confirmed else -1.0, True), *((float(-(i + j) % 7), False) for j in range(20))]
        known = [KnownCandidate(text=f"{i} {j}", score=s, member=member) for j, (s, member) in enumerate(scores)]
        listed = TrialCandidates(seed=i, status="completed", candidates=known)
        trials.append(trial.model_copy(update={"candidates": None if i < late else listed}))
    told = summarise([trial.candidates for trial in trials], 20)
    return results.model_copy(update={"trials": trials, "confirmed": told})


def test_nothing_read_and_confirmed():
    (one,) = judge([asking(LOW, 8)]).scenarios
    assert one.level == "moderate"
    assert one.candidates.level == "moderate"
    assert one.headline.startswith("Moderate: no sentence was read clearly better than by guessing (ROUGE-L")
    assert one.headline.endswith(
        "But a server that has a list of candidates confirms 80 % [44, 97] of the sentences at 1 % false alarms."
    )
    assert one.not_tried == []


def test_read_and_confirmed():
    (one,) = judge([asking([100] * 10, 10)]).scenarios
    assert one.level == "critical"
    assert "candidates" not in one.headline
    (line,) = [line for line in scenario_words(one) if line.startswith("A server that has a list")]
    assert "confirms 100 % [69, 100] of the sentences at 1 % false alarms (AUC 1.000" in line
    assert "999 others are needed to show 0.1 % false alarms" in line


def test_not_tried():
    plain, recorded = judge([audit(LOW)]).scenarios[0], judge([audit(LOW, scenario={"recorded": True})]).scenarios[0]
    assert plain.level == "not shown"
    assert plain.candidates is None
    assert plain.not_tried == [
        "Not tried: whether a server that has candidates confirms which of them were in; "
        "`gradleak audit --candidates 100` tries it."
    ]
    assert "`gradleak contains`" in recorded.not_tried[0]
    stream = io.StringIO()
    print_verdict(judge([audit(LOW)]), SafeConsole(file=stream, width=200))
    assert plain.not_tried[0] in stream.getvalue()


def test_none_confirmed_raises_nothing():
    (one,) = judge([asking(LOW, 0)]).scenarios
    assert (one.level, one.candidates.level) == ("not shown", "not shown")
    (few,) = judge([asking(LOW[:5], 0)]).scenarios
    assert few.candidates.level == "unclear"
    (late,) = judge([asking(LOW, 0, late=3)]).scenarios
    assert late.candidates.level == "unfinished"
    assert any("For the candidates of 3 trials there was no time." in line for line in scenario_words(late))


def test_one_trial_of_two_attacks_counts_once():
    both = [asking(LOW, 8), asking(LOW, 8, attack="dlg"), audit(LOW, attack="tag")]
    (one,) = judge(both).scenarios
    assert (one.candidates.confirmed.trials, one.candidates.confirmed.members) == (10, 10)
    (two,) = judge([asking(LOW, 8), asking(LOW, 8, seed=1)]).scenarios
    assert two.candidates.confirmed.trials == 20


def test_a_change_helps_only_where_it_was_asked_too():
    plain, sign = asking(LOW, 10), {"defenses": ["sign"]}
    assert judge([plain, audit(LOW, scenario=sign)]).scenarios[0].change is None
    hidden = judge([plain, asking(LOW, 0, scenario=sign)]).scenarios[0].change
    assert hidden.startswith("Measured to help: under sign a server that has candidates does not clearly confirm any")
    assert "clearly lowers" in judge([plain, asking(LOW, 10, scenario=sign)]).scenarios[0].change
    read = judge([asking([90] * 10, 10), asking(LOW, 10, scenario=sign)]).scenarios[0].change
    assert "lowers it most" in read
    assert "with candidates confirmed" in read
