"""Recorded updates without a truth: what the update itself proves is known, everything else would be a guess."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.audits.results import Results, Trial
from gradleak.core.text import counted, enumerated
from gradleak.scoring.scale import Scale
from gradleak.verdict.attempts import Cell, cells_of
from gradleak.verdict.clients import client_lines
from gradleak.verdict.model import LEVELS, Level, ReadCounts, Unchecked


def judge_unchecked(results: Sequence[Results]) -> list[Unchecked]:
    """Every attack that has no truth to be compared with, the worst first."""
    judged = [_judged(cell) for cell in cells_of(results) if not cell.results.scored]
    return sorted(judged, key=lambda each: LEVELS.index(each.level))


def _judged(cell: Cell) -> Unchecked:
    trials, scale = cell.results.trials, cell.results.scenario.scale
    read = read_counts(trials)
    level: Level = "critical" if read.certified else "unfinished" if read.unfinished else "unclear"
    return Unchecked(
        scenario=cell.scenario,
        defense=cell.defense,
        attack=cell.attack,
        level=level,
        headline=f"{level.capitalize()}: {_headline(cell.attack, read, scale)}",
        client=client_lines(cell.results.scenario, trials),
        obstacles=list(dict.fromkeys(note for trial in trials for note in trial.reconstruction.notes)),
        **read.model_dump(),
    )


def read_counts(trials: Sequence[Trial]) -> ReadCounts:
    """What was given back in these trials."""
    answers = [trial.reconstruction for trial in trials]
    sentences = [sentence for answer in answers for sentence in answer.sentences]
    certified = sum(sentence.certified for sentence in sentences)
    proved = sum(len(answer.certified_images) for answer in answers)
    # Of images that were taken out only those that were proved are still counted.
    unproved = sum(len(answer.images) - len(answer.certified_images) for answer in answers if answer.images)
    return ReadCounts(
        certified=certified + proved,
        guessed=len(sentences) - certified + unproved,
        tokens=sum(trial.bag_size for trial in trials),
        unfinished=any(trial.status != "completed" for trial in trials),
    )


def read_words(read: ReadCounts, scale: Scale) -> str:
    """The same in words.

    >>> from gradleak.scoring.scale import SCALES
    >>> read_words(ReadCounts(certified=2, guessed=0, tokens=9, unfinished=False), SCALES["text"])
    '2 sentences that the update itself proves and 9 tokens by name'
    """
    each = [
        f"{counted(read.certified, scale.noun)} that the update itself proves" if read.certified else "",
        f"{counted(read.guessed, scale.noun)} that nothing proves" if read.guessed else "",
        f"{counted(read.tokens, 'token')} by name" if read.tokens else "",
    ]
    cut = " before it was cut short" if read.unfinished else ""
    parts = [part for part in each if part]
    return (enumerated(parts) or "nothing") + cut


def _headline(attack: str, read: ReadCounts, scale: Scale) -> str:
    gave = f"{attack} gave back {read_words(read, scale)}"
    if not (read.certified or read.guessed or read.tokens):
        return f"{gave}. That shows no absence of a leak."
    if read.guessed or read.tokens:
        beyond = "of the rest" if read.certified else "of that"
        return f"{gave}. How much {beyond} is right only the truth can tell: give it with --truth."
    return f"{gave}."
