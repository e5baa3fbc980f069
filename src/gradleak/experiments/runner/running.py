"""Running cells, in a process that keeps what it loaded for the next ones."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradleak.attacks.inversion.saved import MANIFEST
from gradleak.attacks.inversion.train_text import train_inverter, usual_network
from gradleak.attacks.inversion.training import STATE_FILE, TrainSettings
from gradleak.audits.modality import method_of
from gradleak.audits.results import Results
from gradleak.audits.run import AuditCase, audit_together, run_secret
from gradleak.core.assets import cache_folder
from gradleak.core.budget import Budget, LimitName
from gradleak.core.errors import GradleakError
from gradleak.core.identity import digest, digest_code
from gradleak.core.privacy import described, redacting
from gradleak.core.progress import SILENT, Progress
from gradleak.data.corpora import read_rows
from gradleak.experiments.runner.cell import Cell, EndedCell, Ends, Limits, Status, Work
from gradleak.experiments.runner.jobs import AuditJob, Learned, TrainingJob
from gradleak.experiments.runner.keeper import Keeper, StoppedError
from gradleak.experiments.runner.subjects import Subjects
from gradleak.models.base import Target
from gradleak.models.text import text_target
from gradleak.training.rounds import federate, split


def run_cells(
    work: Work,
    subjects: Subjects,
    *,
    begun: Callable[[], None] = lambda: None,
    within: Budget | None = None,
    progress: Progress = SILENT,
) -> Ends:
    """How each of these cells ended, which share a model and an attack. An error of any kind ends its own cell only.

    `begun` is called when the model is loaded: from then on time counts, so that it does not matter who loads it.
    `within` ends all of them when it is over: what is not finished then did not end, and only its finished trials are
    kept.
    """
    with redacting(any(cell.job.spec.redact for cell in work.cells)):
        return _run(work, subjects, begun, within, progress)


def _run(
    work: Work, subjects: Subjects, begun: Callable[[], None], within: Budget | None, progress: Progress
) -> Ends:
    started, cells, limits = time.monotonic(), work.cells, work.limits
    try:
        for cell in cells:
            _check(cell, subjects)
        model = subjects.model(cells[0].job.spec)
        begun()
        end = work.end(within)
        outlives = limits.outlive(len(cells), end)
        budget = limits.budget(len(cells), end)
        keeper = Keeper(work, model.modality, started, end)
        outcomes = _outcomes(keeper, model, subjects, budget, progress)
    except StoppedError:
        keeper.gave_way()
        return []
    except Exception as problem:  # a cell must not take the others down, whatever it stumbles over
        if len(cells) > 1:  # only one may be at fault
            each = [
                run_cells(replace(work, cells=(cell,)), subjects, begun=begun, within=within, progress=progress)
                for cell in cells
            ]
            return [end for ends in each for end in ends]
        error = str(problem) if isinstance(problem, GradleakError) else described(problem)
        return _unless_over(
            within, [ended(cells[0], "failed", limits, error=error, seconds=time.monotonic() - started)]
        )
    seconds = (time.monotonic() - started) / len(cells)
    ends = [
        _end(cell, outcome, limits, budget, seconds + keeper.before(cell))
        for cell, outcome in zip(cells, outcomes, strict=True)
    ]
    # Work that sees the experiment's end come stops a little before it.
    kept = [each for each in _unless_over(end, ends) if not (outlives and each.limit == "time")]
    if not kept:
        keeper.gave_way()
    return kept


def _unless_over(within: Budget | None, ends: Ends) -> Ends:
    """Without what the experiment's own end cut short: that did not end, and the next run goes on with it."""
    return [end for end in ends if end.status == "completed" or within is None or not within.over]


def _check(cell: Cell, subjects: Subjects) -> None:
    """Refuse to run a cell whose model, data or code is no longer what its experiment was planned with."""
    spec = cell.job.spec
    subjects.check(spec, cell.hashes.model, cell.hashes.data)
    if digest_code(frozenset(cell.job.modules(subjects.modality(spec)))) != cell.hashes.code:
        raise GradleakError("this worker runs other code than the experiment was planned with")


def _outcomes(
    keeper: Keeper, model: Target, subjects: Subjects, budget: Budget, progress: Progress
) -> list[Results] | list[Learned | None]:
    work = keeper.work
    if isinstance(work.cells[0].job, TrainingJob):
        return [_train(work.cells[0], work.cells[0].job, model, subjects, budget, progress)]
    cases = [replace(_case(cell, model, subjects, budget, progress), kept=keeper.kept(cell)) for cell in work.cells]
    method = method_of(cases[0].spec, model.modality)
    return audit_together(
        cases, model, method, one_by_one=work.one_by_one, measured=keeper.measured, budget=budget, progress=progress
    )


