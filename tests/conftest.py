"""Shared fixtures: the real MiniLM, and every supported family at a tiny random size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from tiny import CASES, tiny_model

from gradleak import TextModel, load_model

# Models this small gain nothing from a second thread, and lose much when something else runs on the machine.
# The suite runs a process a core, and the commands it starts are to keep to theirs too.
torch.set_num_threads(1)
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

# A deadline would measure what else the machine does, and the imports of a first call.
settings.register_profile("gradleak", deadline=None)
# For fuzzing at length: pytest tests/test_fuzz.py --hypothesis-profile thorough -s
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("gradleak")


@pytest.fixture(scope="session")
def minilm() -> TextModel:
    """The real weights; `make test` has fetched them."""
    return load_model("minilm")


@pytest.fixture(scope="session", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def tiny(request: pytest.FixtureRequest) -> TextModel:
    """One supported family and task after the other, with random weights."""
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
    """A cache that no other test has written to."""
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / "cache"))
