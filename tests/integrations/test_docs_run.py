"""The guides, command by command, in an empty folder with a small model and a few rows.

Blocks marked `sh` are run as they stand, `sh flower` where there is Ray too; `sh no-run` is only parsed, by
tests/test_docs.py. Titled Python blocks are written to files of that name first.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import subprocess
import sys

import pytest
from docs_pages import DOCS, GUIDES, ROOT, blocks, commands
from tiny import tiny_model

from gradleak.models.load import save_model
from gradleak.scenario.data import read_data

# In the environment without Flower these would only make the suite longer.
pytest.importorskip("flwr")
RAY = importlib.util.find_spec("ray") is not None


def wanted(block):
    return block.language == "sh" and (not block.extra or (block.extra == "flower" and RAY))


RUN = [name for name in GUIDES if any(wanted(block) for block in blocks(DOCS / f"{name}.md"))]


@pytest.fixture
def folder(tmp_path):
    """What a newcomer has: a model and a CSV. Without dropout and wide enough, so that proofs succeed quickly."""
    model = tiny_model("bert", "classification", layers=4, width=128)
    model.module.config.hidden_dropout_prob = model.module.config.attention_probs_dropout_prob = 0.0
    save_model(model.module, model.tokenizer, tmp_path / "my-model")
    with (tmp_path / "my.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["text", "label"])
        rows.writerows([row.text, number % 2] for number, row in enumerate(read_data()[:30]))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def test_there_is_something_to_run():
    assert len(RUN) >= 8


@pytest.mark.parametrize("name", RUN)
def test_the_commands_of_a_guide_run(name, folder):
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1"}
    for block in blocks(DOCS / f"{name}.md"):
        if block.language == "python" and block.title:
            (folder / block.title).write_text(block.text)
        for words in commands(block.text) if wanted(block) else []:
            program = [sys.executable, "-m", "gradleak"] if words[0] == "gradleak" else [sys.executable]
            done = subprocess.run(
                [*program, *words[1:]], cwd=folder, capture_output=True, text=True, env={**os.environ, **quiet},
                check=False, timeout=600,
            )  # fmt: skip
            assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
