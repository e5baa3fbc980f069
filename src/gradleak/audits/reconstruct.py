"""An attack on an update folder, and its comparison with a truth file: two steps that never meet."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradleak.attacks.base import Reconstruction
from gradleak.attacks.run import attack
from gradleak.audits.capture import load_truth
from gradleak.audits.spec import AuditConfig
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder, write_text
from gradleak.core.progress import Progress
from gradleak.models.load import load_model
from gradleak.scoring.metrics import figure, labels_of
from gradleak.scoring.score import Score, score
from gradleak.updates.update import load_update

FILE = "reconstruction.json"


def reconstruct(
    update: Path, config: AuditConfig, out: Path | None, budget: Budget, progress: Progress
) -> tuple[Reconstruction, Path | None]:
    """Attack one update folder; write the reconstruction if a folder is given."""
    with nullcontext() if out is None else output_folder(out) as folder:
        model = load_model(
            config.model, task=config.task, num_labels=config.num_labels, device=config.device, progress=progress
        )
        shared = load_update(update, model)
        for line in shared.manifest.provenance():
            progress.say(line)
        (found,) = attack(
            shared,
            model,
            config.attack,
            seed=config.seed,
            budget=budget,
            progress=progress,
            **config.options,
        )
        text = found.model_dump_json(indent=2) + "\n"
        return found, None if folder is None else write_text(folder / FILE, text)


def score_files(reconstruction: Path, truth: Path, model: str, metrics: Sequence[str] = ()) -> Score:
    """Compare what `attack` wrote with what `capture` kept."""
    found = load_reconstruction(reconstruction)
    return score(found, load_truth(truth).texts, load_model(model), metrics=metrics)


def load_reconstruction(path: Path) -> Reconstruction:
    """Read back what `attack` wrote."""
    try:
        return Reconstruction.model_validate_json(path.read_bytes())
    except OSError as error:
        raise GradleakError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise GradleakError(f"{path} is not a reconstruction: {error.errors()[0]['msg']}") from error


UNPROVED = (
    "Only what is certified is proved. A confidence is the attack's own measure, for matching how near its "
    "embeddings lie to tokens: words that are wrong can have a high one."
)


def print_reconstruction(found: Reconstruction) -> None:
    table = Table(title="What was read back", title_justify="left")
    table.add_column("sentence", justify="right")
    table.add_column("recovered")
    table.add_column("confidence", justify="right")
    for number, sentence in enumerate(found.sentences, start=1):
        sure = "certified" if sentence.certified else f"{sentence.confidence:.2f}"
        table.add_row(str(number), Text(sentence.text), sure)
    console = Console()
    if found.images:
        console.print(f"{len(found.images)} recovered, as PNG data URIs under `images` of the reconstruction")
    else:
        console.print(table)
        if not all(sentence.certified for sentence in found.sentences):
            console.print(UNPROVED, style="dim")
    if found.found:
        labels = f"labels {found.labels}" if "labels" in found.found else ""
        lengths = f"lengths {found.lengths}" if "lengths" in found.found else ""
        console.print(f"found by the attack: {', '.join(part for part in (labels, lengths) if part)}")
    for note in found.notes:
        console.print(note, highlight=False)
    loss = "" if found.loss is None else f"loss {found.loss:.4f}, "
    console.print(f"{loss}{found.seconds:.0f} s, {found.status}", style="dim", highlight=False)


def print_score(scored: Score) -> None:
    table = Table(title="Reconstruction against truth", title_justify="left", show_lines=True)
    labels = labels_of({name for pair in scored.pairs for name in pair.scores})
    for heading in ("truth", "recovered", *labels.values()):
        table.add_column(heading)
    for pair in scored.pairs:
        numbers = [figure(name, pair.scores[name]) if name in pair.scores else "–" for name in labels]
        table.add_row(Text(pair.truth), Text(pair.reconstruction), *numbers)
    console = Console()
    console.print(table)
    batch = {name: label for name, label in labels_of(scored.metrics).items() if name not in labels}
    whole = [f"{label} {figure(name, scored.metrics[name])}" for name, label in batch.items()]
    console.print(f"of the batch: {', '.join(whole)}", highlight=False)
