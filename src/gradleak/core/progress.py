"""Reports of long work to whoever watches. The silent version is the default for the Python API."""

from __future__ import annotations


class Progress:
    """Receives the state of one long piece of work at a time; this base class ignores it.

    Subclass it to show progress elsewhere; `gradleak.report.terminal.LiveProgress` draws a bar.
    """

    def begin(self, what: str, total: float, unit: str = "") -> None:
        """Work named `what` starts; it is done when `total` units are."""

    def advance(self, done: float, *, loss: float | None = None, text: str | None = None) -> None:
        """`done` of the `total` units are done. Attacks add their current loss and best text."""

    def message(self, line: str) -> None:
        """A line worth reading before the work continues."""

    def end(self) -> None:
        """The work begun last is over, finished or not."""


SILENT = Progress()
