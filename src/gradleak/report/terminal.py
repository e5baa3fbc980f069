"""Everything that is drawn in a terminal: the live bar and the tables."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from gradleak.audits.results import Results
from gradleak.core.progress import Progress
from gradleak.report.highlight import highlight
from gradleak.report.wording import of_images, remarks, status_note, threat_model
from gradleak.scoring.interval import Interval
from gradleak.scoring.metrics import counts_of, figure, labels_of

STYLES = {"pair": "bold green", "word": "yellow", "none": "dim"}
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

    def __enter__(self) -> LiveProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

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

    def say(self, line: str) -> None:
        self.end()
        self.console.print(line, markup=False, highlight=False)

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
    if not of_images(results):  # pictures are shown by the report
        console.print(sentence_table(results, sentences))
    console.print(score_table(results, meanings=console.width >= WIDE))
    if note := status_note(results):
        console.print(note, style="bold yellow")
    for line in remarks(results):
        console.print(line)


def sentence_table(results: Results, limit: int | None = None) -> Table:
    """True sentences beside what was read back: green for right neighbours, yellow for right words."""
    table = Table(title="What was read back", title_justify="left", show_lines=True)
    table.add_column("trial", justify="right")
    table.add_column("truth", ratio=1)
    table.add_column("recovered", ratio=1)
    table.add_column("R-1", justify="right")
    table.add_column("R-2", justify="right")
    table.add_column("R-L", justify="right")
    rows = [(trial, pair) for trial in results.trials for pair in trial.pairs]
    for trial, pair in rows[:limit]:
        marked = Text()
        for piece, mark in highlight(pair.truth, pair.reconstruction):
            marked.append(piece, style=STYLES[mark])
        numbers = [f"{pair.scores[name]:.0f}" for name in ("rouge1", "rouge2", "rougeL")]
        if pair.certified:
            marked.append(" ✓ certified", style="bold cyan")
        table.add_row(str(trial.index + 1), Text(pair.truth), marked, *numbers)
    if limit is not None and len(rows) > limit:
        table.caption = f"{len(rows) - limit} more in the report"
    return table


def score_table(results: Results, *, meanings: bool = True) -> Table:
    """Every metric with its interval, beside the control, and what it counts."""
    seconds = sum(trial.seconds for trial in results.trials)
    count = len(results.trials)
    scale = "" if of_images(results) else " from 0 to 100"
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
