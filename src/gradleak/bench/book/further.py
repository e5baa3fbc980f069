"""Lines of measurements that are no batches of sentences: long texts, pairs, images, candidates, privacy, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gradleak.bench.book.line import Kept, Line, corpus, mean, seconds
from gradleak.bench.provenance import ABOUT
from gradleak.bench.size_show import above, needed

First = Callable[[Any], Mapping[str, Any]]
Lines = Callable[[Kept], Iterable[Line]]


def further_forms(first: First) -> list[tuple[Callable[[Any], bool], Lines]]:
    """What tells each kind of file apart, and its lines; `first` gives a file's first cell."""

    def has(*names: str) -> Callable[[Any], bool]:
        return lambda content: set(names) <= first(content).keys()

    def keyed(name: str) -> Callable[[Any], bool]:
        return lambda content: name in content[ABOUT]["command"]

    return [
        (keyed("bench.evidence"), _evidence),
        (has("rougeL", "peak_memory_mb"), _long),
        (has("sources", "targets"), _pairs),
        (has("psnr"), _images),
        (has("ours", "published"), _beside_published),
        (has("way", "client", "attack"), _sizes),
        (keyed("bench.checkpoints"), _checkpoints),
        (keyed("certificates.py"), _certificates),
        (keyed("table.py"), _families),
        (keyed("bench.contains"), _contains),
        (keyed("bench.choose"), _defences),
        (keyed("gradleak frontier"), _frontiers),
        (keyed("measure_dp_check.py"), _privacy),
    ]


def _long(kept: Kept) -> Iterable[Line]:
    settings, cells = kept.content["settings"], kept.cells
    read = settings["attack"] != "bag"
    yield Line(
        page=settings["attack"],
        file=kept.file,
        values={
            "model": f"{kept.model}, a text of {settings['tokens']} tokens",
            "corpus": corpus(kept.data),
            "client": "SGD",
            "defence": "none",
            "batch size": "1",
            "batches": str(len(cells)),
            **({"whole sentences, %": mean([100.0 * cell["whole"] for cell in cells])} if read else {}),
            "of": f"{sum(cell['whole'] for cell in cells)} of {len(cells)}" if read else "",
            "ROUGE-L": mean([cell["rougeL"] for cell in cells]) if read else "",
            "tokens named, %": mean([cell["tokens_named"] for cell in cells]),
            **({"certified, wrong": _long_certified(cells)} if read else {}),
            "seconds": seconds(cells, "processor_seconds"),
        },
    )


def _long_certified(cells: Iterable[Mapping[str, Any]]) -> str:
    """A text that is certified and not whole would be wrong."""
    proved = [cell for cell in cells if cell["certified"]]
    return f"{len(proved)}, {sum(not cell['whole'] for cell in proved)}"


def _pairs(kept: Kept) -> Iterable[Line]:
    runs = kept.content["runs"]
    for size in sorted({run["size"] for run in runs}):
        own = [run for run in runs if run["size"] == size]
        count = size * len(own)
        texts = sum(run["sources"] + run["targets"] for run in own)
        yield Line(
            page="exact",
            file=kept.file,
            values={
                "model": f"{kept.model}, pairs of texts",
                "corpus": "built-in",
                "client": "SGD",
                "defence": "none",
                "batch size": str(size),
                "batches": str(len(own)),
                "whole sentences, %": mean([100 * (run["sources"] + run["targets"]) / (2 * size) for run in own]),
                "of": f"{texts} of {2 * count}, pairs {sum(run['pairs'] for run in own)} of {count}",
                "certified, wrong": f"{texts}, {sum(run['wrong'] for run in own)}",
                "seconds": seconds(own),
            },
        )


def _beside_published(kept: Kept) -> Iterable[Line]:
    """Our attack and the published code on the same sentences, and what ours reads more of each."""
    settings, cells = kept.content["settings"], kept.cells
    metrics = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
    shared = {
        "model": kept.model,
        "corpus": corpus(kept.data),
        "client": "SGD",
        "defence": "none",
        "options": ", ".join(f"{name}={settings[name]}" for name in ("prior", "steps", "starts")),
        "batch size": "1",
        "batches": str(len(cells)),
    }
    for name, line in (("ours", "ours"), ("published", "the published code")):
        own = [cell[name] for cell in cells]
        scores = {label: mean([each[metric] for each in own]) for metric, label in metrics.items()}
        spent = seconds(own, "processor_seconds")
        yield Line("lamp", kept.file, {"line": line, **shared, **scores, "seconds": spent})
    more = {
        label: mean([cell["ours"][metric] - cell["published"][metric] for cell in cells], -100.0)
        for metric, label in metrics.items()
    }
    yield Line("lamp", kept.file, {"line": "ours above the published code, by sentence", **shared, **more})


