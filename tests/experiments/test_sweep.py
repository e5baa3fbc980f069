"""Whole sweeps: what is run, what is kept, what is run again, and that nothing but the cells decides the table."""

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import forked
import pytest
from counted import COUNTED, counted_attack

from gradleak import GradleakError
from gradleak.bench.trust import bench_trust
from gradleak.cli import main
from gradleak.core.budget import Budget
from gradleak.experiments.crews.inline import InlineCrew
from gradleak.experiments.crews.local import LocalCrew
from gradleak.experiments.experiment import RunOptions, preview
from gradleak.experiments.runner.cell import Work
from gradleak.experiments.runner.loop import ATTEMPTS
from gradleak.experiments.runner.plan import plan_cells
from gradleak.experiments.runner.running import run_cells
from gradleak.experiments.runner.store import LOG, PARTS, Store, read_cells
from gradleak.experiments.runner.subjects import Subjects
from gradleak.experiments.sweep.run import Sweep, sweep
from gradleak.experiments.sweep.table import CSV_FILE, JSON_FILE

QUICK = {"steps": 1, "init_draws": 1, "init_orders": 0}


def run(spec, out, retry_failed=False, **more):
    return sweep(spec, out, options=RunOptions(executor="inline", retry_failed=retry_failed), **more)


def plan(spec):
    subjects = Subjects()
    return plan_cells(Sweep(spec).jobs(subjects), subjects, spec.threads, "derived")


def on_workers(spec, out):
    return sweep(spec, out, options=RunOptions(workers=1))


def begun(folder):
    entries = map(json.loads, (folder / LOG).read_text().splitlines())
    return [entry["cell"] for entry in entries if entry["event"] == "begun"]


def tables(folder):
    return [(folder / name).read_bytes() for name in (CSV_FILE, JSON_FILE)]


def test_finished_cells_are_kept_and_changed_ones_run_anew(make, tmp_path):
    first = run(make(), tmp_path)
    assert first.statuses == {"completed": 4}
    cells = list(read_cells(tmp_path))
    assert [cell.id for cell in cells] == [cell.id for cell in plan(make())]
    assert all(cell.results.summary["rougeL"].mean >= 0 and cell.attempts == 1 for cell in cells)
    # Attacks that differ faced the same texts, and seeds that differ faced others.
    truths = {(cell.job.spec.attack, cell.job.spec.seed): cell.results.trials[0].truth for cell in cells}
    assert truths["bag", 0] == truths["tag", 0] != truths["bag", 1] == truths["tag", 1]
    before = tables(tmp_path)
    run(make(), tmp_path)
    assert len(begun(tmp_path)) == 4
    assert tables(tmp_path) == before
    run(make(seeds=3), tmp_path)
    assert len(begun(tmp_path)) == 6
    run(make(attacks=["bag", {"name": "tag", "options": {"steps": 2, "init_draws": 1, "init_orders": 0}}]), tmp_path)
    assert len(begun(tmp_path)) == 8
    run(make(), tmp_path)
    assert len(begun(tmp_path)) == 8
    assert tables(tmp_path) == before


def test_order_does_not_matter(make, tmp_path, monkeypatch):
    config = make(together=2, seeds=3)
    run(config, tmp_path / "a")

    def shuffled(*given):
        return random.Random(1).sample(cells := plan_cells(*given), len(cells))

    monkeypatch.setattr("gradleak.experiments.experiment.plan_cells", shuffled)
    run(config, tmp_path / "b")
    assert begun(tmp_path / "a") != begun(tmp_path / "b")
    assert tables(tmp_path / "a") == tables(tmp_path / "b")


def test_failed_cells_stay_failed_until_they_are_retried(make, tmp_path):
    config = make(observe=["layer:7"], attacks=["bag"], seeds=1)  # the model has one layer
    assert run(config, tmp_path).statuses == {"failed": 1}
    (cell,) = read_cells(tmp_path)
    assert "layer" in cell.error
    assert cell.results is None
    run(config, tmp_path)
    assert len(begun(tmp_path)) == 1
    run(config, tmp_path, retry_failed=True)
    assert len(begun(tmp_path)) == 2


