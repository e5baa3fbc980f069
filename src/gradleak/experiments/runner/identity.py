"""What a cell is: a hash of everything that decides its result, and the seeds that follow from it."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradleak.attacks import ATTACKS
from gradleak.audits.spec import AuditConfig
from gradleak.core.progress import SILENT, Progress
from gradleak.core.seeds import derive_seed
from gradleak.data.texts import read_data
from gradleak.defenses.chains import NONE, Chain, canonical
from gradleak.experiments.kept import digest, digest_model, digest_rows, readable
from gradleak.experiments.runner.cell import Cell, Hashes, Seeds
from gradleak.experiments.runner.code import code_version
from gradleak.experiments.runner.known import KnownModels, looks
from gradleak.experiments.sweep.plan import ModelSpec, SweepConfig
from gradleak.models.load import load_text_model
from gradleak.updates.update import GRANTS, ClientRule


def plan_cells(config: SweepConfig, known: KnownModels | None = None, progress: Progress = SILENT) -> list[Cell]:
    """All cells of a sweep, each once.

    A model whose hash is not `known` is loaded once, added to what is known, and let go again.
    """
    known = KnownModels() if known is None else known
    models = {spec: _model_hash(spec, config.device, known, progress) for spec in dict.fromkeys(config.models)}
    data = {spec: digest_rows(read_data(*spec.model_dump().values())) for spec in dict.fromkeys(config.data)}
    cells: dict[str, Cell] = {}
    for model, source, settings in config.audits():
        cell = make_cell(settings, models[model], data[source], config.threads)
        cells.setdefault(cell.id, cell)
    return grouped(list(cells.values()), config.together)


def make_cell(settings: AuditConfig, model: str, data: str, threads: int) -> Cell:
    """The cell of an audit on a model and data of these hashes.

    Texts and clients' noise come from the data and the sweep's seed alone, so that cells which differ in the attack,
    the defence or the model face the same private batches. The attack's own randomness comes from all that decides
    the result but the code: what a change to the code does is seen under the same draws.
    """
    said = _canonical(settings)
    decides = {**said, "model": model, "data": data, "threads": threads}
    code = code_version(settings.attack, settings.defenses)
    return Cell(
        id=f"{readable(_name(said))}-{digest({**decides, 'code': code})[:16]}",
        settings=settings,
        hashes=Hashes(model=model, data=data, code=code),
        seeds=Seeds(
            data=derive_seed(settings.seed, "data", data, settings.max_tokens, settings.window),
            attack=derive_seed(settings.seed, "attack", digest(decides)),
        ),
        threads=threads,
    )


def grouped(cells: Sequence[Cell], together: int) -> list[Cell]:
    """The cells, up to so many of one model and attack in a group, in the order of the plan.

    What runs in the same passes is rounded together, so a cell's company is one of the things that decide its result:
    in a group it is another cell than alone, and in another group another one again. Its draws stay the same.
    """
    alike: dict[object, list[Cell]] = defaultdict(list)
    for cell in cells:
        options = _options(cell.settings.attack, _said(cell.settings))
        alike[cell.hashes.model, cell.settings.attack, digest(options)].append(cell)
    found: dict[str, Cell] = {}
    for kin in alike.values():
        for first in range(0, len(kin), together):
            members = kin[first : first + together]
            group = digest({"cells": sorted(cell.id for cell in members)})[:16] if len(members) > 1 else None
            found.update((cell.id, _in_group(cell, group)) for cell in members)
    return [found[cell.id] for cell in cells]


def _in_group(cell: Cell, group: str | None) -> Cell:
    if group is None:
        return cell
    name, _, own = cell.id.rpartition("-")
    return cell.model_copy(update={"id": f"{name}-{digest({'alone': own, 'group': group})[:16]}", "group": group})


def _name(said: dict[str, Any]) -> str:
    """What people look for among files, the same for every way to write it; models and data go by their hashes."""
    chain = " ".join(said["defenses"]) or NONE
    return f"{said['attack']} b{said['batch_size']} {said['client']} {chain} {said['observe']} s{said['seed']}"


# Settings that decide nothing by themselves: models and data count by their hashes.
_ASIDE = {"model", "task", "num_labels", "data", "text_column", "label_column", "budget", "out"}


def _canonical(settings: AuditConfig) -> dict[str, Any]:
    """The settings that decide a result, the same for every way to write them."""
    return {
        **settings.model_dump(mode="json", exclude=_ASIDE),
        "options": _options(settings.attack, _said(settings)),
        "client": str(_rule(settings.client)),
        "defenses": _chain(settings.defenses),
        "device": settings.device.partition(":")[0],
        "known": [name for name in GRANTS if name in settings.known],
    }


def _model_hash(spec: ModelSpec, device: str, known: KnownModels, progress: Progress) -> str:
    key = looks(spec.model, (spec.task, spec.num_labels))
    if key is None or key not in known.hashes:
        model = load_text_model(
            spec.model, task=spec.task, num_labels=spec.num_labels, device=device, progress=progress
        )
        found = digest_model(model)
        if key is None:
            return found
        known.hashes[key] = found
    return known.hashes[key]


def _said(settings: AuditConfig) -> str:
    return json.dumps(settings.options, sort_keys=True, default=str)


@functools.lru_cache(maxsize=1024)
def _options(attack: str, said: str) -> dict[str, Any]:
    """What was said, in its own types; what was left unsaid may depend on the model and is up to the code.

    An option that names a file or folder, such as a prior or a trained inverter, counts by what is in it.
    """
    options = ATTACKS.get(attack).from_settings(json.loads(said)).options
    found = options.model_dump(mode="json", include=options.model_fields_set)
    return {name: _content(value) if isinstance(value, str) else value for name, value in found.items()}


def _content(value: str) -> str:
    """A hash of the files that a text names, or the text itself if it names none."""
    try:
        place = Path(value)
        files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
        if not value or not files[0].is_file():
            return value
    except (OSError, ValueError, IndexError):  # a text that no file can be named by, or an empty folder
        return value
    found = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            found.update(f"{path.relative_to(place)} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return found.hexdigest()


_rule = functools.lru_cache(maxsize=1024)(ClientRule.parse)


@functools.lru_cache(maxsize=1024)
def _chain(chain: Chain) -> tuple[str, ...]:
    return tuple(canonical(chain))
