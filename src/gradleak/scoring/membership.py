"""Candidates against the truth: how well a server with a list of sentences tells those that were in from the rest.

Every trial asks `contains` about the true sentences and others of the same data in one shuffled list. Here the scores
meet the truth: area under the curve, and how many of the true sentences are confirmed at a rate of false alarms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from gradleak.attacks.contains.result import LEVELS, Candidate
from gradleak.core.budget import StopReason
from gradleak.core.text import counted
from gradleak.scoring.interval import Interval, auc_interval, share_interval, widened

# Where public sentences came from.
Public = Literal["same data", "wikitext"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KnownCandidate(Candidate):
    """A candidate of which the audit knows whether it was in; the server was not told."""

    member: bool


class TrialCandidates(_Model):
    """One update: the list of candidates that the server had, and what it made of each."""

    seed: int = Field(description="by which the others and the list's order were drawn")
    status: StopReason = Field(description="anything but completed: the time ended before all were looked at")
    problem: str | None = Field(default=None, description="why this update tells nothing of candidates")
    public: Public = Field(default="same data", description="where the server's public sentences came from")
    references: int = Field(default=0, description="public sentences that its own false-alarm rates were counted on")
    candidates: list[KnownCandidate] = Field(description="in the order in which the server had them")
    seconds: float = 0.0

    def scores(self, member: bool) -> list[float]:
        """Of the true sentences, or of the others, as far as they were looked at."""
        return [each.score for each in self.candidates if each.member == member and each.score is not None]


class Recall(_Model):
    """How many of the true sentences are confirmed at a rate of false alarms."""

    level: float = Field(description="the rate of false alarms, from 0 to 1")
    share: Interval | None = Field(description="in percent; null if there are too few others to show so low a rate")
    false_alarms: Interval | None = Field(description="percent of the others that may pass with them; null likewise")


class Confirmed(_Model):
    """What a server that has candidates confirms, over all trials."""

    asked: int = Field(description="others per trial that were asked for")
    trials: int = Field(description="trials whose candidates were looked at")
    without: int = Field(description="trials without, for lack of time or since the update tells nothing of them")
    members: int = Field(description="true sentences that were looked at")
    others: int = Field(description="sentences that were not in")
    public: list[Public] = Field(description="where the server's public sentences came from")
    auc: Interval | None = Field(description="from 0 to 1: how often a true sentence scores above another one")
    recall: list[Recall]
    own_recall: Interval | None = Field(
        default=None, description="percent of the true sentences at 1 % or less by the server's own rates"
    )
    own_false_alarms: Interval | None = Field(default=None, description="the same of the others; 1 is expected")
    notes: list[str] = Field(default_factory=list)

    def at(self, level: float) -> Interval | None:
        """Percent of the true sentences confirmed at this rate of false alarms; None if that cannot be shown."""
        return next((each.share for each in self.recall if each.level == level), None)


def summarise(trials: Sequence[TrialCandidates | None], asked: int) -> Confirmed:
    """All trials together; None stands for one that there was no time for.

    Scores of all others are one distribution, in which every true sentence has its rank. Intervals are those of
    single sentences (Clopper and Pearson's, of the area Hanley and McNeil's), or Student's over trials if wider.
    """
    looked = [trial for trial in trials if trial is not None and trial.scores(member=True)]
    outside = np.sort([score for trial in looked for score in trial.scores(member=False)])
    inside = [np.asarray(trial.scores(member=True)) for trial in looked]
    known = bool(len(outside) and inside)
    rated = [trial for trial in looked if trial.references + 1 >= 1 / LEVELS[0]]
    return Confirmed(
        asked=asked,
        trials=len(looked),
        without=len(trials) - len(looked),
        members=sum(map(len, inside)),
        others=len(outside),
        public=list(dict.fromkeys(trial.public for trial in looked)),
        auc=_auc(inside, outside) if known else None,
        recall=[_recall(inside if known else [], outside, level) for level in LEVELS],
        own_recall=_own(rated, member=True),
        own_false_alarms=_own(rated, member=False),
        notes=_notes(trials, looked, asked),
    )


def above(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """For every score, the share of the others, in order, that lie below it; equal ones count half.

    >>> above(np.array([2.0, 5.0]), np.array([1.0, 2.0, 3.0, 4.0])).tolist()
    [0.375, 1.0]
    """
    low, high = np.searchsorted(outside, inside, "left"), np.searchsorted(outside, inside, "right")
    return (low + high) / (2 * len(outside))


def false_alarm_rates(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """For every score, how often others score as high, never below what their number can show.

    >>> false_alarm_rates(np.array([5.0, 1.5]), np.array([1.0, 2.0, 3.0])).tolist()
    [0.25, 0.75]
    """
    return (len(outside) - np.searchsorted(outside, inside, "left") + 1) / (len(outside) + 1)


def needed(level: float) -> int:
    """How many others it takes to show a rate of false alarms so low.

    >>> needed(0.01), needed(0.001)
    (99, 999)
    """
    return round(1 / level) - 1


def _recall(inside: Sequence[np.ndarray], outside: np.ndarray, level: float) -> Recall:
    if not inside or len(outside) < needed(level):
        return Recall(level=level, share=None, false_alarms=None)
    passing = int((false_alarm_rates(outside, outside) <= level).sum())
    return Recall(
        level=level,
        share=_share([(false_alarm_rates(own, outside) <= level).tolist() for own in inside]),
        false_alarms=share_interval(passing, len(outside)),
    )


def _auc(inside: Sequence[np.ndarray], outside: np.ndarray) -> Interval:
    ranks = [above(own, outside) for own in inside]
    whole = np.concatenate(ranks)
    alone = auc_interval(float(whole.mean()), len(whole), len(outside))
    return widened(alone, len(whole), [float(own.mean()) for own in ranks], 0.0, 1.0)


def _share(trials: Sequence[Sequence[bool]]) -> Interval:
    """How many of all, in percent."""
    sentences = sum(map(len, trials))
    alone = share_interval(sum(map(sum, trials)), sentences)
    return widened(alone, sentences, [100 * sum(own) / len(own) for own in trials], 0.0, 100.0)


def _own(trials: Sequence[TrialCandidates], member: bool) -> Interval | None:
    """Confirmed by the rates that the server itself has from public text."""

    every = [[each.false_alarm_rate for each in trial.candidates if each.member == member] for trial in trials]
    told = [[rate <= LEVELS[0] for rate in own if rate is not None] for own in every]
    some = [own for own in told if own]
    return _share(some) if some else None


def _notes(trials: Sequence[TrialCandidates | None], looked: Sequence[TrialCandidates], asked: int) -> list[str]:
    """What is to be known of the lists, each thing once."""
    notes = []
    fewest = min((sum(not each.member for each in trial.candidates) for trial in looked), default=asked)
    if fewest < asked:
        notes.append(f"The data has {fewest} other sentences for a list, not the {asked} that were asked for.")
    if any(trial.public == "wikitext" for trial in looked):
        notes.append("The data has too few rows for public text of the same kind; the server had WikiText-2 instead.")
    cut = sum(trial.status != "completed" for trial in looked)
    if cut:
        notes.append(f"In {counted(cut, 'trial')} the time ended before all candidates were looked at.")
    late = sum(trial is None or (trial.problem is None and not trial.scores(member=True)) for trial in trials)
    if late:
        notes.append(f"For the candidates of {counted(late, 'trial')} there was no time.")
    problems = _counted([trial.problem for trial in trials if trial is not None and trial.problem is not None])
    return notes + [f"No candidates were looked at in {counted(times, 'trial')}: {why}." for why, times in problems]


def _counted(texts: Sequence[str]) -> list[tuple[str, int]]:
    return [(text, texts.count(text)) for text in dict.fromkeys(texts)]
