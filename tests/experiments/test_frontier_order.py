"""A frontier in the time there is: what is hopeless waits, both halves go on, and a short run says what it knows."""

import json
import time

import pytest
from tiny import tiny_model, tiny_tokenizer

from gradleak.experiments.experiment import RunOptions
from gradleak.experiments.frontier.order import FrontierOrder
from gradleak.experiments.frontier.run import frontier
from gradleak.experiments.frontier.spec import FrontierSpec
from gradleak.experiments.runner.cell import Cell, Limits, Part, Work
from gradleak.experiments.runner.store import Store, read_cells
from gradleak.experiments.runner.worker import Worker

INLINE = RunOptions(executor="inline")
LOUD = "noise:sigma=10.0"


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    tiny_model("bert", "classification", layers=3, width=64).module.save_pretrained(place)
    tiny_tokenizer("bert").save_pretrained(place)
    return FrontierSpec(
        model=str(place), trials=6, attacks=["exact"], defenses=["frozen", LOUD],
        utility={"rounds": 2, "clients": 2, "batch_size": 2, "lr": 0.01, "seeds": 2, "test_rows": 10},
    )  # fmt: skip


@pytest.fixture(scope="module")
def long(spec, tmp_path_factory):
    out = tmp_path_factory.mktemp("long")
    return frontier(spec, out, options=INLINE), out


def ordered(long, folder, kept):
    """What is to be run next, by name, if the folder holds those of the finished cells that `kept` names."""
    _, out = long
    ended = {cell.id: cell for cell in read_cells(out)}
    plan = [ended[name] for name in json.loads((out / "plan.json").read_text())["cells"]]
    order = FrontierOrder(plan, 1, 3, [0, 1], "rougeL", "accuracy")
    (folder / "cells").mkdir(parents=True)
    with Store(folder) as store:
        for cell in plan:
            if cell.id.startswith(kept):
                store.keep(cell)
        left = [(cell,) for cell in plan if not cell.id.startswith(kept)]
        return [group[0].job.name for group in order(left, [], store)]


def test_floors_first_then_both_kinds_in_turn(long, tmp_path):
    names = ordered(long, tmp_path, ("nothing",))
    assert [name.split()[0] for name in names[:2]] == ["untrained", "untrained"]
    kinds = [name.split()[0] for name in names[2:8]]
    assert kinds == ["exact", "training"] * 3
    assert "none" in names[2]
    assert names[3] == "training none s0"
    assert len(names) == 3 + 2 + 6, "nothing is left out"


def test_the_kind_that_had_less_time_is_next(long, tmp_path):
    assert ordered(long, tmp_path / "a", ("untrained", "exact-b1-fedsgd-none"))[0] == "training none s0"
    assert ordered(long, tmp_path / "b", ("untrained", "training"))[0].startswith("exact")


def test_a_seed_of_every_setting_comes_before_the_next_of_any(long, tmp_path):
    """All seeds of the undefended one used to come first: a short run had nothing to compare them with."""
    names = [name for name in ordered(long, tmp_path, ("nothing",)) if name.startswith("training")]
    assert [name.split()[-1] for name in names] == ["s0"] * 3 + ["s1"] * 3
    assert [names[0], names[3]] == ["training none s0", "training none s1"]


def test_what_is_hopeless_waits_for_the_others(long, tmp_path):
    """As much is read with frozen embeddings as without: its trainings come last, though listed before noise."""
    result, _ = long
    assert result.status == "completed"
    assert [point.score.leak.mean for point in result.points][:2] == [100, 100]
    names = ordered(long, tmp_path, ("untrained", "exact", "training-none"))
    assert [name.split()[1].split(":")[0] for name in names] == ["noise", "noise", "frozen", "frozen"]


def test_a_short_run_ends_in_time_and_says_what_it_knows(spec, long, tmp_path):
    whole, _ = long
    started = time.monotonic()
    short = frontier(spec, tmp_path, options=INLINE, budget=1.0)
    assert time.monotonic() - started < 60  # loading and planning are not counted
    if short.status != "completed":
        assert short.advice.startswith(("No advice yet", "So far")), short.advice
        assert short.so_far
    again = frontier(spec, tmp_path, options=INLINE)
    assert again.advice == whole.advice
    assert [point.attacks for point in again.points] == [point.attacks for point in whole.points]


@pytest.mark.own_process
def test_a_worker_says_that_a_turn_is_over(long):
    """No cell has ended then; a loop that waited for one would do nothing until its budget is over."""
    _, out = long
    cell = next(cell for cell in read_cells(out) if cell.id.startswith("exact"))
    plain, parts = Cell.model_validate(cell.model_dump(include=set(Cell.model_fields))), []
    worker = Worker(1, None)
    worker.start(Work((plain,), Limits(), True, 0.0, {plain.id: Part(id=plain.id)}, parts.append))
    try:
        deadline = time.monotonic() + 120
        while (end := worker.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        worker.close()
    assert end == []
    assert 0 < sum(len(part.trials) for part in parts) < plain.job.spec.trials