def test_an_unforeseen_error_ends_one_cell_only(make, tmp_path, monkeypatch):
    import gradleak.experiments.runner.running as running

    real = running.audit_together

    def stumbling(questions, model, method, **more):
        if method.name == "tag":
            raise ZeroDivisionError("by zero")
        return real(questions, model, method, **more)

    monkeypatch.setattr(running, "audit_together", stumbling)
    assert run(make(seeds=1), tmp_path).statuses == {"completed": 1, "failed": 1}
    errors = [cell.error for cell in read_cells(tmp_path)]
    assert errors[0] is None
    assert errors[1].startswith("ZeroDivisionError: by zero (test_sweep.py, line ")


def test_cells_that_run_together_are_what_each_is_alone(make, tmp_path):
    """Only their names tell that they ran together; what was left of a group is run again in the same group."""
    settings = {"defenses": ["none", "sign"], "batch_sizes": [1, 2], "attacks": [{"name": "tag", "options": QUICK}]}
    run(make(**settings), tmp_path / "alone")
    config = make(**settings, together=3)
    assert run(config, tmp_path / "groups").statuses == {"completed": 8}
    alone, groups = ({str(cell.job): cell for cell in read_cells(tmp_path / n)} for n in ("alone", "groups"))
    assert Counter(Counter(cell.group for cell in groups.values()).values()) == {3: 2, 2: 1}
    for name, cell in alone.items():
        ours, theirs = cell.results.trials[0], groups[name].results.trials[0]
        assert (cell.id, cell.group) != (groups[name].id, None)
        assert cell.seeds == groups[name].seeds
        assert ours.truth == theirs.truth
        assert ours.reconstruction.loss == pytest.approx(theirs.reconstruction.loss, rel=1e-4)
        assert cell.results.control == groups[name].results.control
    before = tables(tmp_path / "groups")
    lost = next(iter(groups.values()))
    (tmp_path / "groups" / "cells" / f"{lost.id}.json").unlink()
    run(config, tmp_path / "groups")
    assert begun(tmp_path / "groups")[8:] == [lost.id]
    assert tables(tmp_path / "groups") == before


def test_one_bad_cell_does_not_spoil_those_it_runs_with(make, tmp_path):
    config = make(observe=["all", "layer:7"], attacks=["bag"], together=4)  # the model has one layer
    assert run(config, tmp_path).statuses == {"completed": 2, "failed": 2}
    assert {cell.job.spec.observe for cell in read_cells(tmp_path) if cell.status == "failed"} == {"layer:7"}


def test_cells_that_run_together_share_their_limits(make, tmp_path):
    slow = [{"name": "tag", "options": {**QUICK, "steps": 5}}]  # six passes: the last one only judges
    enough = run(make(attacks=slow, together=2, limits={"steps": 6}), tmp_path / "enough")
    assert enough.statuses == {"completed": 2}
    assert run(make(attacks=slow, together=2, limits={"steps": 2}), tmp_path / "few").statuses == {
        "budget-exhausted": 2
    }


def test_a_limit_is_a_status_of_its_own_and_wider_limits_run_again(make, tmp_path):
    slow = [{"name": "tag", "options": {"steps": 50, "init_draws": 1, "init_orders": 0}}]
    config = make(attacks=slow, seeds=1, limits={"steps": 5})
    assert run(config, tmp_path).statuses == {"budget-exhausted": 1}
    (cell,) = read_cells(tmp_path)
    assert (cell.limit, cell.results.status) == ("steps", "budget-exhausted")
    assert "lower bound" in cell.error
    run(config, tmp_path)
    run(make(attacks=slow, seeds=1, limits={"steps": 4}), tmp_path)
    assert len(begun(tmp_path)) == 1
    assert run(make(attacks=slow, seeds=1, limits={"steps": 500}), tmp_path).statuses == {"completed": 1}
    run(config, tmp_path)  # what is completed stays so under narrower limits
    assert len(begun(tmp_path)) == 2


def test_a_stopped_sweep_says_what_it_did_not_run(make, tmp_path):
    over = Budget()
    over.interrupt()
    assert run(make(), tmp_path, budget=over).statuses == {"not run": 4}
    found = preview(Sweep(make()), tmp_path)
    assert (found.cells, len(found.todo), found.estimate.unknown) == (4, 4, 4)
    run(make(), tmp_path)
    assert preview(Sweep(make(together=2)), tmp_path / "none").groups == 2
    found = preview(Sweep(make(seeds=4)), tmp_path)
    assert (found.statuses, len(found.todo), found.estimate.unknown) == ({"completed": 4}, 4, 0)
    assert found.estimate.seconds > 0


