"""The table of a recipe: ours with intervals, the paper's beside it."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from gradleak.core.console import SafeConsole
from gradleak.core.files import write_text
from gradleak.experiments.recipes.run import Reproduced
from gradleak.scoring.interval import Interval
from gradleak.scoring.metrics import format_score, label_of

TABLE_FILE = "table.md"


def print_recipe(result: Reproduced) -> None:
    """The table, the recipe's notes, and where the table lies."""
    recipe, console = result.recipe, SafeConsole()
    table = Table(title=f"{recipe.title} ({recipe.source}); ours on {result.model}", title_justify="left")
    for heading in _headings(result):
        table.add_column(heading, no_wrap=True)
    for line in _lines(result):
        table.add_row(*line)
    console.print(table)
    if recipe.notes:
        console.print(recipe.notes.strip(), style="dim")


def write_markdown(result: Reproduced) -> Path:
    return write_text(result.folder / TABLE_FILE, markdown(result))


def markdown(result: Reproduced) -> str:
    """The same table for a document."""
    headings = _headings(result)
    lines = [headings, ["---"] * len(headings), *_lines(result)]
    title = f"{result.recipe.title}: {result.recipe.source}"
    return f"{title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _papers(result: Reproduced) -> list[str]:
    return list(dict.fromkeys(name for line, _ in result.lines for name in line.paper))


def _beside(result: Reproduced) -> list[str]:
    """What attacks had to find beside sentences."""
    return list(dict.fromkeys(name for _, results in result.lines for name in results.found))


def _headings(result: Reproduced) -> list[str]:
    ours = [label_of(name) for name in result.recipe.metrics]
    papers = [f"paper, {name}" for name in _papers(result)]
    return ["", *ours, *_beside(result), "trials", "s a trial", *papers]


def _lines(result: Reproduced) -> list[list[str]]:
    lines = []
    for line, results in result.lines:
        seconds = sum(trial.seconds for trial in results.trials) / len(results.trials)
        ours = [_interval(name, results.summary.get(name)) for name in result.recipe.metrics]
        ours += [_interval(name, results.found.get(name)) for name in _beside(result)]
        theirs = [" / ".join(f"{x:g}" for x in line.paper.get(name, ())) for name in _papers(result)]
        lines.append([line.name, *ours, str(len(results.trials)), f"{seconds:.0f}", *theirs])
    return lines


def _interval(metric: str, interval: Interval | None) -> str:
    return "" if interval is None else format_score(metric, interval)
