"""A comparison of two runs in the terminal and as a self-contained page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradleak.core.files import write_text
from gradleak.report.build import templates
from gradleak.report.rows import marks
from gradleak.report.wording import counted
from gradleak.verdict.compare import Comparison

PAGE = "compare.html"
# Sentences shown of each difference; `compare.json` holds all.
SHOWN = 20

CAVEAT = (
    "Reads more or less means that the 95 % interval of the change does not hold zero: trial by trial where both "
    "runs attacked the same batches, else between the two means. No clear change is not proof of none."
)


def headline(found: Comparison) -> str:
    """How many attempts read more, how many less."""
    counts = Counter(one.outcome for one in found.differences)
    if len(found.differences) == 1:
        one = found.differences[0]
        return (
            f"{one.attack} {one.outcome if one.outcome != 'no clear change' else 'shows no clear change'}: ROUGE-L "
            f"{one.first} in the first run, {one.second} in the second, a change of {one.change:+.0f}."
        )
    each = ", ".join(f"{counts[kind]} {kind}" for kind in ("reads more", "reads less", "no clear change"))
    return f"{counted(len(found.differences), 'attempt')} in both runs; of the second: {each}."


def print_comparison(found: Comparison, console: Console) -> None:
    table = Table(title="ROUGE-L, first and second run, 95 % intervals", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("scenario", "defence", "attack", "first", "second", "change", ""):
        table.add_column(heading, overflow="fold")
    for one in found.differences:
        scores = (str(one.first), str(one.second), f"{one.change:+.0f}")
        table.add_row(*map(Text, (one.scenario, one.defense, one.attack, *scores, one.outcome)))
    console.print(table)
    for one in found.differences:
        for key, (before, after) in one.settings.items():
            console.print(f"  {one.attack}: {key} was {before}, is {after}", markup=False, highlight=False)
    for name, only in (("first", found.only_first), ("second", found.only_second)):
        if only:
            console.print(f"Only in the {name} run: {'; '.join(only)}", markup=False, highlight=False)
    console.print(headline(found), style="bold", markup=False, highlight=False)
    console.print(CAVEAT, style="dim")


def write_comparison(found: Comparison, folder: Path) -> Path:
    """Write page and numbers; the page's place."""
    found.save(folder)
    page = templates().get_template("compare.html")
    return write_text(
        folder / PAGE,
        page.render(found=found, headline=headline(found), marks=marks, shown=SHOWN, caveat=CAVEAT),
    )