def test_a_cell_checks_that_all_is_as_planned(make):
    cell = plan(make())[0]
    for what, message in (("model", "is not the one"), ("data", "is not what"), ("code", "other code")):
        forged = cell.model_copy(update={"hashes": cell.hashes.model_copy(update={what: "other"})})
        (done,) = run_cells(Work((forged,)), Subjects())
        assert done.status == "failed"
        assert message in done.error


def test_killed_at_random_moments(model_folder, tmp_path):
    """The command itself, with its workers; `gradleak bench trust` does the same more often.

    The seed draws everything while the table is written, then the driver while cells run; that a worker which dies
    is replaced is tested below, on forks.
    """
    found = bench_trust(tmp_path / "t", str(model_folder), kills=2, workers=1, seed=383)
    print(found)
    assert set(found.victims) == {"driver", "everything"}
    assert found.held, str(found)


@pytest.mark.usefixtures("forked_workers")
def test_workers_tell_of_every_trial(make, tmp_path, monkeypatch):
    """A worker is killed when the budget ends; what it had finished is there."""
    worked, trials = counted_attack(tmp_path, monkeypatch), 4
    config = make(attacks=[COUNTED], trials=trials, seeds=1)
    out, budget = tmp_path / "out", Budget(seconds=600)

    def watch():
        while not list(out.glob(f"{PARTS}/*.json")):
            time.sleep(0.02)
        budget.interrupt()

    monkeypatch.setenv("SLOW", "0.7")
    threading.Thread(target=watch, daemon=True).start()
    cut = sweep(config, out, options=RunOptions(workers=1), budget=budget)
    assert cut.statuses == {"unfinished": 1}
    (part,) = out.glob(f"{PARTS}/*.json")
    kept = [trial["seed"] for trial in json.loads(part.read_text())["trials"]]
    assert 1 <= len(kept) < trials
    monkeypatch.setenv("SLOW", "0")
    assert run(config, out).statuses == {"completed": 1}
    times = Counter(worked())
    assert len(times) == trials
    assert all(times[str(seed)] == 1 for seed in kept)


# --- several sweeps in one folder -------------------------------------------------------------------


class Abreast(InlineCrew):
    """Runs no cell until all sweeps have one in hand; may be killed at that moment."""

    def __init__(self, barrier, dies):
        super().__init__(1)
        self._barrier, self._dies = barrier, dies

    def start(self, *given):
        if self._barrier is not None:
            self._barrier.wait(60)
            self._barrier = None
        if self._dies:
            os.kill(os.getpid(), signal.SIGKILL)
        super().start(*given)


