"""Two runs beside each other: what the second reads more or less of, attack by attack and sentence by sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.audits.results import Results
from gradleak.core.errors import GradleakError
from gradleak.core.files import write_text
from gradleak.scoring.interval import Interval, student, welch
from gradleak.verdict.attempts import Attempt, attempts_of, cells_of, decisive
from gradleak.verdict.scales import TEXT

FILE = "compare.json"
Outcome = Literal["reads more", "reads less", "no clear change"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SentenceChange(_Model):
    """One true sentence and what either run read of it."""

    truth: str
    first: str
    second: str
    change: float = Field(description="points of ROUGE-L")


class Difference(_Model):
    """One attack on one scenario in both runs."""

    scenario: str
    defense: str
    attack: str
    first: Interval = Field(description="ROUGE-L in the first run")
    second: Interval
    trials: tuple[int, int]
    paired: bool = Field(description="whether both attacked the same batches, which makes the interval narrower")
    change: Interval = Field(description="second minus first, 95 % interval")
    outcome: Outcome
    settings: dict[str, tuple[str, str]] = Field(description="what differs between the two beside what was drawn")
    sentences: list[SentenceChange] = Field(description="of paired batches, those that changed, the most first")


class Comparison(_Model):
    """What two runs have in common, and what only one of them has."""

    schema_version: Literal[1] = 1
    first: str
    second: str
    differences: list[Difference]
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
    return Comparison(
        first=names[0],
        second=names[1],
        differences=[difference(ours[key], theirs[key]) for key in common],
        only_first=[_name(own) for key, own in ours.items() if key not in theirs],
        only_second=[_name(own) for key, own in theirs.items() if key not in ours],
    )


def difference(one: Attempt, other: Attempt) -> Difference:
    """One attack in both runs; trial by trial where both attacked the same batches."""
    by_truth = {tuple(trial.truth): trial for trial in other.trials}
    both = [(trial, by_truth[tuple(trial.truth)]) for trial in one.trials if tuple(trial.truth) in by_truth]
    paired = len(both) == len(one.trials) == len(other.trials)
    if paired:
        change = student([b.scores[TEXT.metric] - a.scores[TEXT.metric] for a, b in both], -100.0, 100.0)
    else:
        change = welch([t.scores[TEXT.metric] for t in one.trials], [t.scores[TEXT.metric] for t in other.trials])
    sentences = [
        SentenceChange(
            truth=ours.truth,
            first=ours.reconstruction,
            second=theirs.reconstruction,
            change=theirs.scores[TEXT.metric] - ours.scores[TEXT.metric],
        )
        for a, b in (both if paired else [])
        for ours, theirs in zip(a.pairs, b.pairs, strict=True)
    ]
    return Difference(
        scenario=one.place,
        defense=one.defense,
        attack=one.attack,
        first=one.interval(TEXT.metric),
        second=other.interval(TEXT.metric),
        trials=(len(one.trials), len(other.trials)),
        paired=paired,
        change=change,
        outcome="reads more" if change.low > 0 else "reads less" if change.high < 0 else "no clear change",
        settings=_settings(one, other),
        sentences=sorted((s for s in sentences if s.change), key=lambda s: -abs(s.change)),
    )


def _name(one: Attempt) -> str:
    return f"{one.attack} on {one.place}, defence {one.defense}"


def _settings(one: Attempt, other: Attempt) -> dict[str, tuple[str, str]]:
    ours = {**decisive(one.scenario), "attack": one.info.name, **one.info.options}
    theirs = {**decisive(other.scenario), "attack": other.info.name, **other.info.options}
    keys = [key for key in dict.fromkeys((*ours, *theirs)) if ours.get(key) != theirs.get(key)]
    return {key: (str(ours.get(key)), str(theirs.get(key))) for key in keys}
