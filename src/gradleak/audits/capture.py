"""One update written as a folder, with the truth kept apart from it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gradleak.audits.results import observed
from gradleak.audits.spec import AuditConfig
from gradleak.clients.text import Client, class_number
from gradleak.core.errors import GradleakError
from gradleak.core.files import output_folder, write_text
from gradleak.core.progress import SILENT, Progress
from gradleak.data.draws import draw_trials
from gradleak.data.texts import read_data
from gradleak.models.load import load_model


class Truth(BaseModel):
    """What a captured update was made from. Never part of the update folder."""

    model_config = ConfigDict(extra="forbid")

    texts: list[str]
    labels: list[int] | None


def capture_update(config: AuditConfig, out: Path, progress: Progress = SILENT) -> tuple[Path, Path]:
    """Draw one batch, make its update, write the folder, and the truth into `<folder>.truth.json` beside it."""
    with output_folder(out) as folder:
        rows = read_data(config.data, config.text_column, config.label_column)
        model = load_model(
            config.model, task=config.task, num_labels=config.num_labels, device=config.device, progress=progress
        )
        (batch,) = draw_trials(
            rows,
            model,
            batch_size=config.batch_size,
            trials=1,
            seed=config.seed,
            max_tokens=config.max_tokens,
            window=config.window,
        )
        labels = None if batch.labels is None else [class_number(model, label) for label in batch.labels]
        sender = Client(model, config.known, config.client, config.defenses, config.observe)
        update = sender.update(batch.texts, labels, config.seed)
        progress.say(observed(update, config.observe, model).sentence)
        update.save(folder)
        truth = Truth(texts=batch.texts, labels=labels).model_dump_json(indent=2)
        return folder, write_text(folder.with_name(f"{folder.name}.truth.json"), truth + "\n")


def load_truth(path: Path) -> Truth:
    """Read a truth file back."""
    try:
        return Truth.model_validate_json(path.read_bytes())
    except OSError as error:
        raise GradleakError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise GradleakError(f"{path} is not a truth file: {error.errors()[0]['msg']}") from error
