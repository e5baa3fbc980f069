"""Lines of the book's tables, read off files of measurements of every form.

A form is a function from what a file says to lines; `FORMS` has them with what tells them apart. Intervals are over
batches, as everywhere: the sentences of one batch are read, or not, together.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradleak.bench.book.further import further_forms
from gradleak.bench.book.line import Kept, Line, certified, corpus, mean, seconds
from gradleak.scoring.interval import Interval
from gradleak.scoring.metrics import format_score, label_of

# Benches of several clients do not say in their settings which they have.
CLIENTS = {
    "gradleak.bench.adamw": "AdamW",
    "gradleak.bench.lora": "LoRA, one step",
}


@dataclass(frozen=True)
class Form:
    """A kind of file: how it is known, and what its lines are."""

    fits: Callable[[Any], bool]
    lines: Callable[[Kept], Iterable[Line]]


def lines_of(file: str, content: Any) -> list[Line]:
    """All lines of a file; one that no form fits is an error."""
    for form in FORMS:
        if form.fits(content):
            return list(form.lines(Kept(file, content)))
    raise ValueError(f"{file}: no form of the book fits it")


def _first(content: Any) -> Mapping[str, Any]:
    cells = content.get("cells") or content.get("runs") or [{}]
    return dict(cells[0]) if isinstance(cells, list) else {}


# --- batches of one setting, drawn by seeds ---------------------------------------------------------------


def _batches(kept: Kept) -> Iterable[Line]:
    settings = kept.content.get("settings", {})
    attack = settings.get("attack", "exact")
    groups: dict[Any, list[Any]] = {}
    for cell in kept.cells:
        key = (settings.get("sigma", cell.get("sigma")), cell.get("task"), cell.get("batch_size"))
        groups.setdefault(key, []).append(cell)
    for (sigma, task, size), cells in groups.items():
        client = _client(kept, settings)
        yield Line(
            page="film" if sigma is not None and "attack" not in settings else attack,
            file=kept.file,
            values={
                "model": kept.model if task is None else f"{kept.model}, {task}",
                "corpus": corpus(kept.data),
                "client": client,
                "defence": settings.get("defense", "none") if sigma is None else f"noise:sigma={sigma:g}",
                "batch size": str(size or settings.get("batch_size") or _sizes(cells)),
                "batches": str(len(cells)),
                **read(cells, attack),
                "seconds": seconds(cells),
            },
        )


def _client(kept: Kept, settings: Mapping[str, Any]) -> str:
    if "client" in settings:
        return f"`{settings['client']}`"
    bench = next((name for name in CLIENTS if name in kept.command), None)
    if bench is None:
        return "SGD"
    told = [f"rank {settings['rank']}"] if "rank" in settings else []
    told += ["first round"] if settings.get("b") == 0 else []
    if "sentences" in settings:  # of a client, in batches
        steps = (settings["sentences"] or settings["batch_size"]) // settings["batch_size"]
        told += [f"{steps} steps" if steps > 1 else "one step"]
    return ", ".join([CLIENTS[bench], *told])


def _sizes(cells: Sequence[Mapping[str, Any]]) -> str:
    counts = sorted({cell["sentences"] for cell in cells})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def read(cells: Sequence[Mapping[str, Any]], attack: str) -> dict[str, str]:
    """What came back: sentences, overlap with the nearest, tokens, the control's overlap, certificates."""
    found: dict[str, str] = {}
    if attack != "bag":
        whole, count = sum(cell["whole"] for cell in cells), sum(cell["sentences"] for cell in cells)
        found["whole sentences, %"] = mean([100 * cell["whole"] / cell["sentences"] for cell in cells])
        found["of"] = f"{whole} of {count}"
        for key, label in (("rouge_1", "ROUGE-1"), ("rouge_l", "ROUGE-L")):
            if all(key in cell for cell in cells):
                found[label] = mean([statistics.mean(cell[key]) for cell in cells])
        if all("control" in cell for cell in cells):
            found["control"] = mean([statistics.mean(cell["control"]) for cell in cells])
        found["certified, wrong"] = certified(cells)
    elif all("tokens_found" in cell for cell in cells):
        totals = {key: sum(cell[key] for cell in cells) for key in ("tokens_found", "tokens", "tokens_wrong")}
        found["tokens named, %"] = mean([100 * cell["tokens_found"] / cell["tokens"] for cell in cells])
        found["of"] = f"{totals['tokens_found']:,} of {totals['tokens']:,}"
        found["named wrongly"] = str(totals["tokens_wrong"])
    return found


