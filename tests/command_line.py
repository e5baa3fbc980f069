"""The command line inside this process: the same `main` as a user's, with what it said and how it ended."""

from __future__ import annotations

import contextlib
import io
import sys
import unittest.mock
from dataclasses import dataclass
from typing import Any

from gradleak.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.err.strip().splitlines()

    @property
    def refused(self) -> bool:
        """Whether it is exit code 2 with one line of ours, or a usage error of the command line."""
        ours = len(self.lines) == 1 and self.lines[0].startswith("gradleak: ")
        usage = len(self.lines) > 1 and self.lines[0].startswith("Usage: ") and "Error: " in self.err
        return self.code == 2 and (ours or usage)


def run(*words: Any) -> Ended:
    """Run a command; whatever comes out of `main` but an exit is the caller's to see."""
    # As a terminal has them: what cannot be encoded is an error on stdout.
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace", write_through=True)
    before, code = sys.argv, 0
    sys.argv = ["gradleak", *map(str, words)]
    try:
        # Work that a command leaves behind would end this process with it.
        alive = unittest.mock.patch("gradleak.cli.app.left_behind", return_value=False)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), alive:
            main()
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    finally:
        sys.argv = before
    return Ended(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))
