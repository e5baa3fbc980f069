"""From results to a verdict: pooling, naming, what leaked, and which measured change would have helped."""

import io
import re

import pytest
from invented import audit

from gradleak import GradleakError
from gradleak.core.console import SafeConsole
from gradleak.report.terminal import print_results
from gradleak.report.wording import remarks
from gradleak.scoring.interval import Interval
from gradleak.verdict.gather import gather
from gradleak.verdict.judge import judge
from gradleak.verdict.model import FILE, Verdict
from gradleak.verdict.show import print_verdict

LOW = [5, 6, 4, 5, 6, 5, 4, 6, 5, 5]


def shown(verdict):
    stream = io.StringIO()
    console = SafeConsole(file=stream, width=160)
    print_verdict(verdict, console)
    return stream.getvalue()


def test_seeds_of_one_attack_are_pooled_and_copies_are_not_counted_twice():
    first, second = audit([100, 20], seed=0), audit([60, 40], seed=1)
    (one,) = judge([first, second, second]).scenarios
    assert one.attacks[0].trials == 4
    assert one.attacks[0].leak.mean == pytest.approx(55)


def test_what_leaked_is_counted_by_names_and_numbers():
    (one,) = judge([audit([100, 60, 20], certified=True)]).scenarios
    leaked = one.attacks[0].leaked
    assert (leaked.sentences, leaked.whole, leaked.certified) == (3, 1, 1)
    assert (leaked.pieces.names.found, leaked.pieces.names.total) == (2, 3)
    text = shown(judge([audit([100, 60, 20], certified=True)]))
    assert "2 of 3 names came back where guessing hits 0.3; 3 of 3 numbers came back where guessing hits none" in text
    assert "capitalised words" in text


def test_counts_of_older_results_stand_alone():
    old = audit([100, 60, 20])
    old.trials[1] = old.trials[1].model_copy(update={"control_pieces": None})
    assert judge([old]).scenarios[0].attacks[0].leaked.guessed is None
    assert "2 of 3 names came back; 3 of 3 numbers came back" in shown(judge([old]))


def test_strongest_first_and_every_attack_is_told():
    verdict = judge([audit([30] * 5, attack="lamp-cos"), audit([100] * 5), audit(LOW, attack="dlg")])
    (one,) = verdict.scenarios
    assert (verdict.level, one.strongest) == ("critical", "auto")
    assert [attack.attack for attack in one.attacks] == ["auto", "lamp-cos", "dlg"]
    assert all(name in shown(verdict) for name in ("auto", "lamp-cos", "dlg"))


def test_options_name_attacks_only_where_they_differ():
    both = [audit([30], options={"steps": 5, "adapt": value}) for value in (True, False)]
    assert {a.attack for a in judge(both).scenarios[0].attacks} == {"auto (adapt=True)", "auto (adapt=False)"}


def test_a_run_cut_short_is_never_a_no():
    whole, cut = audit(LOW), audit(LOW, attack="lamp-cos", status="budget-exhausted")
    assert judge([whole]).level == "not shown"
    assert judge([whole, cut]).level == "unfinished"
    assert "Unfinished" in shown(judge([whole, cut]))
    leak = audit([100] * 3, attack="dlg", status="budget-exhausted")
    assert judge([whole, leak]).level == "critical"


def defended(leaks, defense, **more):
    return audit(leaks, scenario={"defenses": [defense]}, **more)


def test_the_cheapest_measured_change():
    plain = audit([90] * 10)
    runs = [plain, defended(LOW, "noise:sigma=1"), defended(LOW, "dpsgd:noise=1"), defended([40] * 10, "sign")]
    change = {one.defense: one.change for one in judge(runs).scenarios}
    assert "noise:sigma=1 (ROUGE-L" in change["none"]
    assert "not measured" in change["none"]
    assert change["noise:sigma=1"] is None  # nothing leaks there
    costs = {"noise:sigma=1": Interval(mean=9, low=8, high=10), "dpsgd:noise=1": Interval(mean=2, low=1, high=3)}
    cheapest = judge(runs, costs=costs).scenarios[0].change
    assert cheapest.startswith("Measured to help: dpsgd:noise=1")
    assert "2.0 [1.0, 3.0]" in cheapest


def test_changes_that_do_not_help_or_are_not_sure():
    plain = audit([90] * 10)
    assert "lowers it most" in judge([plain, defended([40] * 10, "sign")]).scenarios[0].change
    assert (
        "does not clearly lower" in judge([audit([85, 95] * 5), defended([84, 94] * 5, "sign")]).scenarios[0].change
    )
    assert "not enough to rely on" in judge([plain, defended(LOW[:4], "sign")]).scenarios[0].change
    assert judge([plain]).scenarios[0].change is None
    elsewhere = defended(LOW, "sign", attack="dlg")  # what read most here was never tried there
    assert judge([plain, elsewhere]).scenarios[0].change is None
    cut = defended(LOW, "sign", status="budget-exhausted")
    assert judge([plain, cut]).scenarios[0].change is None


def test_a_change_of_two_settings_is_no_advice():
    other = audit(LOW, scenario={"defenses": ["sign"], "batch_size": 4})
    assert judge([audit([90] * 10), other]).scenarios[0].change is None
    alone = audit(LOW, scenario={"batch_size": 4})
    assert "batches of 4" in judge([audit([90] * 10), alone]).scenarios[0].change


def test_nothing_shown_says_safe():
    for results in ([audit(LOW)], [audit([90] * 10), defended(LOW, "sign")], [audit([30])]):
        assert not re.search(r"\bsafe", shown(judge(results)), re.IGNORECASE)


def test_folders(tmp_path):
    for number, results in enumerate([audit([90] * 3), audit(LOW, scenario={"defenses": ["sign"]})]):
        place = tmp_path / "cells" / str(number)
        place.mkdir(parents=True)
        results.save(place)
    found = gather(tmp_path)
    verdict = found.verdict
    assert [one.level for one in verdict.scenarios] == ["high", "not shown"]
    assert [one.defense for one in gather(tmp_path / "cells" / "1").verdict.scenarios] == ["sign"]
    assert verdict.save(tmp_path).stat().st_mode & 0o777 == 0o600
    assert Verdict.model_validate_json((tmp_path / FILE).read_bytes()) == verdict
    for bad in (tmp_path / "nowhere", tmp_path / "cells" / "empty"):
        if bad.name == "empty":
            bad.mkdir()
        with pytest.raises(GradleakError, match=r"no folder|holds no results\.json"):
            gather(bad)


def test_scores_keep_their_meanings_where_there_is_room():
    for width, there in ((80, False), (160, True)):
        stream = io.StringIO()
        console = SafeConsole(file=stream, width=width)
        print_results(audit([30, 40]), console)
        text = stream.getvalue()
        assert ("longest run of words in the right order" in text) == there
        assert "…" not in text


def test_notes_that_differ_in_their_numbers_are_one_remark():
    results = audit([30, 40, 50])
    for number, trial in enumerate(results.trials):
        trial.reconstruction.notes += [
            f"layer.{number % 2}.x falls from {number}.5e-02 to 1",
            f"only {number} starts",
        ]
    lines = [line for line in remarks(results) if line.startswith(("Layer", "Only"))]
    assert lines == [
        "Only 0 starts (3 trials).",
        "Layer.0.x falls from 0.5e-02 to 1 (2 trials).",
        "Layer.1.x falls from 1.5e-02 to 1 (1 trial).",
    ]
