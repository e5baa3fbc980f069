"""Recorded updates without a truth: what the update itself proves is known, everything else would be a guess."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.audits.results import Results
from gradleak.core.text import counted
from gradleak.verdict.attempts import Cell, cells_of
from gradleak.verdict.model import LEVELS, Level, Unchecked


def judge_unchecked(results: Sequence[Results]) -> list[Unchecked]:
    """Every attack that has no truth to be compared with, the worst first."""
    judged = [_judged(cell) for cell in cells_of(results) if not cell.results.scored]
    return sorted(judged, key=lambda each: LEVELS.index(each.level))


def _judged(cell: Cell) -> Unchecked:
    answers = [trial.reconstruction for trial in cell.results.trials]
    sentences = [sentence for answer in answers for sentence in answer.sentences]
    certified = sum(sentence.certified for sentence in sentences)
    guessed = len(sentences) - certified + sum(len(answer.images) for answer in answers)
    tokens = sum(trial.bag_size for trial in cell.results.trials)
    unfinished = any(trial.status != "completed" for trial in cell.results.trials)
    level: Level = "critical" if certified else "unfinished" if unfinished else "unclear"
    return Unchecked(
        scenario=cell.scenario,
        defense=cell.defense,
        attack=cell.attack,
        level=level,
        headline=_headline(level, cell, certified, guessed, tokens),
        unfinished=unfinished,
        certified=certified,
        guessed=guessed,
        tokens=tokens,
        obstacles=list(dict.fromkeys(note for answer in answers for note in answer.notes)),
    )


def _headline(level: Level, cell: Cell, certified: int, guessed: int, tokens: int) -> str:
    noun = cell.results.scenario.scale.noun
    proved = f"{cell.attack} read back {counted(certified, noun)} that the update itself proves"
    guess = f"{counted(guessed, noun)} that nothing proves" if guessed else ""
    named = f"{counted(tokens, 'token')} by name" if tokens else ""
    rest = " and ".join(part for part in (guess, named) if part)
    unchecked = "without the truth nobody can say how much of that is right: give it with --truth"
    cut = ", and was cut short" if any(trial.status != "completed" for trial in cell.results.trials) else ""
    if certified:
        return f"Critical: {proved}{f', beside {rest}' if rest else ''}{cut}."
    if not rest:
        return f"{level.capitalize()}: {cell.attack} read nothing back{cut}. One update shows no absence of a leak."
    return f"{level.capitalize()}: {cell.attack} gave {rest}{cut}; {unchecked}."
