"""Truth files: what an update was made from, as `capture` writes it or as anyone can by hand."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from gradleak.audits.modality import Truth
from gradleak.core.errors import GradleakError
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
    try:
        truth = Truth.model_validate_json(path.read_bytes())
    except OSError as error:
        raise GradleakError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise GradleakError(f"{path} is not a truth file: {where}: {first['msg']}") from error
    if not truth.examples:
        raise GradleakError(f"{path} holds neither texts nor images")
    return truth
