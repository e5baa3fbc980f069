"""What stands on the page of a report, as values; the template only places them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from markupsafe import Markup
from pydantic import BaseModel

from gradleak.audits.results import Results
from gradleak.core.text import counted
from gradleak.report.candidates import confirmed_tables
from gradleak.report.figures import MOST_TRACES, score_figure, trace_figure
from gradleak.report.heatmap import map_figure
from gradleak.report.modalities import Renderer
from gradleak.report.sentences import NAMES
from gradleak.report.timeline import timeline_figure
from gradleak.report.tokens import token_lists
from gradleak.report.tradeoff import frontier_figure
from gradleak.report.wording import remarks, status_note, threat_model
from gradleak.scoring.interval import Interval
from gradleak.scoring.metrics import counts_of, format_score, labels_of
from gradleak.verdict.attempts import Cell, cells_of
from gradleak.verdict.candidates import short_share
from gradleak.verdict.gather import Gathered
from gradleak.verdict.model import LEVELS, AttackVerdict, Verdict
from gradleak.verdict.sentences import most_tokens, obstacle_words, scenario_words, strongest_of

Shown = TypeVar("Shown", bound=BaseModel)


@dataclass(frozen=True)
class Figure:
    """A drawing of numbers and escaped words, with what it shows."""

    svg: Markup
    caption: str


@dataclass(frozen=True)
class Heat:
    """Scenarios downwards, attacks across."""

    attacks: list[str]
    lines: list[tuple[str, list[AttackVerdict | None]]]


def contents(gathered: Gathered, renderer: Renderer, other_pages: Mapping[str, str]) -> dict[str, Any]:
    """Every value that the templates name."""
    verdict, cells = gathered.verdict, cells_of(gathered.results)
    single = gathered.results[0] if len(gathered.results) == 1 else None
    scored = single if single is not None and single.scored else None
    choices = _choices(cells)
    varying = [name for name, _, _ in choices]
    scale = gathered.results[0].scenario.scale
    return {
        "title": f"{cells[0].attack} on {cells[0].scenario}" if single else counted(len(cells), "audit"),
        "created": max(results.created for results in gathered.results),
        "section": renderer.section,
        "other_pages": other_pages,
        "scale": scale,
        "verdict": verdict,
        "levels": LEVELS,
        "headline": verdict.headline,
        "judged": [(scenario, strongest_of(scenario)) for scenario in verdict.scenarios],
        "many_scenarios": "scenario" in varying,
        "scenario_headings": [
            *(["Scenario"] if "scenario" in varying else []),
            "Defence", "Level", "Strongest attack", scale.label, "Guessing",
            f"{scale.adjective.capitalize()} {scale.noun}s", "Tokens",
            *(["Confirmed"] if any(each.candidates for each in verdict.scenarios) else []),
        ],
        "notes": _notes(gathered, renderer),
        "remarks": remarks(single) if single else [],
        "leaked": scenario_words,
        "most_tokens": most_tokens,
        "token_lists": token_lists(gathered.results),
        "short_share": short_share,
        "confirmed_tables": confirmed_tables(gathered.results),
        "obstacles": obstacle_words,
        "interval": interval,
        "heat": heat(verdict) if len(cells) > 1 and verdict.scenarios else None,
        "figures": figures(gathered, cells, renderer),
        "scores": _scores(scored) if scored else None,
        "one_axis": renderer.one_axis,
        "choices": choices,
        "threats": _threats(cells),
        "setups": _different(
            [each.scenario for each in gathered.results], "model", "model_fingerprint", "data", "seed"
        ),
        "attacks": _different([each.attack for each in gathered.results], "name", "options"),
        "environments": _different([each.environment for each in gathered.results]),
        **renderer.values(gathered.results, varying),
    }  # fmt: skip


def heat(verdict: Verdict) -> Heat:
    """Every attack on every scenario; None where it was not tried."""
    attacks = list(dict.fromkeys(attack.attack for scenario in verdict.scenarios for attack in scenario.attacks))
    several = len({scenario.scenario for scenario in verdict.scenarios}) > 1
    lines = []
    for scenario in sorted(verdict.scenarios, key=lambda each: (each.scenario, each.defense)):
        tried = {attack.attack: attack for attack in scenario.attacks}
        name = f"{scenario.scenario}, {scenario.defense}" if several else scenario.defense
        lines.append((name, [tried.get(attack) for attack in attacks]))
    return Heat(attacks, lines)


def figures(gathered: Gathered, cells: list[Cell], renderer: Renderer) -> list[Figure]:
    """All drawings there are for these results; they hold numbers and escaped words only."""
    drawn: list[Figure] = []
    if gathered.frontier is not None:
        drawn.append(Figure(Markup(frontier_figure(gathered.frontier)), gathered.frontier.advice))
    if gathered.leak_map is not None:
        part = "where the attacker sees one part of the model only, mean and 95 % interval"
        caption = f"{gathered.leak_map.label} {part}."
        drawn.append(Figure(Markup(map_figure(gathered.leak_map)), caption))
    if gathered.checkpoints is not None:
        caption = "What updates give away as the model trains: the attack in red, the control in grey."
        drawn.append(Figure(Markup(timeline_figure(gathered.checkpoints)), caption))
    if len(cells) == 1 and renderer.one_axis and cells[0].results.scored:
        caption = (
            "Means and 95 % intervals: the attack in red, the control, a guess with no look at the update, in grey."
        )
        drawn.append(Figure(Markup(score_figure(cells[0].results)), caption))
    for attack in dict.fromkeys(cell.attack for cell in cells):
        trials = [trial for cell in cells if cell.attack == attack for trial in cell.results.trials]
        traced = sum(len(trial.reconstruction.trace) > 1 for trial in trials)
        if traced:
            some = f" ({MOST_TRACES} of {traced}, evenly chosen)" if traced > MOST_TRACES else ""
            caption = f"Convergence of {attack}: its loss over its steps, a line a trial{some}."
            drawn.append(Figure(Markup(trace_figure(trials)), caption))
    return drawn


@dataclass(frozen=True)
class Scores:
    """All scores of one audit beside its control's."""

    trials: int
    lines: list[tuple[str, Markup, Markup, str]]


