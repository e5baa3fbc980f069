"""One sentence a practitioner can act on, by a fixed rule from the numbers. `docs/frontier.md` writes the rule down.

Nothing here calls anything harmless: a low score says that these attacks read little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gradleak.core.text import enumerated
from gradleak.defenses.chains import NONE
from gradleak.experiments.frontier.points import AttackScore, Point
from gradleak.experiments.utility import Metric
from gradleak.scoring.interval import Interval

CAVEAT = (
    "These figures say what these attacks read back from these updates, and what this training reached. A low score "
    "is not proof of safety: another attack, above all one made for the defence, may read more."
)

# Points of the metric (percent of perplexity) that a defence may cost unless the user says otherwise.
TOLERANCE = 2.0

Verdict = Literal["hidden", "lowered", "unclear", "unchanged", "unfinished"]


def verdict(point: Point, plain: Point) -> Verdict:
    """What a setting did to the leak, by intervals alone; every attack counts, not only the best.

    Finished trials count, however many are still to come: the fewer there are, the wider is the interval.
    hidden: all attacks clearly below the undefended leak and none clearly above its control. lowered: all clearly
    below, but some clearly above the control. unchanged: some clearly above the control, and not all clearly below
    the undefended leak. unclear: the intervals reach both.
    """
    scores = [score for score in point.attacks.values() if score is not None]
    if not scores or len(scores) < len(point.attacks):
        return "unfinished"
    below = all(score.leak.high < _score(plain).leak.low for score in scores)
    above = any(score.leak.low > score.control.high for score in scores)
    if below:
        return "lowered" if above else "hidden"
    return "unchanged" if above else "unclear"


def advise(points: Sequence[Point], metric: Metric, floor: float | None, tolerance: float = TOLERANCE) -> str:
    """The advice. `floor` is what the model scores without training, or the commonest class if that is better."""
    plain = next((point for point in points if point.label == NONE), None)
    others = [point for point in points if point.label != NONE]
    early = _too_early(plain, metric, floor)
    if early is not None:
        return f"No advice yet: {early}; run the same command again to continue."
    assert plain is not None
    kinds: dict[Verdict, list[Point]] = {}
    for point in others:
        kinds.setdefault(verdict(point, plain), []).append(point)
    costs = plain.utility is not None and floor is not None and learned(plain.utility, metric, floor)
    chosen = _nothing_to_compare_with(plain, metric, floor) or (
        _choose(kinds, plain, metric, tolerance) if costs else _by_leak(kinds, plain)
    )
    still = [point for point in points if point.status == "unfinished"]
    if not still:
        return f"{chosen}."
    return f"So far: {chosen[0].lower()}{chosen[1:]}{_left_out(still, kinds.get('unfinished', []))}."


def learned(utility: Interval, metric: Metric, floor: float) -> bool:
    """Whether training clearly beat the floor."""
    return utility.high < floor if metric == "perplexity" else utility.low > floor


def _too_early(plain: Point | None, metric: Metric, floor: float | None) -> str | None:
    """What the undefended setting still lacks to be compared with, if it lacks anything."""
    if plain is None or plain.score is None:
        return "no trial of the undefended setting is finished"
    score = plain.score
    if plain.status == "unfinished":
        if _above_guessing(score):
            return None  # what is read may tell something already, whatever the trainings will show
        return (
            f"what is read with no defence ({score.label} {spread(score.leak)}, {_trials(score)}) is "
            f"not told apart from guessing ({spread(score.control)}) yet"
        )
    if _above_guessing(score) and (plain.utility is None or floor is None):
        return "how good the model gets with no defence is not measured"
    return None


def _nothing_to_compare_with(plain: Point, metric: Metric, floor: float | None) -> str | None:
    """Why the finished undefended setting gives nothing to compare with, if it does not."""
    if plain.status == "unfinished":
        return None
    score = _score(plain)
    if not _above_guessing(score):
        return (
            f"This run cannot tell the defences apart: even with none, the best attack ({plain.best}) is not clearly "
            f"above guessing ({score.label} {spread(score.leak)} against {spread(score.control)}), so try stronger "
            "attacks or more trials"
        )
    assert plain.utility is not None
    assert floor is not None
    if not learned(plain.utility, metric, floor):
        return (
            f"What a defence costs is not clear: with none, the model did not clearly get better than without "
            f"training ({named(metric)} {spread(plain.utility)} against {floor:.1f}), so use more rounds, "
            "more seeds or another step size"
        )
    return None


def _above_guessing(score: AttackScore) -> bool:
    return score.leak.low > score.control.high


def _by_leak(kinds: dict[Verdict, list[Point]], plain: Point) -> str:
    """What is told apart while no cost is."""
    start = _score(plain)
    said: dict[Verdict, str] = {
        "hidden": "under {} the best attack is not clearly above guessing",
        "lowered": "under {} it reads clearly less, and clearly more than guessing",
        "unchanged": "under {} it is not clearly lowered",
        "unclear": "{} cannot be told apart yet",
    }
    parts = [
        text.replace("{}", enumerated([point.label for point in kinds[kind]]))
        for kind, text in said.items()
        if kind in kinds
    ]
    told = "; ".join(parts) or "no defence has a finished trial of every attack"
    read = f"{start.label} {spread(start.leak)} with none"
    return f"What defences cost is not told apart yet, but what is read ({read}): {told}"


def _choose(kinds: dict[Verdict, list[Point]], plain: Point, metric: Metric, tolerance: float) -> str:
    hidden, lowered = kinds.get("hidden", []), kinds.get("lowered", [])
    start = _score(plain)
    if hidden:
        return _reached(hidden, lowered, start, metric, tolerance)
    if lowered:
        cheap = [point for point in lowered if _within(point, tolerance)]
        best = min(cheap or lowered, key=lambda point: _score(point).leak.mean)
        limit = f"that cost clearly no more than {amount(tolerance, metric)}" if cheap else "tried, at any cost"
        return (
            f"Do not rely on these defences alone: of those {limit}, {best.label} lowers the leak most, "
            f"{_fall(best, start)}, for {_cost(best, metric)}, and that is still clearly more than guessing reads"
        )
    if unclear := kinds.get("unclear", []):
        likely = min(unclear, key=lambda point: _score(point).leak.mean)
        return (
            f"No choice can be made yet: the interval of {likely.label} "
            f"({start.label} {spread(_score(likely).leak)}) reaches both guessing and the undefended leak "
            f"({spread(start.leak)}), so repeat with more trials"
        )
    if unchanged := kinds.get("unchanged", []):
        least = min(unchanged, key=lambda point: _score(point).leak.mean)
        return (
            f"None of these defences clearly lowers what is read back (least under {least.label}, {start.label} "
            f"{spread(_score(least).leak)}, against {spread(start.leak)} with none), so do not rely on them: use "
            "stronger settings or others"
        )
    return "No defence is measured to its end yet; run the same command again, or list some to compare"


def _trials(score: AttackScore) -> str:
    return f"{score.trials} of {score.planned or score.trials} trials"


def _reached(hidden: list[Point], lowered: list[Point], start: AttackScore, metric: Metric, tolerance: float) -> str:
    """Some setting brings the leak down to the control: take it if it is cheap, else say what it costs."""
    priced = [point for point in hidden if point.cost is not None]
    if not priced:
        names = enumerated([point.label for point in hidden])
        return (
            f"Measure what {names} costs before you choose: what is read is down to guessing, its price is not known"
        )
    cheapest = min(priced, key=lambda point: _cost_of(point).mean)
    reached = f"{_fall(cheapest, start)}, not clearly above the {_score(cheapest).control.mean:.0f} of guessing"
    if _within(cheapest, tolerance):
        return (
            f"Use {cheapest.label}: it brings the best attack down {reached}, for {_cost(cheapest, metric)}; "
            "attack it again with whatever is new before you rely on it"
        )
    if _cost_of(cheapest).mean <= tolerance:
        return (
            f"Repeat with more seeds before you choose {cheapest.label}: it brings the best attack down {reached}, "
            f"but its cost ({_cost(cheapest, metric)}) is not clearly within {amount(tolerance, metric)}"
        )
    clearly = _cost_of(cheapest).low > tolerance
    more = f"{'more' if clearly else 'not clearly more'} than the {tolerance:.1f} allowed"
    price = f"at {_cost(cheapest, metric)}, {more}"
    partial = [point for point in lowered if _within(point, tolerance)]
    if partial:
        best = min(partial, key=lambda point: _score(point).leak.mean)
        return (
            f"Choose by what you can pay: {cheapest.label} brings the best attack down {reached}, {price}, while "
            f"within that limit {best.label} lowers the leak most, {_fall(best, start)}, still clearly above guessing"
        )
    # Which of several dear settings happens to be the cheapest says nothing, and would change from run to run.
    alike = [point for point in priced if _cost_of(point).low <= _cost_of(cheapest).high]
    if len(alike) > 1:
        costs = [_cost_of(point).mean for point in alike]
        names = enumerated([point.label for point in alike])
        return (
            f"All settings that help enough {'are' if clearly else 'seem'} dear: {names} bring the best "
            f"attack down to about guessing from {start.label} {start.leak.mean:.0f}, for {min(costs):.1f} to "
            f"{amount(max(costs), metric)}, which are not told apart, {more}; "
            "try weaker strengths of them"
        )
    return (
        f"The cheapest setting that helps enough {'is' if clearly else 'seems'} dear: {cheapest.label} brings the "
        f"best attack down {reached}, {price}; try weaker strengths of it"
    )


def _left_out(still: list[Point], unjudged: list[Point]) -> str:
    """How much is not measured to its end, and what of it counts for nothing."""
    one = len(still) == 1
    settings = (
        "1 setting is not measured to its end" if one else f"{len(still)} settings are not measured to their end"
    )
    if not unjudged:
        return f" ({settings})"
    return f" ({settings}, {len(unjudged)} of them {'does' if len(unjudged) == 1 else 'do'} not count yet)"


def _score(point: Point) -> AttackScore:
    assert point.score is not None
    return point.score


def _cost_of(point: Point) -> Interval:
    assert point.cost is not None
    return point.cost


def _within(point: Point, tolerance: float) -> bool:
    return point.cost is not None and point.cost.high <= tolerance


def _fall(point: Point, start: AttackScore) -> str:
    return f"from {start.label} {start.leak.mean:.0f} to {_score(point).leak.mean:.0f}"


def _cost(point: Point, metric: Metric) -> str:
    interval = point.cost
    if interval is None:
        return "a price that is not measured yet"
    return f"{amount(interval.mean, metric)} [{interval.low:.1f}, {interval.high:.1f}]"


def amount(value: float, metric: Metric) -> str:
    """A cost in words."""
    return f"{value:.1f} % of perplexity" if metric == "perplexity" else f"{value:.1f} points of {named(metric)}"


def named(metric: Metric) -> str:
    """The metric as it is written in sentences."""
    return {"f1": "F1", "mcc": "MCC"}.get(metric, metric)


def spread(interval: Interval) -> str:
    """The mean with its interval, in whole numbers."""
    return f"{interval.mean:.0f} [{interval.low:.0f}, {interval.high:.0f}]"
