"""The application that the commands join, and `main`, where an error becomes an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gradleak.core.errors import GradleakError
from gradleak.core.output import say
from gradleak.version import __version__

app = typer.Typer(
    help="Measure how much private text, or of private images, can be read back from federated-learning updates.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        say(f"gradleak {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; the only place where an error becomes an exit code."""
    try:
        app()
    except GradleakError as error:
        say(f"gradleak: {error}", err=True)
        sys.exit(2)
    except PermissionError as error:  # may come up wherever a file is touched, and only the user can mend it
        say(f"gradleak: {error.filename}: {error.strerror}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        say("gradleak: interrupted", err=True)
        sys.exit(130)