def _scores(results: Results) -> Scores:
    lines = [
        (label, interval(results.summary[name], name), interval(results.control[name], name), counts_of(name))
        for name, label in labels_of(results.summary).items()
    ]
    return Scores(len(results.trials), lines)


def interval(score: Interval, metric: str) -> Markup:
    """The mean of a score, and its interval in softer letters."""
    mean, _, bounds = format_score(metric, score).partition(" ")
    return Markup('{} <span class="range">{}</span>').format(mean, bounds)


def _choices(cells: list[Cell]) -> list[tuple[str, str, list[str]]]:
    """What sentences can be chosen by: those names that differ."""
    every = {name: sorted({getattr(cell, name) for cell in cells}) for name in ("scenario", "defense", "attack")}
    return [(name, NAMES[name], values) for name, values in every.items() if len(values) > 1]


def _different(models: Sequence[Shown], *by: str) -> list[Shown]:
    """Those that differ in these fields, or in any, once each."""
    return list({model.model_dump_json(include=set(by) or None): model for model in models}.values())


def _notes(gathered: Gathered, renderer: Renderer) -> list[str]:
    notes = list(dict.fromkeys(note for each in gathered.results if (note := status_note(each))))
    return [*notes, renderer.redacted] if any(each.redacted for each in gathered.results) else notes


def _threats(cells: list[Cell]) -> list[tuple[str, list[str]]]:
    """Each threat model once, under the names of the scenarios that have it."""
    by_lines: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        names = by_lines.setdefault(tuple(threat_model(cell.results.scenario)), [])
        names.append(f"{cell.scenario}, defence {cell.defense}")
    return [(" · ".join(dict.fromkeys(names)), list(lines)) for lines, names in by_lines.items()]
