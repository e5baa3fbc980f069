"""The tokens that attacks named: a table for the terminal, and the lists of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from gradleak.attacks.base import Reconstruction
from gradleak.audits.results import Results, Trial
from gradleak.core.console import SafeConsole
from gradleak.core.text import counted
from gradleak.scoring.named import Named
from gradleak.verdict.attempts import cells_of

# Tokens printed of an update, and shown of a trial on the page; `results.json` holds all.
PRINTED, SHOWN = 40, 400
# Trials whose tokens the page shows.
TRIALS = 50
# Marks of a word's beginning in the names that tokenizers give.
_BEGINNINGS = ("Ġ", "▁")


@dataclass(frozen=True)
class TokenList:
    """The tokens of one trial, best first, each with whether it was there; None where no truth tells."""

    title: str
    summary: str
    which: list[str]
    tokens: list[tuple[str, bool | None]]
    more: int


def in_order(answer: Reconstruction) -> list[str]:
    """The tokens of a bag, best first: by score, then by how often they may occur, then words before their parts."""

    def place(token: str) -> tuple[float, int, bool, str]:
        return -answer.bag[token], -answer.counts.get(token, 0), not readable(token)[:1].isalnum(), token

    return sorted(answer.bag, key=place)


def readable(token: str) -> str:
    """A token without its tokenizer's mark for the beginning of a word.

    >>> readable("Ġthe"), readable("▁the"), readable("##ing"), readable("Ġ")
    ('the', 'the', '##ing', 'Ġ')
    """
    return token[1:] if len(token) > 1 and token.startswith(_BEGINNINGS) else token


def token_table(answer: Reconstruction, limit: int = PRINTED) -> Table | None:
    """The tokens with their score and how often each may occur; None if none was named."""
    if not answer.bag:
        return None
    table = Table(title=f"{counted(len(answer.bag), 'token')} named, best first", title_justify="left")
    table.add_column("token", overflow="fold")
    table.add_column("score", justify="right")
    table.add_column("may occur", justify="right")
    ordered = in_order(answer)
    for token in ordered[:limit]:
        times = f"{answer.counts[token]} ×" if token in answer.counts else "–"
        table.add_row(readable(token), f"{answer.bag[token]:.2f}", times)
    if len(ordered) > limit:
        table.caption = f"{len(ordered) - limit} more in results.json"
    return table


def print_tokens(trial: Trial, console: SafeConsole) -> None:
    """The tokens of one trial, and the names and numbers that they make."""
    table = token_table(trial.reconstruction)
    if table is not None:
        console.print(table)
    if trial.named is not None and trial.named.which:
        console.print(f"Names and numbers among them: {', '.join(trial.named.which)}")


def token_lists(results: Sequence[Results]) -> list[TokenList]:
    """What the page shows of the tokens, trial by trial, for those that named any."""
    cells = cells_of(results)
    named = [(cell, trial) for cell in cells for trial in cell.results.trials if trial.bag_size]
    several = len(cells) > 1
    return [
        _list(f"{cell.attack} on {cell.scenario}, defence {cell.defense}, trial" if several else "Trial", trial)
        for cell, trial in named[:TRIALS]
    ]


def _list(title: str, trial: Trial) -> TokenList:
    ordered, named = in_order(trial.reconstruction), trial.named
    wrong = set() if named is None else set(named.wrong)
    return TokenList(
        title=f"{title} {trial.index + 1}",
        summary=_summary(trial, named),
        which=[] if named is None else named.which,
        tokens=[(readable(token), None if named is None else token not in wrong) for token in ordered[:SHOWN]],
        more=max(0, len(ordered) - SHOWN),
    )


def _summary(trial: Trial, named: Named | None) -> str:
    if named is None:
        return f"{counted(trial.bag_size, 'token')} named; no truth tells which of them were there"
    guessed = trial.control_named
    beside = "" if guessed is None else f"; as many of the commonest tokens hit {guessed.tokens.found}"
    return (
        f"{named.tokens.found} of {counted(named.tokens.total, 'token')} named, {named.guesses} named in all{beside}"
    )
