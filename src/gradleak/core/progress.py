"""Reports of long work to whoever watches. The silent version is the default for the Python API."""

from __future__ import annotations

from gradleak.core.privacy import is_redacting


class Progress:
    """Receives the state of one long piece of work at a time; this base class ignores it.

    Subclass it to show progress elsewhere; `gradleak.report.live.LiveProgress` draws a bar.
    """

    def begin(self, what: str, total: float, unit: str = "") -> None:
        """Work named `what` starts; it is done when `total` units are. A total of 0 is one that nobody knows."""

    def advance(self, done: float, *, loss: float | None = None, text: str | None = None) -> None:
        """`done` of the `total` units are done. Attacks add their current loss and best text."""

    def message(self, line: str) -> None:
        """A line worth reading before the work continues."""

    def end(self) -> None:
        """The work begun last is over, finished or not."""


class Forwarded(Progress):
    """Passes everything on."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def begin(self, what: str, total: float, unit: str = "") -> None:
        self._progress.begin(what, total, unit)

    def advance(self, done: float, *, loss: float | None = None, text: str | None = None) -> None:
        self._progress.advance(done, loss=loss, text=text)

    def message(self, line: str) -> None:
        self._progress.message(line)

    def end(self) -> None:
        self._progress.end()


class WithoutTexts(Forwarded):
    """Passes on how far the work is, and nothing of what it reads."""

    def advance(self, done: float, *, loss: float | None = None, text: str | None = None) -> None:
        super().advance(done, loss=loss)

    def message(self, line: str) -> None:
        pass


class PartOf(Forwarded):
    """Names the part of a larger whole that the work is."""

    def __init__(self, progress: Progress, name: str) -> None:
        super().__init__(progress)
        self._name = name

    def begin(self, what: str, total: float, unit: str = "") -> None:
        super().begin(f"{self._name}: {what}", total, unit)


def redacted(progress: Progress) -> Progress:
    """What an attack may report to: while redaction is on, somebody who does not hear what was read."""
    return WithoutTexts(progress) if is_redacting() else progress


SILENT = Progress()
