"""Which measured change would have helped: scenarios of the same folder that differ in one setting and leak less.

What was not measured is not mentioned, nor what a change costs where no frontier measured it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradleak.core.text import counted, enumerated
from gradleak.experiments.frontier.advice import verdict as effect
from gradleak.experiments.frontier.points import AttackScore, Point
from gradleak.scoring.interval import Interval
from gradleak.verdict.attempts import Group, decisive
from gradleak.verdict.model import ScenarioVerdict
from gradleak.verdict.rule import LEAKS, sentence_level
from gradleak.verdict.sentences import most_tokens, strongest_of

# The settings that whoever runs the training chooses.
CHOSEN = ("defenses", "batch_size", "client")
MOST_NAMED = 3


def helpful_change(
    group: Group,
    verdict: ScenarioVerdict,
    others: Sequence[tuple[Group, ScenarioVerdict]],
    costs: Mapping[str, Interval],
) -> str | None:
    """A sentence about the measured changes of a scenario that leaks; None if it does not, or none was measured."""
    if verdict.level not in LEAKS:
        return None
    start = _point(verdict)
    effects = [
        (_change(group, changed), _effect(verdict, other, start), other, changed.defense)
        for changed, other in others
        if _is_change(group, changed) and verdict.strongest in {tried.attack for tried in other.attacks}
    ]
    hidden = [(name, other, costs.get(defense)) for name, kind, other, defense in effects if kind == "hidden"]
    shown = [change for change in hidden if change[1].level == "not shown"]
    lowered = [(name, other) for name, kind, other, _ in effects if kind == "lowered"]
    if shown:
        return _hidden(shown)
    if hidden:
        name, other, _ = min(hidden, key=lambda change: strongest_of(change[1]).leak.mean)
        return (
            f"Of the measured changes {name} looks best ({_leak(other)} over "
            f"{counted(strongest_of(other).trials, 'trial')}), which is not enough to rely on: repeat it with more."
        )
    if lowered:
        name, other = min(lowered, key=lambda pair: strongest_of(pair[1]).leak.mean)
        return (
            f"No measured change brings this down to guessing; {name} lowers it most, from "
            f"{_leak(verdict)} to {_leak(other)}."
        )
    if any(kind == "unchanged" for _, kind, _, _ in effects):
        return f"None of the {len(effects)} measured changes clearly lowers this." if len(effects) > 1 else (
            f"The one measured change, {effects[0][0]}, does not clearly lower this."
        )  # fmt: skip
    return None


def _effect(verdict: ScenarioVerdict, other: ScenarioVerdict, start: Point) -> str:
    """What a change does to a leak; one at which tokens are still read hides nothing."""
    if sentence_level(verdict.attacks) not in LEAKS:  # the tokens alone are what leaks
        return "unchanged" if other.level in LEAKS else "hidden"
    kind = effect(_point(other), start)
    return "lowered" if kind == "hidden" and other.level in LEAKS else kind


def _hidden(hidden: Sequence[tuple[str, ScenarioVerdict, Interval | None]]) -> str:
    """Changes that bring the leak down to guessing: the cheapest if costs are known, else some of them."""
    priced = [(cost, name, other) for name, other, cost in hidden if cost is not None]
    if priced:
        cost, name, other = min(priced, key=lambda change: change[0].mean)
        among = f" (the cheapest of {len(priced)} whose cost was measured)" if len(priced) > 1 else ""
        return (
            f"Measured to help: {name} brings the best attack down to {_leak(other)}, not clearly above "
            f"guessing, for {cost.mean:.1f} [{cost.low:.1f}, {cost.high:.1f}] of the model's quality{among}."
        )
    named = [f"{name} ({_leak(other)})" for name, other, _ in hidden[:MOST_NAMED]]
    more = f" and {len(hidden) - MOST_NAMED} more" if len(hidden) > MOST_NAMED else ""
    return (
        f"Measured to bring the best attack down to guessing: {enumerated(named)}{more}. What they cost was not "
        "measured; `gradleak frontier` does."
    )


def _is_change(group: Group, other: Group) -> bool:
    """Whether the two differ in a single setting, and in one that can be chosen. No defence is no help."""
    ours, theirs = decisive(group.scenario), decisive(other.scenario)
    differ = {key for key in ours if ours[key] != theirs[key]}
    return len(differ) == 1 and differ <= set(CHOSEN) and not (differ == {"defenses"} and not other.scenario.defenses)


def _change(group: Group, other: Group) -> str:
    if group.scenario.defenses != other.scenario.defenses:
        return other.defense
    if group.scenario.batch_size != other.scenario.batch_size:
        return f"batches of {other.scenario.batch_size}"
    return f"client {other.scenario.client}"


def _point(verdict: ScenarioVerdict) -> Point:
    """A verdict in the form in which the advice of frontiers compares settings."""
    return Point(
        label=verdict.defense,
        defenses=[],
        attacks={
            attack.attack: AttackScore(leak=attack.leak, control=attack.control, trials=attack.trials)
            for attack in verdict.attacks
        },
        utility=None,
        cost=None,
        status="unfinished" if any(attack.unfinished for attack in verdict.attacks) else "completed",
    )


def _leak(verdict: ScenarioVerdict) -> str:
    best, named = strongest_of(verdict), most_tokens(verdict.attacks)
    tokens = f" with {named.tokens.recall.mean:.0f} % of the tokens" if named is not None and named.tokens else ""
    return best.scale.labelled(best.leak) + tokens
