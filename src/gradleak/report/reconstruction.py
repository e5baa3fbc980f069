"""What an attack read back, and how close it is, in the terminal."""

from __future__ import annotations

from rich.table import Table

from gradleak.attacks.base import Reconstruction, Sentence
from gradleak.core.console import SafeConsole
from gradleak.report.wording import certified_mark, explained_words
from gradleak.scoring.metrics import figure, find_metric, label_of, labels_of
from gradleak.scoring.score import Score

UNPROVED = (
    "Only what is certified is proved. A confidence is the attack's own measure, for matching how much of the "
    "update its answer explains: 1 is all of it, 0 no more than random words do."
)


def print_reconstruction(answer: Reconstruction, console: SafeConsole) -> None:
    """What was read back where no truth is known: sentences, or how many images."""
    if answer.images:
        console.print(f"{len(answer.images)} recovered; the report shows them", highlight=False)
    if answer.sentences:
        console.print(_sentences(answer))
        if not all(sentence.certified for sentence in answer.sentences):
            console.print(UNPROVED, style="dim")
    loss = "" if answer.loss is None else f"loss {answer.loss:.4f}, "
    if answer.explained is not None:
        console.print(
            f"explains {explained_words(answer.explained)} of the update (random words: nothing)", style="dim"
        )
    ended = "dim" if answer.status == "completed" else "bold yellow"
    console.print(f"{loss}{answer.seconds:.0f} s, {answer.status}", style=ended)


def _sentences(answer: Reconstruction) -> Table:
    table = Table(title="What was read back", title_justify="left")
    table.add_column("sentence", justify="right")
    table.add_column("recovered")
    table.add_column("confidence", justify="right")
    for number, sentence in enumerate(answer.sentences, start=1):
        sure = certified_mark(sentence.lost) if sentence.certified else f"{sentence.confidence:.2f}"
        table.add_row(_numbered(number, sentence), sentence.text, sure)
    return table


def _numbered(number: int, sentence: Sentence) -> str:
    """The number of a sentence; of a text of a pair which of the two it is, and of which pair, if that is proved."""
    if sentence.side is None:
        return str(number)
    return sentence.side if sentence.example is None else f"{sentence.side} {sentence.example + 1}"


def print_score(scored: Score) -> None:
    """Every true example beside what was read back of it; pictures go by their number."""
    pictures = any(pair.truth.startswith("data:") for pair in scored.pairs)
    names = labels_of({name for pair in scored.pairs for name in pair.scores})
    table = Table(title="Reconstruction against truth", title_justify="left", show_lines=not pictures)
    for heading in (*(("image",) if pictures else ("truth", "recovered")), *names.values()):
        table.add_column(heading)
    for number, pair in enumerate(scored.pairs, start=1):
        shown = [str(number)] if pictures else [pair.truth, pair.reconstruction]
        table.add_row(*shown, *(figure(n, pair.scores[n]) if n in pair.scores else "–" for n in names))
    console = SafeConsole()
    console.print(table)
    batch = [name for name in scored.metrics if (metric := find_metric(name)) is not None and metric.of_batch]
    whole = [f"{label_of(name)} {figure(name, scored.metrics[name])}" for name in batch]
    console.print(f"of the batch: {', '.join(whole)}")
