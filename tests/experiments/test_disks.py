"""Sweeps on real disks that are full or read-only: a clear error, and nothing that was finished is lost.

A small disk is a tmpfs in a namespace of the child process that runs the sweeps, so no rights are needed on most
systems. Where it cannot be had, the tests in test_store.py still stand for it.
"""

from itertools import pairwise
from pathlib import Path

from small_disks import elsewhere, mount, small_disk

from gradleak import GradleakError
from gradleak.experiments.experiment import RunOptions
from gradleak.experiments.runner.known import FILE as MODELS
from gradleak.experiments.runner.store import CELLS, PLAN, Store
from gradleak.experiments.sweep.run import sweep
from gradleak.experiments.sweep.table import CSV_FILE, JSON_FILE


def tables(folder):
    return [(folder / name).read_bytes() for name in (CSV_FILE, JSON_FILE)]


def attempt(config, place):
    """What the sweep said, None if it came to its end, and the cells that are finished, each read whole."""
    said = None
    try:
        sweep(config, place, options=RunOptions(executor="inline"))
    except GradleakError as error:
        said = str(error)
    cells = Store(place)
    return said, {name: cells.head(name).status for name in cells.names()}


def grown(config, place, step):
    """Run a sweep on a disk that is too small, then on a slightly larger one, and so on to its end."""
    small_disk(place, f"size={step}k")
    seen, size = [], step
    while True:
        seen.append(attempt(config, place))
        if seen[-1][0] is None:
            return seen, tables(place)
        size += step
        mount("-o", f"remount,size={size}k", place)


def read_only(config, place):
    """Run a part of a sweep, then all of it on the disk made read-only, then all of it."""
    small_disk(place, "size=10m")
    seen = [attempt(config.model_copy(update={"seeds": (0,)}), place)]
    mount("-o", "remount,ro", place)
    seen.append(attempt(config, place))
    mount("-o", "remount,rw", place)
    seen.append(attempt(config, place))
    return seen, tables(place)


def test_a_full_disk_wherever_it_becomes_full(make, tmp_path):
    """In the plan, in a cell, in the log, in the table: step by step the disk gets larger."""
    config, place = make(), tmp_path / "small"
    sweep(config, tmp_path / "quiet", options=RunOptions(executor="inline"))
    place.mkdir()
    seen, table = elsewhere(grown, config, place, 4)
    *full, (_, finished) = seen
    stuck = {
        Path(said.removeprefix("cannot write ").partition(": ")[0]).relative_to(place).parts[0] for said, _ in full
    }
    print("cells finished on disks that got full:", [len(cells) for _, cells in full], "in", sorted(stuck))
    assert all(said.endswith(": No space left on device") for said, _ in full)
    assert stuck >= {CELLS, JSON_FILE}
    assert stuck & {MODELS, PLAN}
    assert all(before.items() <= after.items() for (_, before), (_, after) in pairwise(seen))
    assert list(finished.values()) == ["completed"] * 4
    assert table == tables(tmp_path / "quiet")


def test_a_read_only_disk(make, tmp_path):
    config = make()
    sweep(config, tmp_path / "quiet", options=RunOptions(executor="inline"))
    (tmp_path / "small").mkdir()
    ((_, first), (said, then), (_, last)), table = elsewhere(read_only, config, tmp_path / "small")
    print("cells finished before, on and after a read-only disk:", len(first), len(then), len(last))
    assert said == f"cannot write to the folder {tmp_path / 'small'}: Read-only file system"
    assert first == then
    assert (len(first), len(last)) == (2, 4)
    assert table == tables(tmp_path / "quiet")
