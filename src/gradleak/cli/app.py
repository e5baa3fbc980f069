"""The application that the commands join, and `main`, where an error becomes an exit code."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from gradleak.cli.boundary import DEBUG, told
from gradleak.cli.command import App
from gradleak.core.output import say
from gradleak.core.supervision import left_behind
from gradleak.version import __version__

app = App("Measure how much private text, or of private images, can be read back from federated-learning updates.")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where in the code an error came up.")] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"  # processes that this one starts are to know it too
    if version:
        say(f"gradleak {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; the only place where an error becomes an exit code."""
    # Threads that wait for each other give their core away: on a machine with other work, spinning makes an audit
    # six times as long, and on a quiet one it gains a fiftieth. It must be set before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app(prog_name="gradleak")  # also for `python -m gradleak`: completion goes by this name
    except SystemExit as end:
        _leave(end.code if isinstance(end.code, int) else int(end.code is not None))
    except KeyboardInterrupt:
        say("gradleak: interrupted", err=True)
        _leave(130)
    except Exception as error:  # the boundary: nothing else may turn an error into an exit
        shown, code = told(error)
        say(*shown.split("\n"), err=True)
        _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process, at once if some work still sits in a call that nothing ends."""
    if left_behind():
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)
