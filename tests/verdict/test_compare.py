"""Two runs beside each other."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invented import audit
from scipy import stats

from gradleak import GradleakError
from gradleak.core.console import SafeConsole
from gradleak.report.compare import print_comparison, write_comparison
from gradleak.scoring.interval import welch
from gradleak.verdict.compare import FILE, Comparison, compare

NAMES = ("a", "b")


def test_the_same_batches_are_compared_trial_by_trial():
    (one,) = compare([audit([10, 50, 90])], [audit([20, 61, 99])], NAMES).differences
    assert one.paired
    assert one.outcome == "reads more"
    assert one.change.mean == pytest.approx(10)
    assert [sentence.change for sentence in one.sentences] == [11, 10, 9]
    assert not one.settings


def test_other_batches_are_compared_by_their_means():
    (one,) = compare([audit([10, 50, 90])], [audit([20, 61, 99], seed=1)], NAMES).differences
    assert not one.paired
    assert one.outcome == "no clear change"
    assert not one.sentences


def test_two_single_audits_are_compared_whatever_differs():
    other = audit([5, 6, 4], attack="dlg", scenario={"defenses": ["sign"]})
    (one,) = compare([audit([80, 90, 85])], [other], NAMES).differences
    assert one.outcome == "reads less"
    assert one.settings["attack"] == ("auto", "dlg")
    assert one.settings["defenses"] == ("[]", "['sign']")


def test_what_only_one_run_has_is_named():
    first = [audit([80, 90]), audit([10, 12], attack="dlg")]
    second = [audit([80, 90]), audit([10, 12], attack="tag")]
    found = compare(first, second, NAMES)
    assert [one.attack for one in found.differences] == ["auto"]
    assert "dlg on" in found.only_first[0]
    assert "tag on" in found.only_second[0]
    with pytest.raises(GradleakError, match="in common"):
        compare(first[1:], second, NAMES)


def test_it_is_printed_and_written(tmp_path):
    hostile = audit([80, 90])
    hostile.trials[0].pairs[0].reconstruction = "<script>alert(1)</script>"
    found = compare([hostile], [audit([20, 10])], NAMES)
    stream = io.StringIO()
    console = SafeConsole(file=stream, width=160)
    print_comparison(found, console)
    assert "reads less" in stream.getvalue() or "no clear change" in stream.getvalue()
    page = write_comparison(found, tmp_path).read_text()
    assert "<script" not in page
    assert "alert(1)" in page.replace("</span>", "").replace('<span class="miss">', "")
    assert Comparison.model_validate_json((tmp_path / FILE).read_bytes()) == found


values = st.lists(st.integers(0, 100), min_size=2, max_size=12)


@given(values, values)
def test_welch_agrees_with_scipy(first, second):
    found = welch(first, second, reach=1e6)
    assert found.low <= found.mean <= found.high
    if len({*first}) > 1 or len({*second}) > 1:
        apart = stats.ttest_ind(first, second, equal_var=False).pvalue < 0.05
        assert (found.low > 0 or found.high < 0) == apart


def test_one_trial_says_nothing():
    assert (welch([1.0], [2.0, 3.0]).low, welch([1.0], [2.0, 3.0]).high) == (-100, 100)