def abreast(configs, folder, dying=(False, False)):
    """Run sweeps in one folder at the same time, each in a process of its own; their exit codes."""
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(len(configs))
    processes = [
        fork.Process(target=sweep, args=(config, folder), kwargs={"options": RunOptions(crew=Abreast(barrier, dies))})
        for config, dies in zip(configs, dying, strict=True)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def test_two_sweeps_in_one_folder_share_the_work(make, tmp_path):
    config = make(seeds=3)
    run(config, tmp_path / "alone")
    assert abreast([config, config], tmp_path / "both") == [0, 0]
    entries = [json.loads(line) for line in (tmp_path / "both" / LOG).read_text().splitlines()]
    print("cells begun by each of two sweeps:", Counter(one["pid"] for one in entries if one["event"] == "begun"))
    assert len({entry["pid"] for entry in entries}) == 2
    assert sorted(begun(tmp_path / "both")) == sorted(begun(tmp_path / "alone"))
    assert tables(tmp_path / "both") == tables(tmp_path / "alone")


def test_one_of_two_sweeps_is_killed_and_the_other_takes_over(make, tmp_path):
    config = make(seeds=3)
    run(config, tmp_path / "alone")
    assert abreast([config, config], tmp_path / "both", [False, True]) == [0, -signal.SIGKILL]
    times = Counter(begun(tmp_path / "both"))
    print("cells begun once and twice:", Counter(times.values()))
    assert sorted(times.values()) == [1] * 5 + [2]  # the one that the dead sweep had in hand
    assert tables(tmp_path / "both") == tables(tmp_path / "alone")


def test_different_sweeps_in_one_folder(make, tmp_path):
    """They share the cells that both have. The table is the last one's; running again gives either's."""
    configs = [make(seeds=[0, 1]), make(seeds=[1, 2])]
    assert abreast(configs, tmp_path / "both") == [0, 0]
    assert sorted(Counter(begun(tmp_path / "both")).values()) == [1] * 6
    for number, config in enumerate(configs):
        run(config, tmp_path / str(number))
        run(config, tmp_path / "both")
        assert tables(tmp_path / "both") == tables(tmp_path / str(number))
    assert len(begun(tmp_path / "both")) == 6


# --- worker processes -----------------------------------------------------------------------------


def children() -> list[int]:
    """Worker processes of this one that live; forks all of them."""
    found = []
    for worker in forked.STARTED:
        with suppress(OSError):
            state, parent, *_ = Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()
            if state != "Z" and int(parent) == os.getpid():
                found.append(worker)
    return found


def kill_workers(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """So many workers are killed as soon as they are there."""
    before, talk = len(forked.STARTED), forked._talk

    def dying(*given):
        if len(forked.STARTED) < before + times:
            os.kill(os.getpid(), signal.SIGKILL)
        talk(*given)

    monkeypatch.setattr(forked, "_talk", dying)


@pytest.mark.usefixtures("forked_workers")
def test_a_dead_worker_is_replaced_and_its_cell_tried_again(make, tmp_path, monkeypatch):
    config = make(seeds=1)
    run(config, tmp_path / "inline")
    kill_workers(monkeypatch, 1)
    result = on_workers(config, tmp_path / "local")
    assert result.statuses == {"completed": 2}
    assert sorted(cell.attempts for cell in read_cells(tmp_path / "local")) == [1, 2]
    assert tables(tmp_path / "local") == tables(tmp_path / "inline")
    assert children() == []


@pytest.mark.usefixtures("forked_workers")
def test_a_cell_that_kills_every_worker_fails_with_the_reason(make, tmp_path, monkeypatch):
    kill_workers(monkeypatch, ATTEMPTS)
    assert on_workers(make(attacks=["bag"], seeds=1), tmp_path).statuses == {"failed": 1}
    (cell,) = read_cells(tmp_path)
    assert cell.attempts == ATTEMPTS
    assert "died of signal SIGKILL" in cell.error


@pytest.mark.usefixtures("forked_workers")
def test_too_much_memory_is_a_limit_of_its_own(make, tmp_path):
    config = make(attacks=["bag"], seeds=1, limits={"memory": "5MB"})  # less than an interpreter
    assert on_workers(config, tmp_path).statuses == {"budget-exhausted": 1}
    (cell,) = read_cells(tmp_path)
    assert (cell.limit, cell.results) == ("memory", None)
    assert "5MB" in cell.error


def test_no_workers_is_no_crew():
    with pytest.raises(GradleakError, match="at least one"):
        LocalCrew(0, 1, None)


# --- the command ----------------------------------------------------------------------------------


def test_the_command(model_folder, tmp_path, monkeypatch, capsys):
    def gradleak(*words):
        monkeypatch.setattr("sys.argv", ["gradleak", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        shown = capsys.readouterr()
        return end.value.code, shown.out + shown.err

    (tmp_path / "s.yaml").write_text(f"models: [{model_folder}]\nattacks: [bag]\nseeds: 2\ntrials: 1\n")
    code, said = gradleak("sweep", tmp_path / "s.yaml", "--out", tmp_path / "out", "--dry-run")
    assert code == 0
    assert "2 cells; finished: none yet; to run: 2" in said
    assert "nothing measured yet" in said
    assert not (tmp_path / "out").exists()
    code, said = gradleak("sweep", tmp_path / "s.yaml", "--out", tmp_path / "out", "--executor", "inline")
    assert code == 0
    assert "2 completed" in said
    code, said = gradleak("sweep", tmp_path / "s.yaml", "--out", tmp_path / "out", "--executor", "lcoal")
    assert code == 2
    assert "did you mean 'local'" in said
    with Store(tmp_path / "out"):
        code, said = gradleak("sweep", tmp_path / "s.yaml", "--out", tmp_path / "out", "--executor", "inline")
    assert code == 2
    assert "already running" in said
