"""What a file of measurements says of itself: by which code, of which model and data, and by which command."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradleak.core.environment import git_state
from gradleak.version import __version__

ABOUT = "about"
FIELDS = ("code", "model", "data", "command")


def about(
    model: str, data: str | Path | Sequence[Path], command: str | None = None, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields of a file that is written now; `before` is the file so far, whose cells other code may have made."""
    names = [data] if isinstance(data, str | Path) else data
    earlier = dict((before or {}).get(ABOUT, {})).get("code", [])
    return {
        "code": list(dict.fromkeys([*earlier, code()])),
        "model": named(model),
        "data": ", ".join(path.name if isinstance(path, Path) else named(path) for path in names),
        "command": command or this_command(),
    }


def code() -> str:
    """The version, and the commit if it runs from a checkout."""
    commit, dirty = git_state()
    return f"gradleak {__version__}" + (f", commit {commit[:12]}{' (changed)' if dirty else ''}" if commit else "")


def this_command(words: Sequence[str] | None = None) -> str:
    """How this process was called, with files by their names alone.

    >>> this_command(["python", "-m", "gradleak.bench.noise", "--data", "/home/me/enron.json", "--sigma", "1e-4"])
    'python -m gradleak.bench.noise --data enron.json --sigma 1e-4'
    >>> this_command(["python", "-m", "gradleak.bench.choose", "minilm", "--data", "sst2@/home/me/data"])
    'python -m gradleak.bench.choose minilm --data sst2@.'
    """
    given = list(sys.orig_argv if words is None else words)
    program = ["python" if Path(given[0]).name.startswith("python") else Path(given[0]).name]
    # A script of ours is named from the root of the repository, everything else by its last name.
    parts = [word if word.startswith(("tests/", "docs/")) else named(word) for word in given[1:]]
    return " ".join([*program, *parts])


def named(word: str) -> str:
    """A file by its name alone, a corpus without its folder.

    >>> named("/home/me/enron.json"), named("sst2@/home/me/data"), named("--steps")
    ('enron.json', 'sst2@.', '--steps')
    """
    corpus, at, folder = word.partition("@")
    if at and "/" in folder and "/" not in corpus:
        return f"{corpus}@."
    return Path(word).name if word.startswith(("/", "./", "../", "~")) else word


def missing(content: Any) -> list[str]:
    """Fields that a file of measurements lacks.

    >>> missing({"about": {"code": ["gradleak 0.1.0"], "model": "minilm", "data": "cola_train.tsv"}, "cells": []})
    ['command']
    """
    fields = content.get(ABOUT, {}) if isinstance(content, dict) else {}
    return [name for name in FIELDS if not fields.get(name)]
