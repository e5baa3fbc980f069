"""The same cells on Ray: the same table, even if an actor dies. Needs gradleak[ray]."""

import threading
import time

import pytest

from gradleak.runner.inline import InlineCrew
from gradleak.runner.store import read_cells
from gradleak.runner.sweep import sweep
from gradleak.runner.table import CSV_FILE, JSON_FILE

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_24_cells_give_the_same_table_and_a_dead_actor_is_replaced(make, tmp_path, cluster):
    from gradleak.runner.ray import RayCrew

    config = make(batch_sizes=[1, 2], defenses=["none", "noise:sigma=0.001"], seeds=3)
    assert config.count == 24
    sweep(config, tmp_path / "here", crew=InlineCrew(1))
    crew = RayCrew(config.threads, config.limits, workers=2)
    seen = []

    def kill_one():
        while not crew._told:  # until an actor has said what it is at
            time.sleep(0.1)
        seen.extend(crew._told.values())
        seat, _ = next(iter(crew._busy.values()))
        ray.kill(seat)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    result = sweep(config, tmp_path / "there", crew=crew)
    killer.join()
    assert result.statuses == {"completed": 24}
    assert seen
    assert sum(cell.attempts for cell in read_cells(tmp_path / "there")) == 25
    for name in (CSV_FILE, JSON_FILE):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


def test_no_cluster_is_a_clear_error(monkeypatch):
    from gradleak import GradleakError
    from gradleak.runner.cell import Limits
    from gradleak.runner.ray import RayCrew

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(GradleakError, match="no Ray cluster at nonsense"):
        RayCrew(1, Limits(), address="nonsense")
