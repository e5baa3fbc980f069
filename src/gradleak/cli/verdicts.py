"""Commands on finished results: verdict, report, annex, export, compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradleak.cli.app import app
from gradleak.cli.boundary import FOUND
from gradleak.cli.options import Redact
from gradleak.core.output import say

if TYPE_CHECKING:
    from gradleak.verdict.gather import Gathered

Folder = Annotated[Path, typer.Argument(help="A folder an audit or an experiment wrote, or the file of one cell.")]


@app.command()
def verdict(
    folder: Folder,
    fail_on: Annotated[
        str | None,
        typer.Option(
            help="End with exit code 3 if some scenario is at this level or worse: critical, high, moderate, "
            "unfinished or unclear."
        ),
    ] = None,
    sarif: Annotated[Path | None, typer.Option(help="Write the verdict as SARIF 2.1.0 too, into this file.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write it as JUnit's XML too, into this file.")] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="The file at which SARIF shows what was found, such as audit.yaml; default: verdict.json."),
    ] = None,
) -> None:
    """Say how bad it is: the strongest attack against guessing, what leaked, and why attacks did not read more."""
    from gradleak.core.console import SafeConsole
    from gradleak.report.junit import write_junit
    from gradleak.report.live import LiveProgress
    from gradleak.report.sarif import write_sarif
    from gradleak.verdict.gather import gather
    from gradleak.verdict.rule import fails, parse_limit
    from gradleak.verdict.show import print_verdict

    limit = None if fail_on is None else parse_limit(fail_on)
    with LiveProgress() as progress:
        progress.begin("reading results", 0)
        found = gather(folder)
        progress.begin("judging", 0)
        judged = found.verdict
        places = {"verdict": judged.save(found.folder)}
        if sarif is not None:
            places["sarif"] = write_sarif(judged, sarif, str(source or places["verdict"]))
        if junit is not None:
            places["junit"] = write_junit(judged, junit, limit)
    print_verdict(judged, SafeConsole())
    say("", *(f"{name:<8} {place}" for name, place in places.items()))
    if limit is not None and fails(judged, limit):
        say(f"failed   {judged.level}, and --fail-on is {limit}")
        raise typer.Exit(FOUND)


@app.command()
def report(folder: Folder, redact: Redact = False) -> None:
    """Print a result again and write its page anew; of a folder of many, one page for all."""
    from gradleak.report.live import LiveProgress
    from gradleak.verdict.gather import gather

    with LiveProgress() as progress:
        progress.begin("reading results", 0)
        found = gather(folder, redact)
    show(found)


def show(found: Gathered) -> None:
    """Print a single audit in full and of several the verdict; write `verdict.json` and the page."""
    from gradleak.core.console import SafeConsole
    from gradleak.report.build import write_pages
    from gradleak.report.live import LiveProgress
    from gradleak.report.terminal import print_results
    from gradleak.verdict.show import print_verdict

    with LiveProgress() as progress:  # files first, so that nothing that happens to the output can stop them
        progress.begin("judging", 0)
        verdict = found.verdict
        place = verdict.save(found.folder)
        progress.begin("writing the report", 0)
        page = write_pages(found)
    console = SafeConsole()
    if len(found.results) == 1:
        print_results(found.results[0], console, sentences=20)
    print_verdict(verdict, console)
    say("", f"verdict  {place}", f"report   {page}")


@app.command()
def annex(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="Folder for annex.md and annex.html; default: the first.")] = None,
    title: Annotated[
        str | None, typer.Option(help="What to call the record, such as the system it is about.")
    ] = None,
    redact: Redact = False,
) -> None:
    """Write the record that reviewers need: threat model, what was measured, attacks, controls, limits, hashes."""
    from gradleak.report.annex.write import PAGE, write_annex
    from gradleak.report.live import LiveProgress

    with LiveProgress() as progress:
        progress.begin("reading results", 0)
        place = write_annex(folder, out, redact, title)
    say(f"record   {place}", f"page     {place.with_name(PAGE)}")


@app.command()
def export(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="A .csv or .json file to write, one line per sentence or image.")],
    redact: Redact = False,
) -> None:
    """Write every sentence with what was read back of it and its scores, or every image with its scores."""
    from gradleak.report.live import LiveProgress
    from gradleak.report.rows import write_rows
    from gradleak.verdict.gather import gather

    with LiveProgress() as progress:
        progress.begin("reading results", 0)
        place = write_rows(gather(folder, redact).results, out)
    say(f"written  {place}")


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="The folder to compare with.")],
    second: Annotated[Path, typer.Argument(help="The folder that is compared.")],
    out: Annotated[Path | None, typer.Option(help="Folder for compare.html and compare.json.")] = None,
    redact: Redact = False,
) -> None:
    """Compare two runs: what the second reads more or less of, by attack and by sentence or image."""
    from gradleak.core.console import SafeConsole
    from gradleak.core.files import output_folder
    from gradleak.report.compare import print_comparison, write_comparison
    from gradleak.report.live import LiveProgress
    from gradleak.verdict.compare import compare as run
    from gradleak.verdict.gather import gather

    page = None
    with LiveProgress() as progress:
        progress.begin("reading results", 0)
        found = run(gather(first, redact).results, gather(second, redact).results, (str(first), str(second)))
    if out is not None:
        with output_folder(out) as folder:
            page = write_comparison(found, folder)
    print_comparison(found, SafeConsole())
    if page is not None:
        say(f"page  {page}")
