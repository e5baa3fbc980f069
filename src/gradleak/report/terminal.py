"""Everything that is drawn in a terminal: the live bar and the tables."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from gradleak.audits.results import Results
from gradleak.core.progress import Progress
from gradleak.report.modalities import RENDERERS
from gradleak.report.wording import remarks, status_note, threat_model
from gradleak.scoring.interval import Interval
from gradleak.scoring.metrics import counts_of, figure, labels_of, range_of

PLAIN_SECONDS = 10.0
# Columns of a terminal below which the scores' meanings would be cut to pieces.
WIDE = 110


class LiveProgress(Progress):
    """A bar on stderr with step, loss, time left and the best text so far.

    Where stderr is not a terminal, a line every ten seconds instead, so that logs stay readable.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._bar: RichProgress | None = None
        self._what, self._total, self._unit = "", 1.0, ""
        self._said = 0.0
        self._held: list[str] = []

    def __enter__(self) -> LiveProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if error is None:
            self._say()

    def begin(self, what: str, total: float, unit: str = "") -> None:
        self.end()
        self._what, self._total, self._unit, self._said = what, total, unit, time.monotonic()
        if not self.console.is_terminal:
            return
        columns = [TextColumn("{task.description}"), BarColumn(bar_width=24)]
        columns.append(DownloadColumn() if unit == "bytes" else TextColumn("{task.fields[steps]}"))
        columns += [TimeRemainingColumn(), TextColumn("{task.fields[state]}")]
        self._bar = RichProgress(*columns, console=self.console, transient=True)
        self._bar.start()
        self._task = self._bar.add_task(what, total=total, state="", steps="")

    def advance(self, done: float, *, loss: float | None = None, text: str | None = None) -> None:
        self._say()
        steps = f"{done:,.0f}/{self._total:,.0f} {self._unit}" if self._unit else f"{done / self._total:.0%}"
        state = "" if loss is None else f"loss {loss:.4f}"
        if text:
            state += f"  {_fit(text, 60)}"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, steps=steps, state=state.replace("[", "\\["))
        elif time.monotonic() - self._said > PLAIN_SECONDS:
            self._said = time.monotonic()
            percent = f"{100 * done / self._total:.0f} %" if self._total else ""
            self.console.print(f"{self._what}: {percent} {state}", markup=False, highlight=False)

    def message(self, line: str) -> None:
        """Kept until the work is under way or done: an error is one line, with no remark before it."""
        self._held.append(line)

    def _say(self) -> None:
        for line in self._held:
            self.console.print(line, markup=False, highlight=False)
        self._held.clear()

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def print_results(results: Results, console: Console, *, sentences: int | None = None) -> None:
    """The whole result: threat model, sentences, scores beside their control; the verdict comes after it."""
    scenario = results.scenario
    console.print(
        f"[bold]{results.attack.name}[/] on {scenario.model} ({scenario.family}, {scenario.task}), "
        f"data {scenario.data}, batch {scenario.batch_size}, seed {scenario.seed}"
    )
    for line in threat_model(scenario):
        console.print(f"  {line}", style="dim")
    examples = RENDERERS[scenario.modality].table(results, sentences)
    if examples is not None:
        console.print(examples)
    console.print(score_table(results, meanings=console.width >= WIDE))
    if note := status_note(results):
        console.print(note, style="bold yellow")
    for line in remarks(results):
        console.print(line)


def score_table(results: Results, *, meanings: bool = True) -> Table:
    """Every metric with its interval, beside the control, and what it counts."""
    seconds = sum(trial.seconds for trial in results.trials)
    count = len(results.trials)
    scale = " from 0 to 100" if all(range_of(name) == (0, 100) for name in results.summary) else ""
    table = Table(
        title=f"Scores{scale}, {count} trial{'s' if count > 1 else ''}, 95 % intervals, {seconds:.0f} s",
        title_justify="left",
    )
    for heading in ("metric", "attack", "control"):
        table.add_column(heading, no_wrap=True)
    if meanings:
        table.add_column("what it counts")
    for name, label in labels_of(results.summary).items():
        cells = [label, _interval(name, results.summary[name]), _interval(name, results.control[name])]
        table.add_row(*cells, *([counts_of(name)] if meanings else []))
    if not meanings:
        table.caption = "The report says what each of them counts."
    return table


def _interval(metric: str, interval: Interval) -> str:
    low, mean, high = (figure(metric, value) for value in (interval.low, interval.mean, interval.high))
    return f"{mean:>5} ({low} to {high})"


def _fit(text: str, width: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"
