"""Updates of image models as folders: capture one, attack it, compare; three steps that share only files."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from rich.console import Console
from rich.table import Table

from gradleak.attacks.base import Reconstruction
from gradleak.attacks.images.run import attack_images
from gradleak.audits.image_run import draw_batches
from gradleak.audits.reconstruct import FILE, load_reconstruction
from gradleak.audits.spec import AuditConfig
from gradleak.clients.images import ImageClient
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder, write_text
from gradleak.core.progress import Progress
from gradleak.data.pictures import Pictures, from_uris, read_pictures
from gradleak.models.image import ImageModel
from gradleak.models.load import load_model
from gradleak.report.wording import figure, metric_labels
from gradleak.scoring.score import Score
from gradleak.scoring.score_images import score_images
from gradleak.updates.update import load_update


class ImageTruth(BaseModel):
    """What a captured update was made from. Never part of the update folder."""

    model_config = ConfigDict(extra="forbid")

    images: list[str]
    labels: list[int]


def capture_images(config: AuditConfig, out: Path, progress: Progress) -> tuple[Path, Path]:
    """Draw one batch, make its update, write the folder, and the truth into `<folder>.truth.json` beside it."""
    with output_folder(out) as folder:
        private, _ = read_pictures(config.data)
        model = load_model(config.model, device=config.device)
        assert isinstance(model, ImageModel)
        (batch,) = draw_batches(private, config.batch_size, 1, config.seed)
        ImageClient(model, config.known, config.client, config.defenses).update(batch, config.seed).save(folder)
        truth = ImageTruth(images=batch.uris(), labels=list(batch.labels)).model_dump_json(indent=2)
        return folder, write_text(folder.with_name(f"{folder.name}.truth.json"), truth + "\n")


def reconstruct_images(
    update: Path, config: AuditConfig, attack: str, out: Path | None, budget: Budget, progress: Progress
) -> tuple[Reconstruction, Path | None]:
    """Attack one update folder with the auxiliary images of the data file, if one was given."""
    with nullcontext() if out is None else output_folder(out) as folder:
        model = load_model(config.model, device=config.device)
        assert isinstance(model, ImageModel)
        auxiliary = read_pictures(config.data)[1] if "data" in config.model_fields_set else None
        (found,) = attack_images(
            load_update(update, model), model, attack, auxiliary=auxiliary, seed=config.seed, budget=budget,
            progress=progress, **config.options,
        )  # fmt: skip
        text = found.model_dump_json(indent=2) + "\n"
        return found, None if folder is None else write_text(folder / FILE, text)


def score_image_files(reconstruction: Path, truth: Path) -> Score:
    """Compare what `attack` wrote with what `capture` kept."""
    found = load_reconstruction(reconstruction)
    try:
        kept = ImageTruth.model_validate_json(truth.read_bytes())
    except OSError as error:
        raise GradleakError(f"cannot read {truth}: {error.strerror}") from error
    except ValidationError as error:
        raise GradleakError(f"{truth} is not a truth file of images: {error.errors()[0]['msg']}") from error
    return score_images(found, Pictures(from_uris(kept.images), tuple(kept.labels)))


def print_image_score(scored: Score) -> None:
    table = Table(title="Reconstruction against truth", title_justify="left")
    labels = metric_labels(scored.pairs[0].scores)
    for heading in ("image", *labels.values()):
        table.add_column(heading, justify="right")
    for number, pair in enumerate(scored.pairs, start=1):
        table.add_row(str(number), *(figure(name, pair.scores[name]) for name in labels))
    Console().print(table)
