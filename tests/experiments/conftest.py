"""A tiny model on disk and sweeps of cells that take a fraction of a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_model, tiny_tokenizer

from gradleak.experiments.sweep.spec import SweepSpec

QUICK = {"steps": 1, "init_draws": 1, "init_orders": 0}


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("sweep-model")
    tiny_model("bert", "classification", layers=1).module.save_pretrained(place)
    tiny_tokenizer("bert").save_pretrained(place)
    return place


@pytest.fixture
def make(model_folder) -> Callable[..., SweepSpec]:
    """A sweep of the tiny model with these settings on top."""

    def build(**settings: object) -> SweepSpec:
        usual = {
            "models": [str(model_folder)],
            "attacks": ["bag", {"name": "tag", "options": QUICK}],
            "seeds": 2,
            "trials": 1,
        }
        return SweepSpec.model_validate({**usual, **settings})

    return build
