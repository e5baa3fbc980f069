"""From jobs to cells: each gets a name that changes with everything that decides its result, and its seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from gradleak.core.identity import digest, digest_code, digest_files, readable
from gradleak.core.seeds import derive_seed
from gradleak.experiments.runner.cell import Cell, Hashes, Seeds
from gradleak.experiments.runner.jobs import Job
from gradleak.experiments.runner.subjects import Subjects

# Seeds as the spec gives them, or derived from what is asked: then cells that differ in anything draw for themselves.
SeedRule = Literal["given", "derived"]


class Planned(NamedTuple):
    """A job, and whom it runs together with: jobs with an equal key that is not None."""

    job: Job
    together: object = None


def plan_cells(planned: Iterable[Planned], subjects: Subjects, threads: int, seeds: SeedRule) -> list[Cell]:
    """One cell a job, in order; the same job twice is the same cell twice."""
    cells, groups = [], defaultdict(list)
    for job, key in planned:
        cells.append(make_cell(job, subjects, threads, seeds))
        if key is not None:
            groups[key].append(cells[-1])
    grouped = {cell.id: _in_group(cell, members) for members in groups.values() for cell in members}
    return [grouped.get(cell.id, cell) for cell in cells]


def make_cell(job: Job, subjects: Subjects, threads: int, seeds: SeedRule) -> Cell:
    """The cell of a job.

    Derived seeds: texts come from the data and the spec's seed alone, so that cells which differ in the attack, the
    defence or the model face the same private batches; where they differ in the attack alone, the same updates. The
    attack's own randomness comes from all that decides the result but the code: what a change to the code does is
    seen under the same draws.
    """
    spec, modality = job.spec, subjects.modality(job.spec)
    model, data = subjects.model_hash(spec), subjects.data_hash(spec)
    decides = {**job.decisive(modality), "model": model, "data": data, "threads": threads}
    code = digest_code(frozenset(job.modules(modality)))
    own = Seeds(
        data=derive_seed(spec.seed, "data", data, spec.max_tokens, spec.window),
        attack=derive_seed(spec.seed, "attack", digest(decides)),
    )
    if seeds == "given":
        own = Seeds(data=spec.seed, attack=spec.seed if spec.attack_seed is None else spec.attack_seed)
    # Beside what seeds are derived from: an attack's must tell nothing of the clients' secret.
    secret = {} if spec.secret is None else {"secret": digest_files(spec.secret)}
    whole = digest({**decides, "kind": job.kind, "code": code, "seeds": own.model_dump(), **secret})
    return Cell(
        id=f"{readable(job.name)}-{whole[:16]}",
        job=job,
        hashes=Hashes(model=model, data=data, code=code),
        seeds=own,
        threads=threads,
    )


def _in_group(cell: Cell, members: Sequence[Cell]) -> Cell:
    """What runs in the same passes is rounded together, so the group is one of the things that decide a result.

    In a group it is another cell than alone, and in another group another one again. Its seeds stay the same.
    """
    if len({member.id for member in members}) < 2:
        return cell
    group = digest({"cells": sorted(member.id for member in members)})[:16]
    name, _, own = cell.id.rpartition("-")
    return cell.model_copy(update={"id": f"{name}-{digest({'alone': own, 'group': group})[:16]}", "group": group})
