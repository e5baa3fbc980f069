"""The application that the commands join, and `main`, where an error becomes an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gradleak.cli.boundary import DEBUG, told
from gradleak.cli.command import App
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
        typer.echo(f"gradleak {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; the only place where an error becomes an exit code."""
    try:
        app(prog_name="gradleak")  # also for `python -m gradleak`: completion goes by this name
    except KeyboardInterrupt:
        print("gradleak: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:  # the boundary: nothing else may turn an error into an exit
        shown, code = told(error)
        print(shown, file=sys.stderr)
        sys.exit(code)
