"""Commands on finished results: verdict, report, export, compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradleak.cli.app import app
from gradleak.cli.options import Redact

if TYPE_CHECKING:
    from gradleak.audits.results import Results
    from gradleak.verdict.gather import Gathered

Folder = Annotated[Path, typer.Argument(help="A folder an audit, a sweep, a frontier, a map or a recipe wrote.")]


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
    show(folder, redact)


def show(folder: Path, redact: bool = False) -> None:
    """Print a single audit in full and of several the verdict; write `verdict.json` and the page."""
    from rich.console import Console

    from gradleak.report.build import write_report
    from gradleak.report.images import image_results, write_image_report
    from gradleak.report.terminal import print_results
    from gradleak.verdict.judge import judge
    from gradleak.verdict.show import print_verdict

    console = Console()
    if (images := image_results(folder)) is not None:
        results = masked(images, redact)
        verdict = judge([results])
        print_results(results, console)
        print_verdict(verdict, console)
        typer.echo(f"\nverdict  {verdict.save(folder)}\nreport   {write_image_report(results, verdict, folder)}")
        return
    found = _gathered(folder, redact)
    if len(found.results) == 1:
        print_results(found.results[0], console, sentences=20)
    print_verdict(found.verdict, console)
    typer.echo(f"\nverdict  {found.verdict.save(found.folder)}\nreport   {write_report(found)}")


def masked(results: Results, wanted: bool) -> Results:
    from gradleak.audits.redact import redact

    return redact(results) if wanted else results


@app.command()
def export(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="A .csv or .json file to write, a line a sentence.")],
    redact: Redact = False,
) -> None:
    """Write every sentence with what was read back of it and its scores as CSV or JSON."""
    from gradleak.report.rows import write_rows

    typer.echo(f"sentences  {write_rows(_gathered(folder, redact).results, out)}")


def _gathered(folder: Path, redact: bool) -> Gathered:
    """The audits of text in a folder."""
    import dataclasses

    from gradleak.core.errors import GradleakError
    from gradleak.report.wording import of_images
    from gradleak.verdict.gather import gather

    found = gather(folder)
    if any(map(of_images, found.results)):
        raise GradleakError(
            f"{folder} holds audits of images: `gradleak grid` shows several, `gradleak verdict` judges"
        )
    return dataclasses.replace(found, results=[masked(one, redact) for one in found.results])


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="The folder to compare with.")],
    second: Annotated[Path, typer.Argument(help="The folder that is compared.")],
    out: Annotated[Path | None, typer.Option(help="Folder for compare.html and compare.json.")] = None,
    redact: Redact = False,
) -> None:
    """Compare two runs: what the second reads more or less of, attack by attack and sentence by sentence."""
    from rich.console import Console

    from gradleak.core.files import output_folder
    from gradleak.report.compare import print_comparison, write_comparison
    from gradleak.verdict.compare import compare as run

    found = run(_gathered(first, redact).results, _gathered(second, redact).results, (str(first), str(second)))
    print_comparison(found, Console())
    if out is not None:
        with output_folder(out) as folder:
            typer.echo(f"page  {write_comparison(found, folder)}")
