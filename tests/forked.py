"""`python -m module ...` in a fork of this process, which has imported torch before: milliseconds, not seconds.

It has what `subprocess` has as far as `gradleak.core.foreign` and the workers of experiments use it. The process is
one of its own all the same, with limits of its own, and its `main` is the one that is shipped.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE, CompletedProcess, SubprocessError, TimeoutExpired
from typing import Any, BinaryIO

__all__ = ["DEVNULL", "PIPE", "CompletedProcess", "Popen", "SubprocessError", "TimeoutExpired", "run"]

# The process numbers of all that `Popen` started.
STARTED: list[int] = []


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


class Popen:
    """As `subprocess.Popen` does it, of a module that has a `main` and talks through pipes."""

    def __init__(
        self, command: list[str], *, stdin: int, stdout: int, stderr: BinaryIO, env: dict[str, str],
        cwd: str | Path | None, start_new_session: bool,
    ) -> None:  # fmt: skip
        python, flag, module = command
        assert (python, flag, stdin, stdout, start_new_session) == (sys.executable, "-m", PIPE, PIPE, True)
        main = importlib.import_module(module).main
        (reads, writes), (hears, says) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            _talk(main, (reads, says, stderr.fileno()), (writes, hears), env, cwd)
        STARTED.append(self.pid)
        os.close(reads)
        os.close(says)
        self.stdin, self.stdout = os.fdopen(writes, "wb"), os.fdopen(hears, "rb")
        self._code: int | None = None

    def kill(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code


def _talk(
    main: Callable[[], None], streams: tuple[int, int, int], others: tuple[int, int], env: dict[str, str],
    cwd: str | Path | None,
) -> None:  # fmt: skip
    code = 1
    try:
        os.setsid()
        for number in others:
            os.close(number)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "w" if n else "r", closefd=False) for n in range(3))
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd or ".")
        main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
