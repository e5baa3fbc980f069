"""The console that draws every table and styled line of the tool."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO, Any, cast

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from gradleak.core.output import SafeStream, visible


class SafeConsole(Console):
    """Takes every text for data: brackets are no markup, and nothing in it commands the terminal."""

    def __init__(self, *, err: bool = False, file: IO[str] | None = None, **settings: Any) -> None:
        """`err`: on the error output. The settings are those of a rich console."""
        stream = SafeStream(file or (sys.stderr if err else sys.stdout), err=err)
        super().__init__(file=cast(IO[str], stream), markup=False, emoji=False, highlight=False, **settings)

    def render_str(self, text: str, **how: Any) -> Text:
        return super().render_str(visible(text, self.encoding), **how)

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        """Texts that were made elsewhere are looked at where they come out."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else visible(segment.text, self.encoding)
            yield segment if text == segment.text else Segment(text, segment.style)
