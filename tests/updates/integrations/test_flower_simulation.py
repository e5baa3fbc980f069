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

from gradleak import load_model
from gradleak.models.load import save_model
from gradleak.updates.update import load_update

EXAMPLES = Path(__file__).parents[3] / "examples"


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
    told = run(EXAMPLES / "flower_run.py", "--model", place, "--out", "updates", "--on-clients", cwd=tmp_path)
    commands = [line.split()[1:] for line in told.splitlines() if line.startswith("gradleak attack")]
    assert len(commands) == 3
    for _, folder, *_ in commands:
        again = tmp_path / "updates-on-clients" / "round-0001" / Path(folder).name
        assert load_update(folder).manifest == load_update(again).manifest
    told = run("-m", "gradleak", *commands[0], "-o", "steps=5", cwd=tmp_path)
    assert "What was read back" in told


def test_clients_that_send_adapters_trained_by_adamw_end_in_a_verdict(tmp_path):
    pytest.importorskip("peft")
    model = tiny_model("llama", "causal-lm")
    place = save_model(model.module, model.tokenizer, tmp_path / "global")
    told = run(EXAMPLES / "flower_lora.py", "--model", place, "--out", "updates", cwd=tmp_path)
    commands = [line.split()[1:] for line in told.splitlines() if line.startswith("gradleak attack")]
    assert len(commands) == 3
    adapters = load_model(tmp_path / "updates" / "round-0001" / "model")
    for _, folder, *_ in commands:
        update = load_update(folder, adapters)
        assert str(update.manifest.client) == "adamw:epochs=2,batch=2,lr=0.0002"
        assert update.known.batch_size == 4
        assert all("lora_A" in name or "lora_B" in name for name in update.tensors)
        assert any("lora_A" in name for name in update.tensors)  # from the second step on
    run("-m", "gradleak", *commands[0], "--out", "attacked", "--budget", "20s", cwd=tmp_path)
    told = run("-m", "gradleak", "verdict", "attacked", cwd=tmp_path)
    assert "A verdict says what was tried" in told
