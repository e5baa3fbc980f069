"""A verdict in the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradleak.core.console import SafeConsole
from gradleak.core.output import visible
from gradleak.core.text import counted, enumerated
from gradleak.verdict.candidates import short_share
from gradleak.verdict.model import Level, ScenarioVerdict, Unchecked, Verdict
from gradleak.verdict.sentences import attack_words, most_tokens, obstacle_words, scenario_words, strongest_of

STYLES: dict[Level, str] = {
    "critical": "bold red", "high": "red", "moderate": "yellow", "unfinished": "magenta", "unclear": "cyan",
    "not shown": "bold",
}  # fmt: skip
# Scenarios printed in full before the rest is left to the table.
IN_FULL = 3
ALWAYS = ("defence", "level", "leak", "guessing", "whole")


def print_verdict(verdict: Verdict, console: SafeConsole) -> None:
    """One scenario in full; of many a table first, then the worst in full."""
    if len(verdict.scenarios) > 1:
        console.print(scenario_table(verdict))
    for scenario in verdict.scenarios[:IN_FULL]:
        print_scenario(scenario, console, named=len(verdict.scenarios) > 1)
    for line in verdict.scenarios[0].untried if verdict.scenarios else ():  # of the worst; a list for each is long
        _command(line, console)
    if len(verdict.scenarios) > IN_FULL:
        rest = len(verdict.scenarios) - IN_FULL
        console.print(f"\n{counted(rest, 'more scenario')} in full in verdict.json and in the report.")
    for each in verdict.unchecked:
        print_unchecked(each, console, named=len(verdict.scenarios) + len(verdict.unchecked) > 1)
    if verdict.missing:
        few = ", ".join(verdict.missing[:IN_FULL])
        more = ", ..." if len(verdict.missing) > IN_FULL else ""
        console.print(
            f"\n{counted(len(verdict.missing), 'attempt')} without a result, which count for nothing: {few}{more}",
            style="bold yellow",
        )
    console.print(f"\n{verdict.caveat}", style="dim")


def print_scenario(scenario: ScenarioVerdict, console: SafeConsole, named: bool = False) -> None:
    console.print()
    if named:
        console.print(f"{scenario.scenario}, defence {scenario.defense}", style="dim")
    console.print(scenario.headline, style=STYLES[scenario.level])
    for line in (*scenario.client, *scenario_words(scenario)):
        _line(line, console)
    for attack in scenario.attacks:
        if len(scenario.attacks) > 1:
            _line(attack_words(attack), console)
        for why in obstacle_words(attack):
            _line(f"{attack.attack} did not read more: {why}", console)
    if scenario.change:
        _line(scenario.change, console)


def print_unchecked(unchecked: Unchecked, console: SafeConsole, named: bool = False) -> None:
    """A recorded update without a truth."""
    console.print()
    if named:
        console.print(
            f"{unchecked.scenario}, defence {unchecked.defense}", style="dim", markup=False, highlight=False
        )
    console.print(unchecked.headline, style=STYLES[unchecked.level], markup=False, highlight=False)
    for line in unchecked.client:
        _line(line, console)
    for why in unchecked.obstacles:
        _line(f"{unchecked.attack} did not read more: {why}", console)


def scenario_table(verdict: Verdict) -> Table:
    """Every scenario with its level and its strongest attack; columns that say nothing are left out."""
    table = Table(
        title=f"Verdict, the worst first; {_measures(verdict)} with 95 % intervals",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    lines = [_line_of(scenario) for scenario in verdict.scenarios]
    kept = [name for name in lines[0] if len({line[name].plain for line in lines}) > 1 or name in ALWAYS]
    for name in kept:
        table.add_column(name, overflow="fold")
    for line in lines:
        table.add_row(*(line[name] for name in kept))
    return table


def _measures(verdict: Verdict) -> str:
    return enumerated(list(dict.fromkeys(strongest_of(scenario).scale.label for scenario in verdict.scenarios)))


def _line_of(scenario: ScenarioVerdict) -> dict[str, Text]:
    best, named = strongest_of(scenario), most_tokens(scenario.attacks)
    pieces = best.leaked.pieces
    names = None if pieces is None or pieces.names_by == "nothing" else pieces.names
    counts = [names, None if pieces is None else pieces.numbers]
    return {
        "scenario": Text(visible(scenario.scenario)),
        "defence": Text(visible(scenario.defense)),
        "level": Text(scenario.level, style=STYLES[scenario.level]),
        "strongest": Text(visible(best.attack)),
        "leak": Text(best.scale.format(best.leak)),
        "guessing": Text(best.scale.format(best.control)),
        "whole": Text(f"{best.leaked.whole}/{best.leaked.sentences}"),
        "tokens": Text("–" if named is None or named.tokens is None else f"{named.tokens.recall.mean:.0f} %"),
        "confirmed": Text(short_share(scenario.candidates)),
        **{
            name: Text("–" if count is None else f"{count.found}/{count.total}")
            for name, count in zip(("names", "numbers"), counts, strict=True)
        },
    }


def _command(text: str, console: SafeConsole) -> None:
    """A line that ends in a command, which must not be broken."""
    console.print(f"  {visible(text)}", soft_wrap=True, markup=False, highlight=False)


def _line(text: str, console: SafeConsole) -> None:
    console.print(Padding(visible(text), (0, 0, 0, 2)))
