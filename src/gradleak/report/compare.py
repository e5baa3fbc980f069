"""A comparison of two runs in the terminal and as a self-contained page."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from gradleak.core.console import SafeConsole
from gradleak.core.files import write_text
from gradleak.core.text import counted, enumerated
from gradleak.report.build import templates
from gradleak.report.contents import interval
from gradleak.report.modalities import RENDERERS
from gradleak.verdict.compare import Comparison

PAGE = "compare.html"
# Sentences shown of each difference; `compare.json` holds all.
SHOWN = 20

CAVEAT = (
    "Reads more or less means that the 95 % interval of the change does not hold zero: trial by trial where both "
    "runs attacked the same batches, else between the two means. No clear change is not proof of none."
)


CUT_SHORT = "A run that was cut short may have read less than it would have: the change is not between equals."


def cut_short(comparison: Comparison) -> list[str]:
    """Every run that did not come to its end, and what follows from it."""
    found = [line for each in comparison.differences for line in each.cut_short]
    return [*found, CUT_SHORT] if found else []


def headline(comparison: Comparison) -> str:
    """How many attempts read more, how many less."""
    counts = Counter(each.outcome for each in comparison.differences)
    if not comparison.differences:
        return " ".join(each.words for each in comparison.unchecked)
    if len(comparison.differences) == 1:
        (only,) = comparison.differences
        scale = only.scale
        outcome = only.outcome if only.outcome != "no clear change" else "shows no clear change"
        return (
            f"{only.attack} {outcome}: {scale.labelled(only.first)} in the first run, {scale.format(only.second)} in "
            f"the second, a change of {scale.format_change(only.change)}."
        )
    each = ", ".join(f"{counts[kind]} {kind}" for kind in ("reads more", "reads less", "no clear change"))
    return f"{counted(len(comparison.differences), 'attempt')} in both runs; of the second: {each}."


def measures(comparison: Comparison) -> str:
    """By what the runs are compared."""
    return enumerated(list(dict.fromkeys(each.scale.label for each in comparison.differences)))


def print_comparison(comparison: Comparison, console: SafeConsole) -> None:
    title = f"{measures(comparison)}, first and second run, 95 % intervals"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in ("scenario", "defence", "attack", "first", "second", "change", ""):
        table.add_column(heading, overflow="fold")
    for each in comparison.differences:
        scores = (
            each.scale.format(each.first),
            each.scale.format(each.second),
            each.scale.format_change(each.change),
        )
        table.add_row(each.scenario, each.defense, each.attack, *scores, each.outcome)
    if comparison.differences:
        console.print(table)
        for other in comparison.unchecked:
            console.print(other.words)
    for each in comparison.differences:
        for key, (before, after) in each.settings.items():
            console.print(f"  {each.attack}: {key} was {before}, is {after}")
    for name, only in (("first", comparison.only_first), ("second", comparison.only_second)):
        if only:
            console.print(f"Only in the {name} run: {'; '.join(only)}")
    for line in cut_short(comparison):
        console.print(f"⚠ {line}", style="bold yellow")
    console.print(headline(comparison), style="bold")
    console.print(CAVEAT, style="dim")


def write_comparison(comparison: Comparison, folder: Path) -> Path:
    """Write page and numbers; the page's place."""
    comparison.save(folder)
    page = templates().get_template("compare.html")
    return write_text(
        folder / PAGE,
        page.render(
            comparison=comparison,
            headline=headline(comparison),
            measures=measures(comparison),
            cut_short=cut_short(comparison),
            interval=interval,
            renderers=RENDERERS,
            shown=SHOWN,
            caveat=CAVEAT,
        ),
    )
