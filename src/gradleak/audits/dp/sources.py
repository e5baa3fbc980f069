"""Where the updates of a check come from: a client that is run many times, or a list of recorded ones."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import torch

from gradleak.audits.dp.check import CANDIDATES, UPDATES, Tensors, check_updates
from gradleak.audits.dp.result import DpCheck
from gradleak.audits.dp.subject import flat, own_gradients, promised, promised_loss, subject
from gradleak.audits.run import load_target
from gradleak.audits.spec import AuditSpec
from gradleak.clients.text import Client
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.defenses import known_defenses
from gradleak.defenses.base import Defense
from gradleak.models.tasks.base import GivenLabel
from gradleak.models.text import TextModel, text_target
from gradleak.updates.update import load_update

# Texts that candidates are chosen from. Those whose gradients lie farthest apart show most.
POOL = 24


def check_client(
    spec: AuditSpec,
    noise: float | None = None,
    candidates: int = CANDIDATES,
    updates: int = UPDATES,
    budget: Budget | None = None,
    progress: Progress = SILENT,
    model: TextModel | None = None,
    defenses: Sequence[Defense] | None = None,
) -> DpCheck:
    """Check the client of a spec. `noise` is the multiplier that it promises, if its defences do not say it.

    A loaded model and defences as objects may take the place of those that the spec names.
    """
    given = subject(spec, noise, model, defenses, progress)
    client, rest = given.client, spec.batch_size - 1
    drawn = given.drawn(min(len(given.rows), max(POOL, 2 * candidates) + rest))
    pool = [(text, label) for text in drawn.texts for label in _labels(given.model, drawn.labels)]
    labelled = drawn.labels is not None
    gradients = given.gradients(
        [text for text, _ in pool], [label for _, label in pool] if labelled else None, progress
    )
    # Large opposite gradients beside others that cancel: what a misplaced clipping lets through is one example's.
    chosen = farthest(gradients, candidates)
    taken = {pool[i][0] for i in chosen}
    others = [
        pool[i] for i in cancelling(gradients, [i for i, (text, _) in enumerate(pool) if text not in taken], rest)
    ]

    def send(candidate: int) -> Tensors:
        batch = [pool[chosen[candidate]], *others]
        return client.update([text for text, _ in batch], [label for _, label in batch] if labelled else None).tensors

    return check_updates(
        send,
        [gradients[i] for i in chosen],
        promised_loss(given.promise, client.rule.times_seen(spec.batch_size)),
        updates=updates,
        noise=_deviation(client, spec.batch_size),
        clip=given.clip,
        seed=spec.seed,
        budget=budget,
        progress=progress,
        model=given.model.name,
        defenses=given.defenses,
    )


def cancelling(gradients: Sequence[Tensors], among: Sequence[int], count: int) -> list[int]:
    """Examples whose gradients add up to little: each leaves the smallest sum with those before it."""
    rows = {i: flat(gradients[i], gradients[i]) for i in among}
    chosen: list[int] = []
    total = torch.zeros_like(next(iter(rows.values()))) if rows else torch.zeros(0)
    for _ in range(min(count, len(rows))):
        best = min((i for i in rows if i not in chosen), key=lambda i: float((total + rows[i]).norm()))
        chosen.append(best)
        total = total + rows[best]
    return chosen


def check_recorded(
    table: Path,
    spec: AuditSpec,
    noise: float | None = None,
    budget: Budget | None = None,
    progress: Progress = SILENT,
) -> DpCheck:
    """Check recorded updates: a table says of each which text was in it; the rest of the batch is always the same.

    The table is a .csv with the columns `update` (a folder, from where the table lies), `text`, and `label` for
    classifiers. Every different text is a candidate.
    """
    progress.begin("reading the table", 0)
    lines = _table(table)
    model = text_target(load_target(spec, progress), "dp-check")
    candidates = list(dict.fromkeys((line["text"], line.get("label")) for line in lines))
    first = load_update(table.parent / lines[0]["update"], model)
    client = Client(model, client=first.manifest.client, defenses=())
    labels = None if candidates[0][1] is None else [label for _, label in candidates]
    given = None if labels is None else [int(each) if each and each.isdigit() else str(each) for each in labels]
    gradients = own_gradients(client, [text for text, _ in candidates], given, progress)
    promise = promised([each for each in known_defenses(first.manifest.defenses) if each is not None], noise)
    steps = client.rule.times_seen(first.known.size or spec.batch_size)
    numbers = {candidate: number for number, candidate in enumerate(candidates)}
    waiting = iter(lines)
    upcoming = [numbers[line["text"], line.get("label")] for line in lines]

    def send(candidate: int) -> Tensors:
        return load_update(table.parent / next(waiting)["update"], model).tensors

    return check_updates(
        send,
        gradients,
        promised_loss(promise, steps),
        updates=len(lines),
        inside=upcoming,
        budget=budget,
        progress=progress,
        model=model.name,
        defenses=list(first.manifest.defenses),
    )


def _labels(model: TextModel, given: Sequence[GivenLabel] | None) -> Sequence[GivenLabel]:
    """What a candidate's label may be: opposite ones have opposite gradients, which is the clearest case there is."""
    return [0] if given is None else list(range(min(2, model.num_labels))) if model.goal.one_per_text else given[:1]


def farthest(gradients: Sequence[Tensors], count: int) -> list[int]:
    """The gradients that lie farthest apart: the two farthest, then whichever is farthest from all before it."""
    rows = torch.stack([flat(own, gradients[0]) for own in gradients])
    distances = torch.cdist(rows, rows)
    chosen = list(divmod(int(distances.argmax()), len(rows)))
    while len(chosen) < min(count, len(rows)):
        chosen.append(int(distances[chosen].amin(dim=0).argmax()))
    return chosen[:count]


def _deviation(client: Client, examples: int) -> float | None:
    """What noise every entry should have; None where no formula says, or another defence changes it."""
    deviations = [defense.noise_std(client.rule, examples) for defense in client.defenses]
    if any(each is None for each in deviations) or any(d.alters and d.lossy for d in client.defenses):
        return None
    return math.hypot(*(each for each in deviations if each is not None)) or None


def _table(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise GradleakError(f"cannot read {path}: {error}") from error
    missing = [name for name in ("update", "text") if not lines or not lines[0].get(name)]
    if missing:
        raise GradleakError(
            f"{path} needs a column {missing[0]!r}: one line per update, with the text that was in it"
        )
    return lines
