"""Candidates in the terminal, and those of audits on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from gradleak.attacks.contains.result import LEVELS, Candidate, Containment
from gradleak.audits.results import Results
from gradleak.core.console import SafeConsole
from gradleak.core.privacy import private
from gradleak.core.text import counted
from gradleak.scoring.membership import needed
from gradleak.verdict.attempts import cells_of

# Candidates that the table shows; the file has all.
SHOWN = 30
# Characters of a candidate that the table shows.
WIDTH = 60
# True sentences of an audit that the page shows.
ON_PAGE = 100


def print_containment(found: Containment, console: SafeConsole) -> None:
    """The candidates with most behind them, how many are confirmed, and what that does not say."""
    table = Table(title=f"{counted(len(found.candidates), 'candidate')}, the likeliest first", title_justify="left")
    table.add_column("candidate")
    for heading in ("score", "likelihood ratio", "false-alarm rate"):
        table.add_column(heading, justify="right", no_wrap=True)
    ordered = sorted(found.candidates, key=lambda each: -(each.score if each.score is not None else -1e9))
    for each in ordered[:SHOWN]:
        table.add_row(private(each.text[:WIDTH]), *_numbers(each))
    console.print(table)
    for line in summary(found):
        console.print(line)


def summary(found: Containment) -> list[str]:
    """How many are confirmed at every level, and how to read it.

    >>> found = Containment(model="m", client="fedsgd", candidates=[], references=99, public="given")
    >>> summary(found)[1]
    'Confirmed at 0.1 % false alarms: cannot be shown with 99 public sentences; take 999 (--references).'
    """
    lines = []
    looked = sum(each.score is not None for each in found.candidates)
    for level in LEVELS:
        start = f"Confirmed at {100 * level:g} % false alarms: "
        if found.can_show(level):
            expected = f"{level * looked:.1f}"
            lines.append(f"{start}{found.confirmed(level)} of {looked} (by chance about {expected} if none was in).")
        else:
            lines.append(
                f"{start}cannot be shown with {counted(found.references, 'public sentence')}; take "
                f"{round(1 / level) - 1} (--references)."
            )
    if looked < len(found.candidates):
        lines.append(f"{found.status}: {len(found.candidates) - looked} candidates were not looked at.")
    lines += found.notes
    lines.append("Each rate is of one candidate by itself. A candidate that is not confirmed may have been in.")
    return lines


@dataclass(frozen=True)
class ConfirmedTable:
    """What a server that has candidates confirms in one audit, as the page shows it."""

    title: str
    lines: list[tuple[str, str, str]]
    sentences: list[tuple[str, str, str]]
    more: int


def confirmed_tables(results: Sequence[Results]) -> list[ConfirmedTable]:
    """One for every audit that asked: rates with what they confirm, and the true sentences, the surest first."""
    return [
        _confirmed_table(f"{cell.attack} on {cell.scenario}, defence {cell.defense}", cell.results)
        for cell in cells_of(results)
        if cell.results.confirmed is not None and cell.results.confirmed.members
    ]


def _confirmed_table(title: str, results: Results) -> ConfirmedTable:
    confirmed = results.confirmed
    assert confirmed is not None
    lines = [
        (
            f"{100 * each.level:g} %",
            f"too few: {needed(each.level):,} are needed"
            if each.false_alarms is None
            else f"{each.false_alarms:.2g} %",
            "–" if each.share is None else f"{each.share} %",
        )
        for each in confirmed.recall
    ]
    true = [
        each
        for trial in results.trials
        if trial.candidates is not None
        for each in trial.candidates.candidates
        if each.member
    ]
    true.sort(key=lambda each: -(each.score if each.score is not None else -1e9))
    sentences = [(each.text, _numbers(each)[0], _numbers(each)[2]) for each in true]
    return ConfirmedTable(title, lines, sentences[:ON_PAGE], len(sentences) - len(sentences[:ON_PAGE]))


def _numbers(each: Candidate) -> tuple[str, str, str]:
    if each.score is None or each.likelihood_ratio is None or each.false_alarm_rate is None:
        return "–", "–", "–"
    return f"{each.score:.1f}", f"{each.likelihood_ratio:.2g}", f"{100 * each.false_alarm_rate:.2g} %"
