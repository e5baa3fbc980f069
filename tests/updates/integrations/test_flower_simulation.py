"""The example project under Flower's own simulation engine, then `gradleak attack` on what it left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

from tiny import tiny_model

from gradleak.models.load import save_model
from gradleak.updates.update import load_update

EXAMPLE = Path(__file__).parents[3] / "examples" / "flower_run.py"


def run(*words, cwd):
    # Flower would fetch nothing, but Ray and Flower both report usage unless told not to.
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "COLUMNS": "160"}
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, cwd=cwd, env={**os.environ, **quiet},
        check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_the_example_leaves_updates_that_auto_reads(tmp_path):
    model = tiny_model("bert", "classification", layers=4, width=128)
    place = save_model(model.module, model.tokenizer, tmp_path / "global")
    told = run(EXAMPLE, "--model", place, "--out", "updates", "--on-clients", cwd=tmp_path)
    commands = [line.split()[1:] for line in told.splitlines() if line.startswith("gradleak attack")]
    assert len(commands) == 3
    for _, folder, *_ in commands:
        again = tmp_path / "updates-on-clients" / "round-0001" / Path(folder).name
        assert load_update(folder).manifest == load_update(again).manifest
    told = run("-m", "gradleak", *commands[0], "-o", "steps=5", cwd=tmp_path)
    assert "What was read back" in told
