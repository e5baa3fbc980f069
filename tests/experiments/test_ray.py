"""The same cells on Ray: the same table, even if an actor or the driver dies. Needs gradleak[ray]."""

import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gradleak.bench.lives import PATIENCE, Life, Records
from gradleak.experiments.experiment import RunOptions
from gradleak.experiments.runner.store import read_cells
from gradleak.experiments.sweep.run import sweep
from gradleak.experiments.sweep.table import CSV_FILE, JSON_FILE

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster():
    """The address of a cluster."""
    yield ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False).address_info["gcs_address"]
    ray.shutdown()


def test_24_cells_give_the_same_table_and_a_dead_actor_is_replaced(make, tmp_path, cluster):
    from gradleak.experiments.crews.ray import RayCrew

    config = make(batch_sizes=[1, 2], defenses=["none", "noise:sigma=0.001"], seeds=3)
    assert config.count == 24
    sweep(config, tmp_path / "here", options=RunOptions(executor="inline"))
    crew = RayCrew(config.threads, config.limits, workers=2)
    seen = []

    def kill_one():
        while not crew._reported:  # until an actor has told what it is at
            time.sleep(0.1)
        seen.extend(crew._reported.values())
        seat, _ = next(iter(crew._busy.values()))
        ray.kill(seat)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    result = sweep(config, tmp_path / "there", options=RunOptions(crew=crew))
    killer.join()
    assert result.statuses == {"completed": 24}
    assert seen
    assert sum(cell.attempts for cell in read_cells(tmp_path / "there")) == 25
    for name in (CSV_FILE, JSON_FILE):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


def workers_of(folder):
    """Worker processes that a driver in this folder had actors start."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            here = (place / "cwd").readlink() == folder
            if here and b"gradleak.experiments.runner.serve" in (place / "cmdline").read_bytes():
                found.append(place.name)
    return found


def test_a_killed_driver_is_started_again_and_goes_on(make, tmp_path, cluster, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = make(seeds=12, together=2)
    Path("s.yaml").write_text(config.model_dump_json())
    sweep(config, "local", options=RunOptions(workers=1))
    assert workers_of(tmp_path) == []
    command = ["sweep", "s.yaml", "--out", "there", "--executor", "ray", "--address", cluster, "--workers", "1"]
    records = Records(Path("there"))
    with Path("said.txt").open("wb") as words:
        with Life(command, records, config.count, words) as life:
            while len(records.finished()) < 3 and life.process.poll() is None:
                time.sleep(0.01)
            assert life.kill("driver", random.Random()), Path("said.txt").read_text()
        finished = records.finished()
        records.forget()
        deadline = time.monotonic() + PATIENCE
        while workers_of(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert workers_of(tmp_path) == []
        with Life(command, records, config.count, words) as life:
            assert life.end() == 0, Path("said.txt").read_text()
    again = [entry["cell"] for entry in records.events() if entry["event"] == "begun"]
    print(f"driver killed with {len(finished)} of {config.count} cells finished; then {len(again)} begun")
    assert 3 <= len(finished) < config.count
    assert not finished & set(again)
    assert len(again) == config.count - len(finished)
    for name in (CSV_FILE, JSON_FILE):
        assert Path("local", name).read_bytes() == Path("there", name).read_bytes()


def test_no_cluster_is_a_clear_error(monkeypatch):
    from gradleak import GradleakError
    from gradleak.experiments.crews.ray import RayCrew
    from gradleak.experiments.runner.cell import Limits

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(GradleakError, match="no Ray cluster at nonsense"):
        RayCrew(1, Limits(), address="nonsense")
