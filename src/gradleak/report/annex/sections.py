"""What stands in a record for reviewers. Every figure is in results or verdict; nothing is called safe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradleak.audits.dp.result import FILE as DP_CHECK
from gradleak.audits.dp.result import DpCheck
from gradleak.audits.results import Results
from gradleak.core.reading import read_model
from gradleak.core.text import counted, duration
from gradleak.report.annex.document import Block, Document, Items, Section, Table
from gradleak.report.annex.hashes import file_hashes
from gradleak.report.annex.limits import OUTSIDE, TO_ADD, general_limits
from gradleak.report.annex.origins import origins
from gradleak.report.wording import remarks, threat_model
from gradleak.scoring.metrics import counts_of, format_score, labels_of
from gradleak.verdict.attempts import Cell, cells_of
from gradleak.verdict.gather import Gathered
from gradleak.verdict.model import LEVELS, Verdict
from gradleak.verdict.sentences import LEVEL_WORDS, obstacle_words, scenario_words, strongest_of
from gradleak.version import __version__

TITLE = "What can be read back from shared updates: a record"
# Examples shown of each attempt, those that came back best.
SHOWN = 3


def annex(gathered: Gathered, title: str | None = None) -> Document:
    """The record of a folder's results."""
    results, verdict = gathered.results, gathered.verdict
    cells = cells_of(results)
    return Document(
        title or TITLE,
        f"Written by gradleak {__version__} on {verdict.created}, from {counted(len(results), 'audit')} made between "
        f"{min(each.created for each in results)} and {max(each.created for each in results)}.",
        verdict.headline,
        [
            _about(),
            *_numbered(
                [
                    Section("Findings", _findings(verdict)),
                    Section("What was examined", [_examined(results)]),
                    Section("Threat model", _threats(cells)),
                    Section("Measured, declared, computed", [origins(results)]),
                    Section("Attacks", _attacks(cells)),
                    Section("Scores, beside guessing", _scores(cells)),
                    Section("Examples", _examples(cells)),
                    Section("Why attacks did not read more", _obstacles(verdict)),
                    Section("Changes", _changes(verdict)),
                    *_promises(gathered.folder),
                    Section("Limits", _limits(results, verdict)),
                    Section("Versions and hashes", _versions(results, gathered.folder)),
                    Section("To be added by people", [_TO_ADD, Items(TO_ADD)]),
                ]
            ),
        ],
    )


def _numbered(sections: Sequence[Section]) -> list[Section]:
    return [Section(f"{number}. {each.heading}", each.blocks) for number, each in enumerate(sections, 1)]


_TO_ADD = "A data protection impact assessment or a technical file also needs what no measurement can know:"


def _about() -> Section:
    return Section(
        "What this is",
        [
            "A record of measurements, for those who assess risks to people whose data train a model by federated "
            "learning (such as Article 35 GDPR or Annex IV of the EU AI Act ask for). It says which attacks were "
            "tried on which updates, what they read back, and what that does not show. It is evidence for an "
            "assessment, not the assessment, and no legal advice. A high score proves a leak; a low one proves "
            "nothing beyond what was tried."
        ],
    )


def _findings(verdict: Verdict) -> list[Block]:
    rows = [
        [
            each.scenario, each.defense, each.level, best.attack, best.scale.labelled(best.leak),
            best.scale.format(best.control), f"{best.leaked.whole} of {best.leaked.sentences}", str(best.trials),
        ]
        for each in verdict.scenarios
        for best in [strongest_of(each)]
    ]  # fmt: skip
    rows += [
        [each.scenario, each.defense, each.level, each.attack, "no truth", "–", f"{each.certified} certified", "1"]
        for each in verdict.unchecked
    ]
    headings = ("scenario", "defence", "level", "strongest attack", "leak", "guessing", "came back", "trials")
    details: list[Block] = []
    for each in verdict.scenarios:
        details += [f"{each.scenario}, defence {each.defense}:", Items([each.headline, *scenario_words(each)])]
    for other in verdict.unchecked:
        details += [f"{other.scenario}, defence {other.defense}:", Items([other.headline])]
    levels = Table(("level", "what it means"), [(level, LEVEL_WORDS[level]) for level in LEVELS])
    return [Table(headings, rows), *details, "The levels, the worst first:", levels]


def _examined(results: Sequence[Results]) -> Table:
    headings = (
        "model", "architecture, task", "parameters", "adapters", "data", "rows", "batch", "client", "defences",
        "part that is seen", "updates",
    )  # fmt: skip
    rows = [
        (
            each.model, f"{each.family}, {each.task}", f"{each.parameters:,}", each.adapters or "none", each.data,
            str(each.data_rows), "unknown" if each.batch_size is None else str(each.batch_size), str(each.client),
            " + ".join(each.defenses) or "none", "all" if each.observed is None else each.observed.selection,
            "recorded" if each.recorded else "made for the audit",
        )
        for each in (result.scenario for result in results)
    ]  # fmt: skip
    return Table(headings, list(dict.fromkeys(rows)))


def _threats(cells: Sequence[Cell]) -> list[Block]:
    by_lines: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        names = by_lines.setdefault(tuple(threat_model(cell.results.scenario)), [])
        names.append(f"{cell.scenario}, defence {cell.defense}")
    blocks: list[Block] = []
    for lines, names in by_lines.items():
        if len(by_lines) > 1:
            blocks.append(f"{'; '.join(dict.fromkeys(names))}:")
        blocks.append(Items(lines))
    return [*blocks, "Not covered:", Items(OUTSIDE)]