def _case(cell: Cell, model: Target, subjects: Subjects, budget: Budget, progress: Progress) -> AuditCase:
    assert isinstance(cell.job, AuditJob)
    spec = cell.job.spec.with_(seed=cell.seeds.data, attack_seed=cell.seeds.attack)
    if cell.job.inverter is not None:
        folder = _inverter(cell, model, budget, progress)
        spec = spec.with_(options={**spec.options, "inverter": str(folder)})
    return AuditCase(spec, subjects.data(spec), in_memory=subjects.data_in_memory)


def _inverter(cell: Cell, model: Target, budget: Budget, progress: Progress) -> Path:
    """The folder of the network that the attack of a cell reads updates with: kept in the cache, or trained now."""
    assert isinstance(cell.job, AuditJob)
    assert cell.job.inverter is not None
    part, defenses = cell.job.inverter, cell.job.spec.defenses
    decides = {**part.decisive(), "defenses": defenses, "model": cell.hashes.model, "code": cell.hashes.code}
    folder = cache_folder() / "inverters" / digest(decides)[:32]
    target = text_target(model, "lti")
    with _alone(folder):
        if not (folder / MANIFEST).is_file() or (folder / STATE_FILE).is_file():
            manifest, _ = train_inverter(
                target, folder, aux=_texts(part.aux), pseudo=part.pseudo, size=part.size,
                other=_texts(part.other), share=part.share, defenses=defenses,
                network=usual_network(target, **part.network),
                settings=TrainSettings.model_validate(part.training), budget=budget, progress=progress,
            )  # fmt: skip
            if manifest.training.status != "completed":
                raise GradleakError("the time limit ended the training of the inverter; run again to continue it")
    return folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process is at work on a folder of the cache."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _texts(source: str | None) -> list[str]:
    return [] if source is None else [row.text for row in read_rows(source)]


def _train(
    cell: Cell, job: TrainingJob, model: Target, subjects: Subjects, budget: Budget, progress: Progress
) -> Learned | None:
    """How good the model gets; None if the budget ended the training; its state stays in the cache."""
    started, spec = time.monotonic(), job.spec
    learner = subjects.learner(spec)
    train, test = split(learner.pool(job.rounds.max_tokens), job.rounds, spec.seed)
    trained: Target | None = model
    if job.trained:
        secret = run_secret(spec).child(subjects.model_hash(spec), subjects.data_hash(spec))
        trained = federate(
            learner, model, train, job.rounds, chain=spec.defenses, client=spec.client, seed=spec.seed, secret=secret,
            budget=budget, state=cache_folder() / "trainings" / f"{cell.id}.pt", progress=progress, what=job.name,
        )  # fmt: skip
    if trained is None:
        return None
    return Learned(
        metrics=learner.quality(trained, test),
        majority=learner.majority(model, test),
        seconds=round(time.monotonic() - started, 2),
    )


def _end(cell: Cell, results: Results | Learned | None, limits: Limits, budget: Budget, seconds: float) -> EndedCell:
    if isinstance(results, Learned):
        return ended(cell, "completed", limits, learned=results, seconds=seconds)
    if results is not None and results.status == "completed":
        return ended(cell, "completed", limits, results=results, seconds=seconds)
    limit = budget.stopped_by or "time"
    what = "the training" if results is None else "the attack"
    bound = "" if results is None else "; its scores are a lower bound"
    error = f"{what} reached its limit of {_amount(limits, limit)}{bound}"
    return ended(cell, "budget-exhausted", limits, limit=limit, error=error, results=results, seconds=seconds)


def ended(
    cell: Cell,
    status: Status,
    limits: Limits,
    *,
    seconds: float,
    limit: LimitName | None = None,
    error: str | None = None,
    attempts: int = 1,
    results: Results | None = None,
    learned: Learned | None = None,
) -> EndedCell:
    """A cell with how it ended."""
    return EndedCell(
        **dict(cell),
        status=status,
        limit=limit,
        error=error,
        limits=limits,
        attempts=attempts,
        seconds=round(seconds, 3),
        results=results,
        learned=learned,
    )


def _amount(limits: Limits, limit: LimitName) -> str:
    value: Any = limits.model_dump()[limit]
    if value is None:  # the limit is the whole experiment's
        return limit
    return f"{value:,} steps" if limit == "steps" else str(value)
