"""From results to verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from gradleak.audits.results import Results, Trial
from gradleak.scoring.interval import Interval
from gradleak.scoring.named import all_named
from gradleak.scoring.pieces import total
from gradleak.scoring.scale import Scale
from gradleak.verdict.attempts import Attempt, Group, Missing, group_attempts
from gradleak.verdict.candidates import judge_candidates, not_tried
from gradleak.verdict.ceilings import judge_ceilings
from gradleak.verdict.changes import helpful_change
from gradleak.verdict.clients import client_lines
from gradleak.verdict.diagnosis import diagnose
from gradleak.verdict.model import LEVELS, AttackVerdict, Leaked, ScenarioVerdict, TokensRead, Verdict
from gradleak.verdict.rule import level, strongest, token_level
from gradleak.verdict.sentences import CAVEAT, headline
from gradleak.verdict.unchecked import judge_unchecked
from gradleak.verdict.untried import untried_changes


def judge(
    results: Sequence[Results], missing: Sequence[Missing] = (), costs: Mapping[str, Interval] | None = None
) -> Verdict:
    """The verdict on every scenario among these results, the worst first.

    `missing` are attempts that have no result; `costs` is what defences cost in a model's quality, by their name,
    where that was measured.
    """
    groups = group_attempts([each for each in results if each.scored])
    unchecked = judge_unchecked(results)
    judged = [
        (each, judge_group(each, [attempt.name for attempt in missing if attempt.on(each.scenario)]))
        for each in groups
    ]
    with_changes = [
        verdict.model_copy(
            update={
                "change": helpful_change(each, verdict, judged, costs or {}),
                "untried": untried_changes(each, verdict, judged),
            }
        )
        for each, verdict in judged
    ]
    with_changes.sort(key=lambda verdict: (LEVELS.index(verdict.level), -verdict.attacks[0].leak.mean))
    levels = [*(each.level for each in with_changes), *(each.level for each in unchecked)]
    return Verdict(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        level=min(levels, key=LEVELS.index, default="unfinished"),
        scenarios=with_changes,
        unchecked=unchecked,
        missing=[attempt.name for attempt in missing],
        caveat=CAVEAT,
    )


def judge_group(group: Group, missing: Sequence[str] = ()) -> ScenarioVerdict:
    """All attempts on one scenario."""
    attacks = sorted(map(judge_attempt, group.attempts), key=lambda verdict: -verdict.leak.mean)
    candidates = judge_candidates(group)
    reached, best = level(attacks, len(missing), candidates), strongest(attacks)
    return ScenarioVerdict(
        scenario=group.name,
        defense=group.defense,
        level=reached,
        headline=headline(reached, best, attacks, len(missing), candidates),
        strongest=best.attack,
        attacks=attacks,
        candidates=candidates,
        ceilings=judge_ceilings(group.scenario),
        not_tried=not_tried(group),
        missing=list(missing),
        client=client_lines(group.scenario, group.attempts[0].trials),
    )


def judge_attempt(attempt: Attempt) -> AttackVerdict:
    """One attack: its score beside the control, what it read, and what stood in its way."""
    scale = attempt.scenario.scale
    return AttackVerdict(
        attack=attempt.attack,
        trials=len(attempt.trials),
        unfinished=attempt.unfinished,
        measure=scale.metric,
        leak=attempt.interval(scale.metric),
        control=attempt.control(scale.metric),
        whole=attempt.interval(scale.whole),
        control_whole=attempt.control(scale.whole).mean,
        tokens=_tokens(attempt),
        leaked=_leaked(attempt.trials, scale),
        obstacles=diagnose(attempt),
    )


def _tokens(attempt: Attempt) -> TokensRead | None:
    """The tokens it named, beside those that guessing would; None if it looks for none."""
    recall, precision = attempt.inferred("bag recall"), attempt.inferred("bag precision")
    if recall is None or precision is None:
        return None
    guessing = attempt.guessed(lambda named: named.recall), attempt.guessed(lambda named: named.precision)
    known = None if guessing[0] is None or guessing[1] is None else (guessing[0], guessing[1])
    looked = [trial for trial in attempt.trials if "bag recall" in trial.found]
    return TokensRead(
        level=token_level(recall, precision, known, len(looked), attempt.unfinished),
        recall=recall,
        precision=precision,
        control_recall=guessing[0],
        control_precision=guessing[1],
        named=all_named([trial.named for trial in looked]),
        guessed=all_named([trial.control_named for trial in looked]),
    )


def _leaked(trials: Sequence[Trial], scale: Scale) -> Leaked:
    pairs = [pair for trial in trials for pair in trial.pairs]
    whole = [pair for pair in pairs if scale.is_whole(pair.scores)]
    return Leaked(
        sentences=len(pairs),
        whole=len(whole),
        certified=sum(pair.certified for pair in whole),
        pieces=total([pair.pieces for pair in pairs]),
        guessed=total([trial.control_pieces for trial in trials]),
    )
