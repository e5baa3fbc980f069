"""One point a defence setting: what attacks read back under it, and how good the model gets with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.audits.results import Results, Trial
from gradleak.audits.trials import intervals
from gradleak.core.text import counted
from gradleak.experiments.frontier.pareto import front
from gradleak.experiments.utility import Metric, SettingUtility
from gradleak.scoring.interval import Interval, student
from gradleak.scoring.metrics import label_of

# Points of accuracy by which seeds count as spread at least: a row of the 200 that are held out by default.
LEAST_SPREAD = 0.5


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AttackScore(_Model):
    """One attack: what it read in the trials that ran to their end, beside what guessing reads."""

    measure: str = Field("rougeL", description="the metric of leak and control")
    leak: Interval
    control: Interval
    trials: int
    planned: int | None = Field(None, description="trials that were asked for, while not all of them are finished")

    @property
    def label(self) -> str:
        """The measure in words."""
        return label_of(self.measure)


class Point(_Model):
    """A defence setting with all that was measured of it."""

    label: str
    defenses: list[str]
    attacks: dict[str, AttackScore | None] = Field(
        description="every listed attack; null if no trial of it is finished"
    )
    utility: Interval | None = Field(description="null if no seed is finished")
    cost: Interval | None = Field(
        description="what the defence costs against none, seed by seed: points, or percent of perplexity"
    )
    status: Literal["completed", "unfinished"] = Field(
        description="unfinished: an attack or a seed is missing, so it counts for nothing"
    )
    missing: list[str] = Field([], description="what is still to be measured, in words")
    on_front: bool = Field(False, description="no completed setting both leaks less and learns better")

    @property
    def best(self) -> str | None:
        """The attack that read most."""
        done = {name: score.leak.mean for name, score in self.attacks.items() if score is not None}
        return max(done, key=lambda name: done[name]) if done else None

    @property
    def score(self) -> AttackScore | None:
        """What that attack reached."""
        return None if self.best is None else self.attacks[self.best]


def score_of(results: Results, measure: str) -> AttackScore:
    """Of an attack that ran to its end."""
    leak, control = results.summary[measure], results.control[measure]
    return AttackScore(measure=measure, leak=leak, control=control, trials=len(results.trials))


def score_so_far(trials: Sequence[Trial], planned: int, measure: str) -> AttackScore | None:
    """Of an attack that was stopped, by the trials that it finished; None if there is none."""
    if not trials:
        return None
    leak = intervals([trial.scores for trial in trials])[measure]
    control = intervals([trial.control_scores for trial in trials])[measure]
    return AttackScore(measure=measure, leak=leak, control=control, trials=len(trials), planned=planned)


def make_point(
    scores: Mapping[str, AttackScore | None],
    measured: SettingUtility,
    plain: SettingUtility,
    metric: Metric,
    seeds: int,
) -> Point:
    """Join what attacks read under a setting with what the model learned; `plain` is the undefended training."""
    missing = [part for name, score in scores.items() if (part := _open_trials(name, score))]
    if left := seeds - len(measured.by_seed):
        missing.append(f"{left} of {counted(seeds, 'training')}")
    return Point(
        label=measured.setting,
        defenses=measured.defenses,
        attacks=dict(scores),
        utility=measured.metrics.get(metric),
        cost=cost(measured, plain, metric),
        status="unfinished" if missing else "completed",
        missing=missing,
    )


def _open_trials(name: str, score: AttackScore | None) -> str | None:
    if score is None:
        return f"all trials of {name}"
    return None if score.planned is None else f"{score.planned - score.trials} of {score.planned} trials of {name}"


def cost(measured: SettingUtility, plain: SettingUtility, metric: Metric) -> Interval | None:
    """Points of the metric lost against no defence, or by how many percent perplexity grows.

    The same seed trains on the same clients, so the differences are taken seed by seed. Seeds are few and the advice
    hangs on this interval, so it is Student's, and two seeds that agree to a test row do not settle it.
    """
    pairs = [
        (plain.by_seed[seed][metric], values[metric])
        for seed, values in measured.by_seed.items()
        if seed in plain.by_seed
    ]
    if not pairs:
        return None
    if measured.setting == plain.setting:
        return Interval(mean=0.0, low=0.0, high=0.0)
    if metric == "perplexity":
        return student([100 * (ours / theirs - 1) for theirs, ours in pairs], -100.0, 1e6)
    most = 200.0 if metric == "mcc" else 100.0  # the correlation reaches from -100 to 100
    return student([theirs - ours for theirs, ours in pairs], -most, most, least=LEAST_SPREAD)


def mark_front(points: Sequence[Point], metric: Metric) -> list[Point]:
    """The same points, those on the Pareto front marked; unfinished ones neither join nor push others out."""
    sign = 1.0 if metric == "perplexity" else -1.0
    numbers, badness = [], []
    for number, point in enumerate(points):
        if point.status == "completed" and point.score is not None and point.utility is not None:
            numbers.append(number)
            badness.append((point.score.leak.mean, sign * point.utility.mean))
    best = {numbers[i] for i in front(badness)}
    return [point.model_copy(update={"on_front": number in best}) for number, point in enumerate(points)]
