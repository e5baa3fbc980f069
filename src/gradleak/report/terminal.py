"""Results in the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from gradleak.audits.results import Results
from gradleak.core.console import SafeConsole
from gradleak.core.output import visible
from gradleak.report.modalities import RENDERERS
from gradleak.report.reconstruction import print_reconstruction
from gradleak.report.tokens import print_tokens
from gradleak.report.wording import remarks, status_note, threat_model
from gradleak.scoring.interval import Interval
from gradleak.scoring.metrics import counts_of, figure, labels_of, range_of
from gradleak.verdict.attempts import batch_words

# Columns of a terminal below which the scores' meanings would be cut to pieces.
WIDE = 110


def print_results(results: Results, console: SafeConsole, *, sentences: int | None = None) -> None:
    """The whole result: threat model, sentences, scores beside their control; the verdict comes after it."""
    scenario = results.scenario
    source = "update" if scenario.recorded else "data"
    about = (
        f" on {scenario.model} ({scenario.family}, {scenario.task}), {source} {scenario.data}, "
        f"{batch_words(scenario)}, seed {scenario.seed}"
    )
    console.print(Text.assemble((visible(results.attack.name), "bold"), visible(about)))
    for line in threat_model(scenario):
        console.print(f"  {line}", style="dim")
    if results.scored:
        examples = RENDERERS[scenario.modality].table(results, sentences)
        if examples is not None:
            console.print(examples)
        console.print(score_table(results, meanings=console.width >= WIDE))
    else:
        for trial in results.trials:
            print_reconstruction(trial.reconstruction, console)
    if len(results.trials) == 1:
        print_tokens(results.trials[0], console)
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
