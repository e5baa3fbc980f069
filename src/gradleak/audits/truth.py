"""Truth files: what an update was made from, as `capture` writes it or as anyone can by hand."""

from __future__ import annotations

from pathlib import Path

from gradleak.audits.modality import Truth
from gradleak.core.errors import GradleakError
from gradleak.core.reading import read_model
from gradleak.data.texts import read_data


def check_place(path: Path) -> None:
    """Refuse a place that holds no file, without a look into it."""
    if not path.is_file():
        raise GradleakError(f"there is no truth file at {path}")


def read_truth(path: Path) -> Truth:
    """The truth of a .json file, or of a table or a plain text with a sentence a line, as data files have them."""
    check_place(path)
    if path.suffix.lower() != ".json":
        rows = read_data(path)
        labels = [row.label for row in rows if isinstance(row.label, int)]
        if len(labels) not in (0, len(rows)) or any(isinstance(row.label, str) for row in rows):
            raise GradleakError(f"{path}: the labels of a truth are class numbers, one for every text or none")
        return Truth(texts=[row.text for row in rows], labels=labels or None)
    return read_model(path, Truth, "a truth file")
