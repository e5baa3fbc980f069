"""One self-contained HTML page out of one result, of several, or of a whole folder of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined

from gradleak.audits.redact import redact as redacted
from gradleak.audits.results import Results
from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder, write_text
from gradleak.report.contents import contents
from gradleak.report.modalities import RENDERERS
from gradleak.verdict.gather import Gathered, gather

FILE = "report.html"


def write_report(
    results: Results | Sequence[Results] | str | Path, folder: str | Path | None = None, redact: bool = False
) -> Path:
    """Write the report, readable by its owner only, and say where it lies.

    `results` are those of one audit, of several, or a folder that holds some, into which the page is written if no
    other `folder` is given. Text and images that lie together get a page each, which name each other. `redact` leaves
    the private texts and images out.
    """
    if isinstance(results, str | Path):
        gathered = gather(results, redact)
    elif folder is None:
        raise GradleakError("say into which folder the report is to be written")
    else:
        given = [results] if isinstance(results, Results) else results
        gathered = Gathered(Path(folder), [redacted(each) if redact else each for each in given])
    return write_pages(gathered, None if folder is None else Path(folder))


def write_pages(gathered: Gathered, folder: Path | None = None) -> Path:
    """Write one page for every modality among the results; the first one's place."""
    pages = gathered.by_modality()
    files = {modality: f"report-{modality}.html" if number else FILE for number, modality in enumerate(pages)}
    with output_folder(folder or gathered.folder) as place:
        for modality, part in pages.items():
            others = {RENDERERS[other].section: file for other, file in files.items() if other != modality}
            write_text(place / files[modality], render(part, others))
    return place / FILE


def render(gathered: Gathered, other_pages: dict[str, str] | None = None) -> str:
    """The page of results of one modality. Everything that comes from data or a model is escaped."""
    renderer = RENDERERS[gathered.results[0].scenario.modality]
    return templates().get_template(renderer.template).render(**contents(gathered, renderer, other_pages or {}))


@functools.cache
def templates() -> Templates:
    """The page templates, strict about names and escaping all values."""
    return Templates(
        loader=PackageLoader("gradleak.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
