"""`python -m module ...` in a fork of this process, which has imported torch before: milliseconds, not seconds.

It has what `subprocess` has as far as `gradleak.core.foreign` uses it. The process is one of its own all the same,
with limits of its own, and its `main` is the one that is shipped.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from subprocess import CompletedProcess, SubprocessError, TimeoutExpired
from typing import Any, BinaryIO

__all__ = ["CompletedProcess", "SubprocessError", "TimeoutExpired", "run"]


def run(
    command: list[str], *, capture_output: bool = True, text: bool = False, timeout: float | None = None,
    check: bool = False,
) -> CompletedProcess[Any]:  # fmt: skip
    """As `subprocess.run` does it, of a module that has a `main`."""
    python, flag, module, *words = command
    assert (python, flag, capture_output, check) == (sys.executable, "-m", True, False)
    main = importlib.import_module(module).main
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = multiprocessing.get_context("fork").Process(target=_child, args=(main, words, out, err))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise TimeoutExpired(command, timeout or 0.0)
        said = [stream.read() for stream in (out, err) if not stream.seek(0)]
    return CompletedProcess(command, process.exitcode or 0, *(part.decode() if text else part for part in said))


def _child(main: Callable[[], None], words: list[str], out: BinaryIO, err: BinaryIO) -> None:
    for stream, number in ((out, 1), (err, 2)):
        os.dup2(stream.fileno(), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
    sys.argv = ["-m", *words]
    main()
