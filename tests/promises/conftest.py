"""Commands in this process, and a small model on disk."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tiny import tiny_model, tiny_tokenizer

from gradleak.cli import main


class Said(NamedTuple):
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of one layer, as a user's folder."""
    place = tmp_path_factory.mktemp("small-model")
    tiny_model("bert", "classification", layers=1).module.save_pretrained(place)
    tiny_tokenizer("bert").save_pretrained(place)
    return place


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run a command as a user does, in this process."""

    def run(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["gradleak", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as stopped:
            main()
        said = capsys.readouterr()
        code = stopped.value.code
        return Said(code if isinstance(code, int) else 0, said.out, said.err)

    return run
