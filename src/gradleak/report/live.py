"""How far long work is, while it runs: a bar in a terminal, lines anywhere else."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from gradleak.core.budget import Budget
from gradleak.core.console import SafeConsole
from gradleak.core.output import visible
from gradleak.core.progress import Progress
from gradleak.core.text import duration

# Seconds between two lines in a file or a pipe: nobody waits ten for a sign of life.
EVERY = 8.0
# Between two phases that have a name.
WORKING = "working"


@dataclass
class _Phase:
    what: str
    total: float = 0.0
    unit: str = ""
    done: float = 0.0
    loss: float | None = None
    text: str = ""
    started: float = field(default_factory=time.monotonic)

    @property
    def steps(self) -> str:
        """How much of it is done, where that is known."""
        if not self.total:
            return ""
        if self.unit == "bytes":
            return f"{self.done / 1e6:,.1f} of {self.total / 1e6:,.1f} MB"
        return f"{self.done:,.0f} of {self.total:,.0f} {self.unit}" if self.unit else f"{self.done / self.total:.0%}"

    @property
    def left(self) -> float | None:
        """Seconds until its end, if it goes on as it did."""
        if not 0 < self.done < self.total:
            return None
        return (time.monotonic() - self.started) * (self.total - self.done) / self.done

    @property
    def state(self) -> str:
        loss = "" if self.loss is None else f"loss {self.loss:.4f}"
        return "  ".join(filter(None, (loss, self.text)))


class LiveProgress(Progress):
    """The phase the work is in, how far that is, the time used and left, loss and best text so far, on stderr.

    It speaks for itself, whether or not the work reports: in a terminal a bar that is drawn anew, elsewhere a line
    every few seconds. The work may run in other threads than the one that made it.
    """

    def __init__(self, console: SafeConsole | None = None, budget: Budget | None = None) -> None:
        self.console = console or SafeConsole(err=True)
        self._budget = budget or Budget()
        self._lock = threading.RLock()
        self._phase = _Phase(WORKING)
        self._entered = False
        self._bar: RichProgress | None = None
        self._over: threading.Event | None = None
        self._held: list[str] = []

    def __enter__(self) -> LiveProgress:
        self._entered = True
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        with self._lock:
            if error is None:
                self._release()
        self.end()

    def begin(self, what: str, total: float, unit: str = "") -> None:
        with self._lock:
            self._phase = _Phase(visible(what), total, unit)
            self._start()
            self._draw()

    def advance(self, done: float, *, loss: float | None = None, text: str | None = None) -> None:
        with self._lock:
            self._release()
            self._phase.done, self._phase.loss, self._phase.text = done, loss, _fit(visible(text or ""), 60)
            self._draw()

    def message(self, line: str) -> None:
        """Held until the work is under way or done: an error is one line, with no remark before it."""
        with self._lock:
            self._held.append(line)

    def notice(self, line: str) -> None:
        """A line that must be seen now."""
        with self._lock:
            self._release()
            self.console.print(line, soft_wrap=True)

    def _release(self) -> None:
        for line in self._held:
            self.console.print(line, soft_wrap=True)
        self._held.clear()

    def end(self) -> None:
        with self._lock:
            self._phase = _Phase(WORKING)
            if self._entered:
                self._draw()
            else:
                self._stop()

    def _start(self) -> None:
        """Begin to show something, if nothing is shown yet."""
        if self.console.is_terminal and self._bar is None:
            columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), _Clock(self))
            self._bar = RichProgress(*columns, console=self.console, transient=True, redirect_stdout=False)
            self._task = self._bar.add_task(WORKING, total=None)
            self._bar.start()
        elif not self.console.is_terminal and self._over is None:
            self._over = threading.Event()
            threading.Thread(target=self._speak, args=(self._over,), name="progress", daemon=True).start()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._over is not None:
            self._over.set()
            self._over = None

    def _speak(self, over: threading.Event) -> None:
        while not over.wait(EVERY):
            with self._lock:
                if not over.is_set():
                    self._release()
                    self.console.print(f"{self._phase.what}: {self._described()}", soft_wrap=True)

    def _draw(self) -> None:
        if self._bar is not None:
            total = self._phase.total or None
            self._bar.update(self._task, description=self._phase.what, completed=self._phase.done, total=total)

    def _described(self) -> str:
        """How far the phase is, and the time."""
        phase, left = self._phase, self._budget.left
        parts = [phase.steps, f"{duration(self._budget.used)} used"]
        if left is not None:
            parts.append(f"{duration(left)} left" if left else "no time left")
        elif phase.left is not None:
            parts.append(f"about {duration(phase.left)} left")
        return "  ".join(filter(None, (", ".join(filter(None, parts)), phase.state)))


class _Clock(ProgressColumn):
    """Goes on while the work says nothing."""

    def __init__(self, progress: LiveProgress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: Task) -> Text:
        return Text(self._progress._described())


def _fit(text: str, width: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"
