"""Two runs beside each other: what the second reads more or less of, by attack and by sentence or image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.audits.results import Results, Trial
from gradleak.core.errors import GradleakError
from gradleak.core.files import write_text
from gradleak.core.text import counted
from gradleak.scoring.interval import Interval, student, welch
from gradleak.scoring.scale import Scale, scale_by
from gradleak.verdict.attempts import Attempt, attempts_of, cells_of, decisive
from gradleak.verdict.model import ReadCounts
from gradleak.verdict.unchecked import read_counts, read_words

FILE = "compare.json"
COMPLETED = "completed"
Outcome = Literal["reads more", "reads less", "no clear change"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SentenceChange(_Model):
    """One true sentence, or image, and what either run read of it."""

    truth: str
    first: str
    second: str
    change: float = Field(description="of the measure, second minus first")


class Difference(_Model):
    """One attack on one scenario in both runs."""

    scenario: str
    defense: str
    attack: str
    measure: str = Field(default="rougeL", description="the metric that is compared: rougeL, of images psnr")
    first: Interval = Field(description="its mean in the first run")
    second: Interval
    trials: tuple[int, int]
    ended: tuple[str, str] = Field(default=(COMPLETED, COMPLETED), description="how either run came to its end")
    paired: bool = Field(description="whether both attacked the same batches, which makes the interval narrower")
    change: Interval = Field(description="second minus first, 95 % interval")
    outcome: Outcome
    settings: dict[str, tuple[str, str]] = Field(description="what differs between the two beside what was drawn")
    sentences: list[SentenceChange] = Field(description="of paired batches, those that changed, the most first")

    @property
    def scale(self) -> Scale:
        return scale_by(self.measure)

    @property
    def cut_short(self) -> list[str]:
        """What is to be said of runs that did not come to their end."""
        runs = zip(("first", "second"), self.ended, strict=True)
        return [f"{self.attack} in the {name} run: {ended}" for name, ended in runs if ended != COMPLETED]


class UncheckedDifference(_Model):
    """One attack in both runs where a truth is missing: nothing tells which of them read more that is right."""

    scenario: str
    defense: str
    attack: str
    first: ReadCounts
    second: ReadCounts
    alike: int | None = Field(description="sentences that both gave back; null where texts are masked")
    words: str


class Comparison(_Model):
    """What two runs have in common, and what only one of them has."""

    schema_version: Literal[1] = 1
    first: str
    second: str
    differences: list[Difference]
    unchecked: list[UncheckedDifference] = Field(default_factory=list, description="those that have no truth")
    only_first: list[str]
    only_second: list[str]

    def save(self, folder: Path) -> Path:
        """Write `compare.json`, readable by its owner only."""
        return write_text(folder / FILE, self.model_dump_json(indent=2) + "\n")


def compare(first: Sequence[Results], second: Sequence[Results], names: tuple[str, str]) -> Comparison:
    """The second run against the first. Two single attempts are compared whatever differs between them."""
    cells = cells_of([*first, *second])  # named together, so that the names fit both runs
    ours, theirs = attempts_of(cells[: len(first)]), attempts_of(cells[len(first) :])
    if len(ours) == len(theirs) == 1:
        theirs = dict(zip(ours, theirs.values(), strict=True))
    common = [key for key in ours if key in theirs]
    if not common:
        raise GradleakError(f"{names[0]} and {names[1]} have no attack on the same scenario in common")
    checked = {key for key in common if _scored(ours[key]) and _scored(theirs[key])}
    return Comparison(
        first=names[0],
        second=names[1],
        differences=[difference(ours[key], theirs[key]) for key in common if key in checked],
        unchecked=[_unchecked(ours[key], theirs[key]) for key in common if key not in checked],
        only_first=[_name(attempt) for key, attempt in ours.items() if key not in theirs],
        only_second=[_name(attempt) for key, attempt in theirs.items() if key not in ours],
    )


def difference(first: Attempt, second: Attempt) -> Difference:
    """One attack in both runs; trial by trial where both attacked the same batches."""
    scale = first.scenario.scale
    if second.scenario.scale != scale:
        raise GradleakError(f"{_name(first)} and {_name(second)} have nothing in common to compare: text and images")
    both = _same_batches(first, second)
    if both:
        changes = [b.scores[scale.metric] - a.scores[scale.metric] for a, b in both]
        change = student(changes, -scale.width, scale.width)
    else:
        ours, theirs = ([trial.scores[scale.metric] for trial in run.trials] for run in (first, second))
        change = welch(ours, theirs, scale.width)
    sentences = [
        SentenceChange(
            truth=ours.truth,
            first=ours.reconstruction,
            second=theirs.reconstruction,
            change=theirs.scores[scale.metric] - ours.scores[scale.metric],
        )
        for a, b in both
        for ours, theirs in zip(a.pairs, b.pairs, strict=True)
    ]
    return Difference(
        scenario=first.place,
        defense=first.defense,
        attack=first.attack,
        measure=scale.metric,
        first=first.interval(scale.metric),
        second=second.interval(scale.metric),
        trials=(len(first.trials), len(second.trials)),
        ended=(_ended(first), _ended(second)),
        paired=bool(both),
        change=change,
        outcome="reads more" if change.low > 0 else "reads less" if change.high < 0 else "no clear change",
        settings=_settings(first, second),
        sentences=sorted((s for s in sentences if s.change), key=lambda s: -abs(s.change)),
    )


def _scored(attempt: Attempt) -> bool:
    return all(audit.scored for audit in attempt.audits)


def _unchecked(first: Attempt, second: Attempt) -> UncheckedDifference:
    """How much each of them gave back, and how much of it is the same."""
    ours, theirs = read_counts(first.trials), read_counts(second.trials)
    masked = any(results.redacted for results in (*first.audits, *second.audits))
    texts = [
        Counter(sentence.text for trial in run.trials for sentence in trial.reconstruction.sentences)
        for run in (first, second)
    ]
    alike = None if masked else (texts[0] & texts[1]).total()
    same = f"; {counted(alike, 'sentence')} the same" if alike else ""
    scale = first.scenario.scale
    words = f"{read_words(ours, scale)} in the first run, {read_words(theirs, scale)} in the second{same}"
    return UncheckedDifference(
        scenario=first.place,
        defense=first.defense,
        attack=first.attack,
        first=ours,
        second=theirs,
        alike=alike,
        words=f"{first.attack}: {words}. Without a truth of both nothing tells which read more that is right.",
    )


def _same_batches(first: Attempt, second: Attempt) -> list[tuple[Trial, Trial]]:
    """The trials of both on the same batch, if each has its counterpart; masked batches are told by their seeds."""
    masked = any(results.redacted for results in (*first.audits, *second.audits))

    def batch(trial: Trial) -> tuple[object, ...]:
        return (trial.seed, trial.index, *trial.truth) if masked else tuple(trial.truth)

    counterparts = {batch(trial): trial for trial in second.trials}
    both = [(trial, counterparts[batch(trial)]) for trial in first.trials if batch(trial) in counterparts]
    return both if len(both) == len(first.trials) == len(second.trials) else []


def _ended(attempt: Attempt) -> str:
    """Whether all trials that were asked for came to their end; else how many did not, and why."""
    asked = sum(max(audit.scenario.trials, len(audit.trials)) for audit in attempt.audits)
    cut = attempt.unfinished + asked - len(attempt.trials)
    ways = [audit.status for audit in attempt.audits] + [trial.status for trial in attempt.trials]
    if not cut and set(ways) <= {COMPLETED}:
        return COMPLETED
    why = ", ".join(dict.fromkeys(way for way in ways if way != COMPLETED)) or "not begun"
    return f"{cut} of {counted(asked, 'trial')} cut short ({why})"


def _name(attempt: Attempt) -> str:
    return f"{attempt.attack} on {attempt.place}, defence {attempt.defense}"


def _settings(first: Attempt, second: Attempt) -> dict[str, tuple[str, str]]:
    ours = {**decisive(first.scenario), "attack": first.info.name, **first.info.options}
    theirs = {**decisive(second.scenario), "attack": second.info.name, **second.info.options}
    keys = [key for key in dict.fromkeys((*ours, *theirs)) if ours.get(key) != theirs.get(key)]
    return {key: (str(ours.get(key)), str(theirs.get(key))) for key in keys}