# --- audits -----------------------------------------------------------------------------------------------


def _one_audit(kept: Kept) -> Iterable[Line]:
    yield _audit(kept, kept.about["command"], kept.content, kept.cells)


def _audits(kept: Kept) -> Iterable[Line]:
    for cell in kept.cells:
        yield _audit(kept, cell["command"], cell, cell["trials"])


def _audit(kept: Kept, command: str, audit: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> Line:
    words = command.split()
    told = {word[2:]: words[place + 1] for place, word in enumerate(words) if word.startswith("--")}
    reached, guessed = (Interval(**audit[name]["rougeL"]) for name in ("summary", "control"))
    return Line(
        page=told["attack"],
        file=kept.file,
        values={
            "model": told["model"],
            "corpus": corpus(told["data"]),
            "client": f"`{told['client']}`" if "client" in told else "SGD",
            "defence": told.get("defense", "none"),
            "batch size": told["batch-size"],
            "batches": str(len(trials)),
            "whole sentences, %": mean([100 * _whole(trial) / trial["sentences"] for trial in trials]),
            "of": f"{sum(map(_whole, trials))} of {sum(trial['sentences'] for trial in trials)}",
            "ROUGE-L": str(reached),
            "control": str(guessed),
            "certified, wrong": certified(trials),
            "seconds": seconds(trials),
        },
    )


def _whole(trial: Mapping[str, Any]) -> int:
    return int(trial["whole"]) if "whole" in trial else round(trial["exact_match"] / 100 * trial["sentences"])


def _recipe(kept: Kept) -> Iterable[Line]:
    metrics = kept.content["metrics"]
    for cell in kept.cells:
        own, papers = cell["settings"], cell.get("paper", {})
        options = ", ".join(f"{name}={value}" for name, value in own.get("options", {}).items())
        values = {
            "line": cell["name"],
            "attack": own["attack"],
            "model": kept.model,
            "corpus": corpus(own["data"]),
            "client": own["client"],
            "defence": ", ".join(own["defenses"]) or "none",
            "observed": own["observe"],
            "options": options,
            "batch size": str(own["batch_size"]),
            "batches": str(cell["trials"]),
        }
        for name in (*metrics, *cell.get("found", {})):
            where = cell["summary"] if name in cell["summary"] else cell.get("found", {})
            if name in where:
                values[label_of(name)] = format_score(name, Interval(**where[name]))
        guessed = [
            format_score(name, Interval(**cell["control"][name])) for name in metrics if name in cell["control"]
        ]
        values["control"] = " / ".join(guessed)
        if cell.get("certified") is not None:
            values["certified, wrong"] = f"{cell['certified']}, {cell['certified_wrong']}"
        values["seconds"] = f"{cell['seconds']:.0f}"
        values |= {f"paper, {name}": " / ".join(f"{x:g}" for x in figures) for name, figures in papers.items()}
        yield Line(page=kept.content["recipe"].split("-")[0], file=kept.file, values=values)


def _score(metric: str, means: Mapping[str, Any]) -> str:
    return format_score(metric, Interval(**means[metric])) if metric in means else ""


def _single_noise(kept: Kept) -> Iterable[Line]:
    groups: dict[tuple[str, str], list[Any]] = {}
    for cell in kept.cells:
        groups.setdefault((cell["defense"], cell["attack"]), []).append(cell)
    for (defence, attack), cells in groups.items():
        yield Line(
            page=attack,
            file=kept.file,
            values={
                "model": kept.model,
                "corpus": corpus(kept.data),
                "client": "SGD",
                "defence": defence,
                "batch size": "1",
                "batches": str(len(cells)),
                "whole sentences, %": mean([100.0 * cell["exact"] for cell in cells]),
                "of": f"{sum(cell['exact'] for cell in cells)} of {len(cells)}",
                "ROUGE-L": mean([cell["rougeL"] for cell in cells]),
                "control": mean([cell["control"] for cell in cells]),
                "seconds": seconds(cells),
            },
        )


FORMS = (
    Form(lambda content: "recipe" in content, _recipe),
    Form(lambda content: "summary" in content, _one_audit),
    Form(lambda content: "summary" in _first(content), _audits),
    Form(lambda content: {"defense", "exact"} <= _first(content).keys(), _single_noise),
    *(Form(fits, lines) for fits, lines in further_forms(_first)),
    Form(lambda content: {"whole", "sentences"} <= _first(content).keys(), _batches),
)
