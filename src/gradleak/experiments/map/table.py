"""A map as a table: the same cells in the terminal and on the page."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from gradleak.core.console import SafeConsole
from gradleak.experiments.map.claims import claims
from gradleak.experiments.map.result import CAVEAT, LeakMap, MapCell, headline

OPEN = "–"


def map_table(result: LeakMap) -> tuple[list[str], list[list[str]]]:
    """Headings and lines: one line per layer, then the share of the model that a cell of each column sees."""
    lines = [
        [f"layer {number}", *(cell_text(result, result.at(number, column)) for column in result.columns)]
        for number in range(1, result.layers + 1)
    ]
    shares = ["share", *(f"{result.share(column):.2g} %" for column in result.columns)]
    return ["", *result.columns], [*lines, shares]


def baselines(result: LeakMap) -> list[tuple[str, str, str]]:
    """What single parts are compared with: name, share of the model, the measure."""
    control = OPEN if result.all.control is None else result.format(result.all.control)
    return [
        ("all gradients", "100 %", cell_text(result, result.all)),
        *(
            ("all layers", f"{layers.share:.3g} %", cell_text(result, layers))
            for layers in [result.all_layers]
            if layers
        ),
        ("guessing without the update", "", control),
    ]


def cell_text(result: LeakMap, cell: MapCell) -> str:
    return OPEN if cell.leak is None else result.format(cell.leak)


def claim_lines(result: LeakMap) -> list[tuple[str, str, str, str]]:
    """The paper's observations on this map: statement, what was measured, the difference, whether it holds."""
    return [(claim.statement, claim.measured, str(claim.difference), claim.holds) for claim in claims(result)]


def print_map(result: LeakMap, console: SafeConsole) -> None:
    """The map, what it is compared with, and what it does not mean."""
    headings, lines = map_table(result)
    table = Table(
        title=f"{result.label} of {result.spec.attack} on single parts of {result.spec.model}, 95 % intervals",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for number, line in enumerate(lines, start=1):
        table.add_row(*line, end_section=number == result.layers)
    console.print(table)
    for name, share, leak in baselines(result):
        console.print(f"  {name}{f' ({share})' if share else ''}: {leak}")
    if result.status != "completed":
        console.print("Not all is measured yet; run the same command again to continue.", style="bold yellow")
    console.print(headline(result), style="bold")
    for statement, measured, difference, holds in claim_lines(result):
        console.print(f"  {statement}: {holds} here ({measured}: {difference})", style="dim")
    console.print(CAVEAT, style="dim")
