"""Truth files: what an update was made from, as `capture` writes it or as anyone can by hand."""

from __future__ import annotations

from pathlib import Path

from gradleak.audits.modality import Truth
from gradleak.core.errors import GradleakError
from gradleak.core.reading import read_model
from gradleak.data.texts import read_data
from gradleak.models.base import Target
from gradleak.models.tasks.classification import class_number
from gradleak.models.text import TextModel


def check_place(path: Path) -> None:
    """Refuse a place that holds no file, without a look into it."""
    if not path.is_file():
        raise GradleakError(f"there is no truth file at {path}")


def read_truth(path: Path, model: Target | None = None) -> Truth:
    """The truth of a .json file, or of a table or a plain text with a sentence a line, as data files have them.

    A table may name classes, if there is a classifier to say which of its classes they are.
    """
    check_place(path)
    if path.suffix.lower() != ".json":
        rows = read_data(path)
        labels = [row.label for row in rows if row.label is not None]
        if isinstance(model, TextModel) and model.task == "classification":
            labels = [class_number(model, label) if isinstance(label, str) else label for label in labels]
        if len(labels) not in (0, len(rows)) or not all(map(_is_numbers, labels)):
            raise GradleakError(f"{path}: the labels of a truth are numbers or lists of them, for every text or none")
        return Truth.model_validate({"texts": [row.text for row in rows], "labels": labels or None})
    return read_model(path, Truth, "a truth file")


def _is_numbers(label: object) -> bool:
    each = label if isinstance(label, tuple) else (label,)
    return all(isinstance(value, int | float) for value in each)
