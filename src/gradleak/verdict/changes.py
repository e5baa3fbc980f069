"""Which measured change would have helped: scenarios of the same folder that differ in one setting and leak less.

What was not measured is not mentioned, nor what a change costs where no frontier measured it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradleak.core.text import counted, enumerated
from gradleak.experiments.frontier.advice import verdict as effect
from gradleak.experiments.frontier.points import AttackScore, Point
from gradleak.scoring.interval import Interval
from gradleak.verdict.attempts import Group
from gradleak.verdict.candidates import JUDGED_BY
from gradleak.verdict.model import ScenarioVerdict
from gradleak.verdict.rule import LEAKS, confirms, read_level, sentence_level
from gradleak.verdict.sentences import most_tokens, strongest_of
from gradleak.verdict.settings import Setting, changed_setting, setting_words

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
    if read_level(verdict.attacks) not in LEAKS:
        tried = [
            (setting_words(setting, changed.scenario), other)
            for changed, other in others
            if (setting := _change(group, changed)) and other.candidates is not None
        ]
        return _for_candidates(verdict, tried)
    start = _point(verdict)
    effects = [
        # What a change of the client costs is measured nowhere.
        (setting_words(setting, changed.scenario), _effect(verdict, other, start), other,
         costs.get(changed.defense) if setting == "defenses" else None)
        for changed, other in others
        if (setting := _change(group, changed)) and verdict.strongest in {tried.attack for tried in other.attacks}
    ]  # fmt: skip
    hidden = [(name, other, cost) for name, kind, other, cost in effects if kind == "hidden"]
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
    if any(attack.unfinished for attack in other.attacks):  # what was cut short would have read more
        return "unfinished"
    kind = effect(_point(other), start)
    return "lowered" if kind == "hidden" and other.level in LEAKS else kind


def _for_candidates(verdict: ScenarioVerdict, changes: Sequence[tuple[str, ScenarioVerdict]]) -> str | None:
    """The same where all that leaks is which candidates were in; changes under which nobody asked say nothing."""
    hidden = [name for name, other in changes if other.level not in LEAKS and _none_confirmed(other)]
    if hidden:
        return (
            f"Measured to help: under {enumerated(hidden[:MOST_NAMED])} a server that has candidates does not "
            "clearly confirm any. What that costs was not measured; `gradleak frontier` does."
        )
    ours = _share(verdict)
    lower = [(share, name) for name, other in changes if (share := _share(other)) is not None]
    if ours is not None and lower:
        share, name = min(lower, key=lambda change: change[0].mean)
        if share.high < ours.low:
            return f"Of the measured changes {name} lowers this most, to {share} % of the sentences confirmed."
    return "No measured change clearly lowers this." if changes else None


def _none_confirmed(verdict: ScenarioVerdict) -> bool:
    return verdict.candidates is not None and verdict.candidates.level == "not shown"


def _share(verdict: ScenarioVerdict) -> Interval | None:
    return None if verdict.candidates is None else verdict.candidates.confirmed.at(JUDGED_BY)


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


def _change(group: Group, other: Group) -> Setting | None:
    """The one setting in which the other differs, if it can be chosen. No defence is no help."""
    setting = changed_setting(group.scenario, other.scenario)
    return None if setting == "defenses" and not other.scenario.defenses else setting


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
        status="completed",
    )


def _leak(verdict: ScenarioVerdict) -> str:
    best, named = strongest_of(verdict), most_tokens(verdict.attacks)
    tokens = f" with {named.tokens.recall.mean:.0f} % of the tokens" if named is not None and named.tokens else ""
    candidates = " with candidates confirmed" if confirms(verdict.candidates) else ""
    return best.scale.labelled(best.leak) + tokens + candidates
