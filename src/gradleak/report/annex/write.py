"""Write the record of results as Markdown and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradleak.audits.redact import redact as redacted
from gradleak.audits.results import Results
from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder, write_text
from gradleak.report.annex.document import Document, Items, Table, pieces
from gradleak.report.annex.markdown import markdown
from gradleak.report.annex.sections import annex
from gradleak.report.build import templates
from gradleak.verdict.gather import Gathered, gather

MARKDOWN, PAGE = "annex.md", "annex.html"


def write_annex(
    results: Results | Sequence[Results] | str | Path,
    folder: str | Path | None = None,
    redact: bool = False,
    title: str | None = None,
) -> Path:
    """Write `annex.md` and `annex.html`, readable by their owner only, and say where the first lies.

    `results` are those of one audit, of several, or a folder that holds some, into which the record is written if no
    other `folder` is given. `redact` masks all texts.
    """
    if isinstance(results, str | Path):
        gathered = gather(results, redact)
    elif folder is None:
        raise GradleakError("say into which folder the record is to be written")
    else:
        given = [results] if isinstance(results, Results) else results
        gathered = Gathered(Path(folder), [redacted(each) if redact else each for each in given])
    document = annex(gathered, title)
    with output_folder(folder or gathered.folder) as place:
        write_text(place / PAGE, page(document))
        return write_text(place / MARKDOWN, markdown(document))


def page(document: Document) -> str:
    """The document as one self-contained page."""
    template = templates().get_template("annex.html")
    return template.render(document=document, is_table=_is_table, is_items=_is_items, pieces=pieces)


def _is_table(block: object) -> bool:
    return isinstance(block, Table)


def _is_items(block: object) -> bool:
    return isinstance(block, Items)