def _attacks(cells: Sequence[Cell]) -> list[Block]:
    rows = [
        (
            cell.attack,
            f"{cell.scenario}, {cell.defense}",
            ", ".join(f"{name}={value}" for name, value in cell.results.attack.options.items()) or "none",
            f"{len(cell.results.trials)} of {cell.results.scenario.trials}",
            cell.results.status,
            duration(sum(trial.seconds for trial in cell.results.trials)),
        )
        for cell in cells
    ]
    lines = [f"{cell.attack}, {cell.defense}: {line}" for cell in cells for line in remarks(cell.results)]
    table = Table(("attack", "scenario, defence", "options", "trials", "ended", "time"), rows)
    return [table, *([Items(list(dict.fromkeys(lines)))] if lines else [])]


def _scores(cells: Sequence[Cell]) -> list[Block]:
    rows = [
        (
            f"{cell.scenario}, {cell.defense}", cell.attack, label,
            format_score(name, cell.results.summary[name]), format_score(name, cell.results.control[name]),
        )
        for cell in cells
        for name, label in labels_of(cell.results.summary).items()
    ]  # fmt: skip
    if not rows:
        return ["No truth was given, so nothing could be scored."]
    names = list(dict.fromkeys(name for cell in cells for name in cell.results.summary))
    meanings = [(label, counts_of(name)) for name, label in labels_of(names).items()]
    return [
        "Means with 95 % intervals over trials. Guessing is the control: examples drawn without looking at the "
        "update, scored the same way. What exceeds it is what the update gave away.",
        Table(("scenario, defence", "attack", "score", "attack's", "guessing"), rows),
        Table(("score", "what it counts"), meanings),
    ]


def _examples(cells: Sequence[Cell]) -> list[Block]:
    rows = []
    for cell in cells:
        scale = cell.results.scenario.scale
        if scale.modality == "text":
            pairs = [pair for trial in cell.results.trials for pair in trial.pairs]
            best = sorted(pairs, key=lambda pair: (-pair.scores.get(scale.metric, 0.0), not pair.certified))[:SHOWN]
            rows += [
                (
                    cell.attack, cell.defense, pair.truth if cell.results.scored else "not known",
                    pair.reconstruction, "yes" if pair.certified else "no",
                )
                for pair in best
            ]  # fmt: skip
    if not rows:
        return ["None is shown here: nothing was read back, or the examples are images, which the report shows."]
    masked = any(cell.results.redacted for cell in cells)
    note = " Words are masked: the same number is the same word within an update." if masked else ""
    headings = ("attack", "defence", "true sentence", "read back", "certified")
    return [f"The {SHOWN} of each attempt that came back best.{note}", Table(headings, rows)]


def _obstacles(verdict: Verdict) -> list[Block]:
    lines = [
        f"{each.defense}, {attack.attack}: {why}"
        for each in verdict.scenarios
        for attack in each.attacks
        for why in obstacle_words(attack)
    ]
    lines += [f"{each.defense}, {each.attack}: {why}" for each in verdict.unchecked for why in each.obstacles]
    return [Items(lines)] if lines else ["Everything was read whole, or nothing is known to have stood in the way."]


def _changes(verdict: Verdict) -> list[Block]:
    measured = [f"{each.scenario}, {each.defense}: {each.change}" for each in verdict.scenarios if each.change]
    untried = list(dict.fromkeys(line for each in verdict.scenarios for line in each.untried))
    blocks: list[Block] = [Items(measured)] if measured else ["No change was measured that differs in one setting."]
    if untried:
        blocks += ["Not measured; each with the command that does:", Items(untried)]
    return blocks


def _promises(folder: Path) -> list[Section]:
    place = folder / DP_CHECK
    if not place.is_file():
        return []
    check = read_model(place, DpCheck, "what dp-check wrote")
    return [Section("Differential privacy, checked", [Items(check.lines())])]


def _limits(results: Sequence[Results], verdict: Verdict) -> list[Block]:
    not_tried = list(dict.fromkeys(line for each in verdict.scenarios for line in each.not_tried))
    notes = list(dict.fromkeys(line for each in results for line in each.scenario.notes))
    return [Items([*general_limits(results, verdict), *not_tried, *notes])]


def _versions(results: Sequence[Results], folder: Path) -> list[Block]:
    weights = list(dict.fromkeys((each.scenario.model, each.scenario.model_fingerprint) for each in results))
    environments = {each.environment.model_dump_json(): each.environment for each in results}.values()
    code = [
        (
            f"gradleak {each.gradleak}" + ("" if each.git_commit is None else f", commit {each.git_commit}")
            + (" (changed)" if each.git_dirty else ""),
            f"Python {each.python}", ", ".join(f"{name} {version}" for name, version in each.packages.items()),
            f"{each.device}, {counted(each.threads, 'thread')}, {each.processor}, {each.platform}",
        )
        for each in environments
    ]  # fmt: skip
    seeds = sorted({each.scenario.seed for each in results})
    files = file_hashes(folder)
    return [
        Table(("code", "Python", "packages", "machine"), code),
        Table(("model", "hash of its weights"), weights),
        f"Seeds: {', '.join(map(str, seeds))}. The data themselves are not hashed: keep them, or a hash of them, "
        "with this record.",
        *([Table(("file", "SHA-256"), files)] if files else []),
    ]
