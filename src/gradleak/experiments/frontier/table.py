"""Utility and frontier as tables: the same cells in the terminal and on the page."""

from __future__ import annotations

from rich.table import Table

from gradleak.core.console import SafeConsole
from gradleak.experiments.frontier.advice import CAVEAT
from gradleak.experiments.frontier.points import Point
from gradleak.experiments.frontier.run import Frontier
from gradleak.experiments.utility import UNTRAINED, UtilityResults
from gradleak.scoring.interval import Interval
from gradleak.scoring.metrics import label_of

NAMES = {"accuracy": "accuracy", "f1": "F1", "mcc": "MCC", "perplexity": "perplexity"}
OPEN = "not finished"

COST_ONLY = "What a defence costs says nothing of what it protects: `gradleak frontier` measures both."


def utility_table(results: UtilityResults) -> tuple[list[str], list[list[str]]]:
    """Headings and lines: the floors first, then every setting."""
    names = list(results.untrained)
    floors = [(UNTRAINED, results.untrained), ("commonest class", results.majority)]
    lines = [[name, *(_interval(values[n]) for n in names), ""] for name, values in floors if values]
    for one in results.settings:
        metrics = [_interval(one.metrics[name]) if name in one.metrics else "-" for name in names]
        lines.append([one.setting, *metrics, f"{len(one.by_seed)} of {results.rounds.seeds}"])
    return ["setting", *(NAMES[name] for name in names), "seeds"], lines


def print_utility(results: UtilityResults, console: SafeConsole) -> None:
    rounds = results.rounds
    title = (
        f"{results.model} on {results.data} after {rounds.rounds} rounds of {rounds.clients} clients with "
        f"{rounds.batch_size} rows each; {rounds.test_rows} held-out rows, 95 % intervals over seeds"
    )
    _print(title, *utility_table(results), console)
    if results.status != "completed":
        console.print("Not all is measured yet; run the same command again to continue.", style="bold yellow")
    console.print(COST_ONLY, style="dim")


def frontier_table(result: Frontier) -> tuple[list[str], list[list[str]]]:
    """Headings and lines: every attack on every defence, then what the defence costs."""
    attacks = [attack.label for attack in result.spec.attacks]
    return (
        ["defence", *attacks, "control", NAMES[result.metric], "cost"],
        [[point.label, *(_attack(point, name) for name in attacks), *_rest(point)] for point in result.points],
    )


def print_frontier(result: Frontier, console: SafeConsole) -> None:
    _print(
        f"{label_of(result.measure)} of every attack, and what the model learns; 95 % intervals",
        *frontier_table(result),
        console,
    )
    if result.status != "completed":
        console.print("Not all is measured yet; run the same command again to continue.", style="bold yellow")
    console.print(result.advice, style="bold")
    for line in result.so_far:
        console.print(f"- {line}")
    console.print(CAVEAT, style="dim")


def _attack(point: Point, name: str) -> str:
    score = point.attacks[name]
    if score is None:
        return OPEN
    part = "" if score.planned is None else f" ({score.trials} of {score.planned})"
    return _leak(score.leak) + part + (" ★" if name == point.best and len(point.attacks) > 1 else "")


def _rest(point: Point) -> list[str]:
    control = OPEN if point.score is None else _leak(point.score.control)
    return [control, *(OPEN if value is None else _interval(value) for value in (point.utility, point.cost))]


def _print(title: str, headings: list[str], lines: list[list[str]], console: SafeConsole) -> None:
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def _leak(interval: Interval) -> str:
    return f"{interval.mean:.1f} [{interval.low:.0f}, {interval.high:.0f}]"


def _interval(interval: Interval) -> str:
    return f"{interval.mean:.1f} [{interval.low:.1f}, {interval.high:.1f}]"
