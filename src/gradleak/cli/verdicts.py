"""Commands on finished results: verdict, report, export, compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradleak.cli.app import app
from gradleak.cli.options import Redact

if TYPE_CHECKING:
    from gradleak.verdict.gather import Gathered

Folder = Annotated[Path, typer.Argument(help="A folder an audit or an experiment wrote, or the file of one cell.")]


@app.command()
def verdict(folder: Folder) -> None:
    """Say how bad it is: the strongest attack against guessing, what leaked, and why attacks did not read more."""
    from rich.console import Console

    from gradleak.verdict.gather import gather
    from gradleak.verdict.show import print_verdict

    found = gather(folder)
    judged = found.verdict
    print_verdict(judged, Console())
    typer.echo(f"\nverdict  {judged.save(found.folder)}")


@app.command()
def report(folder: Folder, redact: Redact = False) -> None:
    """Print a result again and write its page anew; of a folder of many, one page for all."""
    from gradleak.verdict.gather import gather

    show(gather(folder, redact))


def show(found: Gathered) -> None:
    """Print a single audit in full and of several the verdict; write `verdict.json` and the page."""
    from rich.console import Console

    from gradleak.report.build import write_pages
    from gradleak.report.terminal import print_results
    from gradleak.verdict.show import print_verdict

    console, verdict = Console(), found.verdict
    if len(found.results) == 1:
        print_results(found.results[0], console, sentences=20)
    print_verdict(verdict, console)
    typer.echo(f"\nverdict  {verdict.save(found.folder)}\nreport   {write_pages(found)}")


@app.command()
def export(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="A .csv or .json file to write, one line per sentence or image.")],
    redact: Redact = False,
) -> None:
    """Write every sentence with what was read back of it and its scores, or every image with its scores."""
    from gradleak.report.rows import write_rows
    from gradleak.verdict.gather import gather

    typer.echo(f"written  {write_rows(gather(folder, redact).results, out)}")


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="The folder to compare with.")],
    second: Annotated[Path, typer.Argument(help="The folder that is compared.")],
    out: Annotated[Path | None, typer.Option(help="Folder for compare.html and compare.json.")] = None,
    redact: Redact = False,
) -> None:
    """Compare two runs: what the second reads more or less of, by attack and by sentence or image."""
    from rich.console import Console

    from gradleak.core.files import output_folder
    from gradleak.report.compare import print_comparison, write_comparison
    from gradleak.verdict.compare import compare as run
    from gradleak.verdict.gather import gather

    found = run(gather(first, redact).results, gather(second, redact).results, (str(first), str(second)))
    print_comparison(found, Console())
    if out is not None:
        with output_folder(out) as folder:
            typer.echo(f"page  {write_comparison(found, folder)}")
