"""The advice follows from the numbers by the rule that docs/frontier.md writes down."""

import pytest
from made import DEAR, HIDDEN, LOWERED, NONE, UNCHANGED, UNCLEAR, VAGUE, point

from gradleak.experiments.frontier.advice import advise, verdict


@pytest.mark.parametrize(
    ("leaks", "expected"),
    [
        ([HIDDEN], "hidden"),
        ([LOWERED], "lowered"),
        ([UNCHANGED], "unchanged"),
        ([UNCLEAR], "unclear"),
        # the best attack's wide interval must not hide a second one that is clearly above guessing
        ([(13, 5, 20), (12, 11, 13)], "lowered"),
        ([LOWERED, UNCHANGED], "unchanged"),
    ],
)
def test_verdicts(leaks, expected):
    assert verdict(point("x", *leaks), NONE) == expected


def test_an_attack_without_a_trial_leaves_no_verdict():
    assert verdict(point("x", HIDDEN, None, status="unfinished"), NONE) == "unfinished"
    assert verdict(point("x", HIDDEN, status="unfinished"), NONE) == "hidden"


def test_a_price_that_is_not_known_is_said_to_be_so():
    unpriced = point("a", HIDDEN, status="unfinished").model_copy(update={"cost": None})
    assert "Measure what a costs".lower() in advise([NONE, unpriced], "accuracy", 52.0).lower()
    lowered = point("a", LOWERED, status="unfinished").model_copy(update={"cost": None})
    assert "a price that is not measured yet" in advise([NONE, lowered], "accuracy", 52.0)


@pytest.mark.parametrize(
    ("points", "begins", "says"),
    [
        ([], "No advice yet", "undefended"),
        ([point("none", None, status="unfinished"), point("a", HIDDEN)], "No advice yet", "run the same"),
        ([point("none", (50, 0, 100), status="unfinished")], "No advice yet", "not told apart from guessing"),
        ([point("none", (50, 0, 100)), point("a", HIDDEN)], "This run cannot tell", "more trials"),
        ([point("none", (90, 85, 95), utility=(51, 49, 53)), point("a", HIDDEN)], "What a defence costs", "rounds"),
        ([NONE], "No defence is measured", "list some"),
        # down to the control, cheaply; the cheapest of several
        ([NONE, point("a", HIDDEN)], "Use a:", "from ROUGE-L 90 to 9, not clearly above the 8 of guessing"),
        ([NONE, point("a", HIDDEN, cost=DEAR), point("b", HIDDEN), point("c", LOWERED)], "Use b:", "0.5 points"),
        # down to the control, but the cost is not clear or too high
        ([NONE, point("a", HIDDEN, cost=VAGUE)], "Repeat with more seeds", "not clearly within 2.0 points"),
        ([NONE, point("a", HIDDEN, cost=DEAR)], "The cheapest setting that", "more than the 2.0 allowed"),
        (  # of one seed nothing is clear
            [NONE, point("a", HIDDEN, cost=(29.5, -100, 100))],
            "The cheapest setting that helps enough seems dear", "not clearly more than the 2.0 allowed",
        ),
        (
            [NONE, *(point("abc"[i], HIDDEN, cost=(at, at - 2, at + 2)) for i, at in enumerate((10, 9, 20)))],
            "All settings that help enough are dear: a and b bring", "for 9.0 to 10.0 points of accuracy",
        ),
        ([NONE, point("a", HIDDEN, cost=DEAR), point("b", LOWERED)], "Choose by what you", "b lowers the leak"),
        ([NONE, point("a", HIDDEN, cost=DEAR), point("b", LOWERED, cost=DEAR)], "The cheapest setting", "weaker"),
        # lowered only
        ([NONE, point("a", LOWERED), point("b", (30, 25, 35))], "Do not rely", "b lowers the leak most"),
        ([NONE, point("a", LOWERED, cost=DEAR)], "Do not rely", "tried, at any cost"),
        ([NONE, point("a", LOWERED), point("b", (30, 25, 35), cost=DEAR)], "Do not rely", "a lowers the leak most"),
        # overlap, and nothing helps
        ([NONE, point("a", UNCLEAR), point("b", UNCHANGED)], "No choice can be made yet", "more trials"),
        ([NONE, point("a", UNCHANGED), point("b", (89, 82, 95))], "None of these defences", "least under a"),
        # what is unfinished counts by what there is, unless an attack has read nothing yet
        (
            [NONE, point("a", HIDDEN, None, status="unfinished")],
            "So far: no defence is measured", "(1 setting is not measured to its end, 1 of them does not count yet)",
        ),
        (
            [NONE, point("a", UNCHANGED), *(point(name, HIDDEN, status="unfinished") for name in "bc")],
            "So far: use b:", "(2 settings are not measured to their end).",
        ),
        # the trainings are not there yet: what is read tells something already
        (
            [
                point("none", (90, 85, 95), utility=(60, 0, 100), status="unfinished"), point("a", HIDDEN),
                point("b", UNCHANGED), point("c", UNCLEAR), point("d", LOWERED),
            ],
            "So far: what defences cost is not told", "under b it is not clearly lowered; c cannot be told apart yet",
        ),
    ],
)  # fmt: skip
def test_advice(points, begins, says):
    text = advise(points, "accuracy", floor=52.0)
    assert text.startswith(begins), text
    assert says in text
    assert text.endswith(".")
    assert text.count(". ") == 0, "one sentence"
    assert "safe" not in text.lower()


@pytest.mark.parametrize("leak", [HIDDEN, LOWERED, UNCHANGED, UNCLEAR, None])
@pytest.mark.parametrize("undefended", [(90, 85, 95), (50, 0, 100), None])
@pytest.mark.parametrize("utility", [(90, 89, 91), (51, 49, 53), (40, 0, 100)])
def test_advice_before_the_end_always_says_so(leak, undefended, utility):
    """That nothing was learned with no defence was said as if the run were over, while others were not begun."""
    plain = point("none", undefended, utility=utility, status="completed" if undefended else "unfinished")
    text = advise([plain, point("a", leak, status="unfinished")], "accuracy", floor=52.0)
    assert text.startswith(("No advice yet: ", "So far: ")), text


def test_tolerance_and_metric_are_the_users():
    points = [NONE, point("a", HIDDEN, cost=DEAR)]
    assert advise(points, "mcc", 52.0, tolerance=12).startswith("Use a:")
    assert "9.0 points of MCC [7.0, 11.0]" in advise(points, "mcc", 52.0, tolerance=12)
    assert "points of F1" in advise(points, "f1", 52.0)


def test_perplexity_is_better_when_lower():
    points = [point("none", (90, 85, 95), utility=(20, 19, 21)), point("a", HIDDEN)]
    assert advise(points, "perplexity", 40.0).startswith("Use a:")
    assert "0.5 % of perplexity" in advise(points, "perplexity", 40.0)
    assert advise(points, "perplexity", 20.5).startswith("What a defence costs is not clear")


def test_without_a_floor_nothing_is_advised():
    assert advise([NONE, point("a", HIDDEN)], "accuracy", None).startswith("No advice yet")
