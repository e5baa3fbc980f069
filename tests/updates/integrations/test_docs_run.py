"""The guides, block by block, in an empty folder with a small model and some rows.

A block marked `sh` is handed to a shell as it stands, but for time limits, which are cut to some seconds; `sh flower`
only where there is Ray too. Titled blocks are written to files of that name first. `gradleak` is what `pip install`
has put into an environment of its own.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from docs_pages import DOCS, GUIDES, ROOT, blocks, commands, shell_commands
from tiny import tiny_model

from gradleak.data.texts import read_data
from gradleak.models.load import save_model

# In the environment without Flower these would only make the suite longer.
pytest.importorskip("flwr")
RAY = importlib.util.find_spec("ray") is not None
ROWS = 240  # what training with the default settings asks for
SHORT = "--budget 20s"  # a busy machine takes more than ten to load all that is imported
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1",
    # The packages that gradleak needs are there already, and so is what builds it: nothing is fetched.
    "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}  # fmt: skip


def wanted(block):
    return block.language == "sh" and (not block.extra or (block.extra == "flower" and RAY))


PAGES = [page for page in sorted(DOCS.glob("*.md")) if any(map(wanted, blocks(page)))]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The folder of an environment's programs, gradleak among them, that sees the packages of this one."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=True)
    packages, programs = (
        Path(sysconfig.get_path(kind, "venv", {"base": str(place), "platbase": str(place)}))
        for kind in ("purelib", "scripts")
    )
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    shell(f"pip install {ROOT}", place, programs)
    return programs


@pytest.fixture
def folder(tmp_path):
    """What a newcomer has: a model and a CSV. Without dropout and wide enough, so that proofs succeed quickly."""
    model = tiny_model("bert", "classification", layers=4, width=128)
    model.module.config.hidden_dropout_prob = model.module.config.attention_probs_dropout_prob = 0.0
    save_model(model.module, model.tokenizer, tmp_path / "my-model")
    texts = [row.text for row in read_data()]
    with (tmp_path / "my.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["text", "label"])
        rows.writerows([texts[number % len(texts)], number % 2] for number in range(ROWS))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "gradleak").symlink_to(ROOT)
    return tmp_path


def shell(text, folder, programs):
    """Run the lines of a block one after the other; the first that fails ends it."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    search = os.pathsep.join([str(programs), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-exc", re.sub(r"--budget \w+", SHORT, text)], cwd=folder, capture_output=True, text=True,
        env={**settings, **QUIET, "PATH": search}, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_every_command_of_a_guide_is_in_a_block_that_is_run():
    for name in GUIDES:
        page = DOCS / f"{name}.md"
        run = [block for block in blocks(page) if block.language == "sh" and block.extra in ("", "flower")]
        assert len(shell_commands(page)) == sum(len(commands(block.text)) for block in run), name


def test_a_command_that_fails_is_noticed(folder, programs):
    assert str(programs) in shell("command -v gradleak", folder, programs)
    for wrong in ("gradleak verdict nowhere\necho done", "pip install path/to/nothing"):
        with pytest.raises(AssertionError, match=wrong.split()[2]):
            shell(wrong, folder, programs)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page, folder, programs):
    for block in blocks(page):
        if block.title:
            (folder / block.title).write_text(block.text)
        if wanted(block):
            shell(block.text, folder, programs)