def _images(kept: Kept) -> Iterable[Line]:
    for cell in kept.cells:
        trials = cell["trials"]
        yield Line(
            page="images",
            file=kept.file,
            values={
                "attack": cell["attack"],
                "model": f"{cell['model']}, weights {cell['weights']}",
                "corpus": "CIFAR-10",
                "client": cell["client"],
                "defence": ", ".join(cell["defenses"]) or "none",
                "options": ", ".join(f"{name}={value}" for name, value in cell["options"].items()),
                "images": str(cell["images"]),
                "MSE": mean([trial["mse"] for trial in trials], 0.0, 1.0, ".2g"),
                "PSNR": mean([trial["psnr"] for trial in trials], 0.0, 100.0, ".1f"),
                **_beside_images(cell, trials),
                "certified, wrong": f"{cell['certified']}, {cell['certified_wrong']}",
                "labels right": _labels(cell),
                "seconds": seconds(trials),
            },
        )


def _labels(cell: Mapping[str, Any]) -> str:
    return "not asked" if cell["labels_right"] is None else f"{cell['labels_right']} of {cell['images']}"


def _beside_images(cell: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What audits say besides: the control, and how many images the attacker held."""
    if "control" not in cell:
        return {}
    guessed = mean([trial["control"]["mse"] for trial in trials], 0.0, 1.0, ".2g")
    return {"control, MSE": guessed, "auxiliary images": f"{cell['auxiliary'] or 0:,}"}


def _sizes(kept: Kept) -> Iterable[Line]:
    for cell in kept.cells:
        client, attack = cell["client"], cell["attack"]
        values = {"model": cell["model"], "batch size": str(cell["batch"]), "attack": cell["way"]}
        if "refused" in client or "refused" in attack:
            yield Line("size", kept.file, {**values, "refused": client.get("refused") or attack["refused"]})
            continue
        peak = max(above(kept.content, client), above(kept.content, attack))
        values |= {
            "weights + update, GB": f"{needed(client) / 1e9:.2f}",
            "peak beyond libraries, GB": f"{peak / 1e9:.2f}",
            "processor s": f"{client['processor_seconds']:.0f} + {attack['processor_seconds']:.0f}",
        }
        if "in" in attack:
            rates = ", ".join(f"{rate:.2g}" for rate in attack["in"] if rate is not None)
            values["false-alarm rate of what was in"] = rates
        else:
            if not cell["way"].endswith("bag"):
                values["whole"] = f"{attack['whole']} of {cell['batch']}"
            values["tokens named"] = f"{attack['tokens_found']} of {attack['tokens']}, {attack['tokens_wrong']} wrong"
        yield Line("size", kept.file, values)


def _certificates(kept: Kept) -> Iterable[Line]:
    """All batches, then those of each client, each kind of batch, and each family and task.

    Of an earlier state only what had wrong ones is shown beside the sum.
    """
    groups: dict[str, list[Any]] = {}
    refused = 0
    for key, done in kept.cells.items():
        family, task, client = key.split(", ", 2)
        if not isinstance(done, list):
            refused += 1
            continue
        for batch in done:
            for name in ("all", f"client: {client}", f"batch: {batch[0]}", f"family: {family}, {task}"):
                groups.setdefault(name, []).append(batch)
    order = ("all", "client", "batch", "family")
    for name in sorted(groups, key=lambda name: order.index(name.partition(":")[0])):
        batches = groups[name]
        wrong = sum(batch[3] for batch in batches)
        if name != "all" and not wrong and "note" in kept.content:
            continue
        yield Line(
            page="certificates",
            file=kept.file,
            values={
                "which": name,
                "batches": str(len(batches)),
                "sentences": str(sum(batch[1] for batch in batches)),
                "certified": str(sum(batch[2] for batch in batches)),
                "wrong": str(wrong),
                "refused": f"{refused} of {len(kept.cells)} families and clients" if name == "all" else "",
            },
        )


def _evidence(kept: Kept) -> Iterable[Line]:
    """What a test of single tokens, states or beginnings says of known batches: sums, and ranges over batches."""
    settings, cells = kept.content["settings"], kept.cells
    values = {
        "test": settings["kind"],
        "model": kept.model,
        "corpus": corpus(kept.data),
        "defence": f"noise:sigma={settings['sigma']:g}" if settings["sigma"] else "none",
        "batch size": str(settings["batch_size"]),
        "batches of it": str(len(cells)),
    }
    found = []
    for name, value in cells[0].items():
        own = [cell[name] for cell in cells]
        label = name.replace("_", " ")
        if isinstance(value, dict):
            ranges = (f"{key} {min(v[key] for v in own):.2g} to {max(v[key] for v in own):.2g}" for key in value)
            found.append(f"{label}: {', '.join(ranges)}")
        elif name != "seed":
            found.append(f"{label} {sum(own):,}")
    yield Line("evidence", kept.file, {**values, "sums over batches, and ranges": "; ".join(found)})


def _families(kept: Kept) -> Iterable[Line]:
    """How many families and tasks each column reads; the table itself is in docs/families.md."""
    columns: dict[str, list[Any]] = {}
    for key, cell in kept.cells.items():
        if "whole" in cell:
            columns.setdefault(key.split(" ", 2)[2], []).append(cell)
    for column, cells in columns.items():
        yield Line(
            page="families",
            file=kept.file,
            values={
                "by": column,
                "families and tasks": str(len(cells)),
                "read whole": str(sum(cell["whole"] == cell["of"] for cell in cells)),
                "sentences whole": f"{sum(cell['whole'] for cell in cells)} of {sum(cell['of'] for cell in cells)}",
                "certified": str(sum(cell["certified"] for cell in cells)),
                "tokens of these named, %": mean([100 * cell["tokens"] for cell in cells]),
                "seconds": seconds(cells),
            },
        )


def _contains(kept: Kept) -> Iterable[Line]:
    for kind, runs in kept.cells.items():
        cells = list(runs.values())
        steps, _, public = kind.partition(" ")
        yield Line(
            page="contains",
            file=kept.file,
            values={
                "model": f"{kept.model}, LoRA",
                "corpus": "Enron",
                "client": "AdamW",
                "steps × sentences": steps.replace("x", " × "),
                "public text": public,
                "runs": str(len(cells)),
                "AUC": mean([cell["auc"] for cell in cells], 0.0, 1.0, ".3f"),
                "found at 1 % false alarms, %": mean([100 * cell["recall at 1 %"] for cell in cells]),
                "found at none, %": mean([100 * cell["recall at none"] for cell in cells]),
                "others at a nominal 1 %, %": mean([100 * cell["confirmed of others"] for cell in cells], form=".1f"),
                "seconds": seconds(cells),
            },
        )


def _defences(kept: Kept) -> Iterable[Line]:
    rows = kept.content["rows"]
    for name in kept.content["order"]:
        row = rows.get(name, {})
        read, asked = row.get("reading"), row.get("candidates")
        if read is None and asked is None:
            continue
        yield Line(
            page="defences",
            file=kept.file,
            values={
                **_setting(kept, name),
                "ROUGE-L of `auto`": "" if read is None else _spread(read["rouge_l"]),
                "control": "" if read is None else _spread(read["control"]),
                "audits (cut)": "" if read is None else f"{read['trials']} ({read['cut']})",
                "candidates confirmed, %": "" if asked is None else _spread(asked.get("confirmed")),
                "AUC of candidates": "" if asked is None else _spread(asked["auc"], ".2f"),
            },
        )


def _setting(kept: Kept, name: str) -> dict[str, str]:
    """What was defended, and how."""
    return {
        "model": kept.model,
        "corpus": corpus(kept.data),
        "client or defence": f"`{name}`" if ":" in name else name,
    }


def _frontiers(kept: Kept) -> Iterable[Line]:
    """What a frontier had of every setting after some time."""
    for run in kept.content["runs"]:
        for point in run["points"]:
            yield Line(
                page="defences",
                file=kept.file,
                values={
                    **_setting(kept, point["setting"]),
                    "ROUGE-L of `auto`": _spread(point["rouge_l"]),
                    "control": _spread(point["control"]),
                    "audits (cut)": f"{point['trials']} (0)",
                    "points of accuracy lost": _spread(point["cost"], ".1f"),
                    "frontier after": run["after"],
                },
            )


def _spread(value: Mapping[str, float] | None, form: str = ".0f") -> str:
    if value is None:
        return ""
    return f"{value['mean']:{form}} [{value['low']:{form}}, {value['high']:{form}}]"


def _checkpoints(kept: Kept) -> Iterable[Line]:
    """What came back at several steps of one training; changes are batch by batch."""
    own = kept.content["settings"]
    for cell in kept.cells:
        yield Line(
            page=own["attack"],
            file=kept.file,
            values={
                "model": f"{kept.model}, step {cell['step']} of its training",
                "corpus": corpus(kept.data),
                "client": "SGD",
                "defence": "none",
                "options": ", ".join(f"{name}={value}" for name, value in own["options"].items()),
                "batch size": str(own["batch_size"]),
                "batches": str(own["trials"]),
                "perplexity": ", ".join(f"{value:.1f}" for value in cell["learned"].values()),
                "best ROUGE-L": _spread(cell["leak"]),
                "change since the first": _spread(cell["change"]),
                "control": _spread(cell["control"]),
            },
        )


def _privacy(kept: Kept) -> Iterable[Line]:
    for name, runs in kept.cells.items():
        losses = [run["estimate"] for run in runs]
        yield Line(
            page="dp-check",
            file=kept.file,
            values={
                "implementation": name,
                "model": kept.model,
                "runs": str(len(runs)),
                "called broken": f"{sum(run['broken'] for run in runs)} of {len(runs)}",
                "of these by the loss": str(sum(run["by_loss"] for run in runs)),
                "loss that was measured": f"{min(losses):.2f} to {max(losses):.2f}",
                "seconds": seconds(runs),
            },
        )
