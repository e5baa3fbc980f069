"""How results are drawn, by what they are results of: everything else about a page is the same for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from rich.table import Table

from gradleak.audits.results import Results
from gradleak.models.tasks import Modality
from gradleak.report.images import gallery_values, image_html, no_table
from gradleak.report.sentences import sentence_html, sentence_table, sentence_values


@dataclass(frozen=True)
class Renderer:
    """The part of page and terminal that shows what was read back."""

    template: str
    section: str  # the heading of that part, its anchor in small letters
    values: Callable[[Sequence[Results], Sequence[str]], dict[str, Any]]  # what the template needs for it
    table: Callable[[Results, int | None], Table | None]  # for the terminal
    example: Callable[
        [str, str | None], Markup
    ]  # what was read of one true sentence or image; None: the truth itself
    redacted: str  # what to say of results without their texts or pictures
    one_axis: bool  # whether all scores run from 0 to 100, so that one figure can hold them


RENDERERS: dict[Modality, Renderer] = {
    "text": Renderer(
        template="sentences.html",
        section="Sentences",
        values=sentence_values,
        table=sentence_table,
        example=sentence_html,
        redacted="Texts are masked: every word is a number, equal words of a trial have equal numbers.",
        one_axis=True,
    ),
    "images": Renderer(
        template="images.html",
        section="Images",
        values=gallery_values,
        table=no_table,
        example=image_html,
        redacted="The images are taken out.",
        one_axis=False,
    ),
}
