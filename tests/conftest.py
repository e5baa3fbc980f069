"""Shared fixtures: the real MiniLM, and every supported family at a tiny random size."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import forked
import pytest
import torch
from hypothesis import settings
from tiny import ALL_CASES, CASES, tiny_model

from gradleak import TextModel, load_model
from gradleak.core.assets import cache_folder

# Models this small gain nothing from a second thread, and lose much when something else runs on the machine.
# The suite runs a process a core, and the commands it starts are to keep to theirs too.
torch.set_num_threads(1)
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
# Where no bytecode is kept, each of them, and every run, would compile the package and the tests again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# What is imported and collected stays: to look through it again and again for rubbish takes a tenth of the time.
gc.disable()

# A deadline would measure what else the machine does, and the imports of a first call.
# Half as many examples as usual: every run draws others, and there are many runs.
settings.register_profile("gradleak", deadline=None, max_examples=50)
# For fuzzing at length: pytest tests/test_fuzz.py --hypothesis-profile thorough -s
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("gradleak")

# What `make test-fast` leaves out: whole commands in processes of their own, real weights, every attack on every
# family, browsers, fuzzing at length.
SLOW = {
    "test_cli", "test_attacks", "test_extending", "test_kept_results", "test_sweep", "test_disks", "test_ray",
    "test_page", "test_fuzz", "test_contract", "test_recipes", "test_map", "test_image_verdict",
    "test_image_flow", "test_defended", "test_film", "test_auto", "test_convert", "test_update",
    "test_further_families", "test_unlisted_families", "test_image_models", "test_tasks", "test_long_texts",
    "test_pairs_end_to_end", "test_image_exact", "test_soft",
    "test_finetune", "test_training_checkpoints", "test_errors", "test_command_line_fuzz",
}  # fmt: skip


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        real = item.get_closest_marker("real") or "minilm" in getattr(item, "fixturenames", ())
        if real or item.path.stem in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that a test leaves in a call which nothing ends must not end the process with the next command."""
    monkeypatch.setattr("gradleak.core.supervision._left_behind", [])


@pytest.fixture(autouse=True)
def foreign_files_in_a_fork(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of others are read in a process of its own, which takes two seconds to import torch; a fork has it."""
    if request.node.get_closest_marker("own_process") is None:
        monkeypatch.setattr("gradleak.core.foreign.subprocess", forked)


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of experiments are forks of this process too, where not the process itself is what is tested."""
    monkeypatch.setattr("gradleak.experiments.runner.worker.subprocess", forked)


@pytest.fixture(scope="session")
def minilm() -> TextModel:
    """The real weights; `make test` has fetched them."""
    return load_model("minilm")


@pytest.fixture(scope="session", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def tiny(request: pytest.FixtureRequest) -> TextModel:
    """One family and task after the other, with random weights: those whose architectures differ most."""
    return tiny_model(*request.param)


@pytest.fixture(scope="session", params=ALL_CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def any_tiny(request: pytest.FixtureRequest) -> TextModel:
    """Every supported family and task, for tests that take milliseconds."""
    return tiny_model(*request.param)


@pytest.fixture(scope="session")
def tiny_bert() -> TextModel:
    return tiny_model("bert", "classification")


@pytest.fixture(params=("gpt2", "llama"))
def writer(request: pytest.FixtureRequest) -> TextModel:
    """A causal language model of each family, with enough layers that some stay below those that FILM moves."""
    return tiny_model(request.param, "causal-lm", layers=3, width=32)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that no other test has written to, but for corpora and what is counted in them, which takes seconds."""
    for name in ("assets", "priors"):
        shared = cache_folder() / name
        shared.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cache").mkdir(exist_ok=True)
        (tmp_path / "cache" / name).symlink_to(shared)
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / "cache"))
