"""What a language model is trained to predict where only the answer of each text counts, not the question."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.privacy import private
from gradleak.models.tasks.base import NOT_PREDICTED
from gradleak.models.text import Batch, TextModel


def completion_targets(model: TextModel, texts: Sequence[str], batch: Batch, marker: str) -> Tensor:
    """The token ids of the batch, but those up to the last marker of each text are not predicted.

    A token that begins inside the marker and reaches beyond it belongs to the marker.
    """
    targets = batch.ids.clone()
    for row, text in enumerate(texts):
        begun = _begun(model, text, marker)
        if begun is None:
            raise GradleakError(
                f"text {row + 1} has no {marker!r} that a completion could follow (it begins "
                f"{private(repr(text[:40]))}); another marker: loss=completion,marker=..."
            )
        if begun >= batch.lengths[row]:
            raise GradleakError(
                f"text {row + 1} ends at {marker!r}, so there is nothing to predict (it begins "
                f"{private(repr(text[:40]))})"
            )
        targets[row, :begun] = NOT_PREDICTED
    return targets


def _begun(model: TextModel, text: str, marker: str) -> int | None:
    """How many tokens there are up to the end of the last marker; None if there is no marker.

    Found by places in the text: a marker's tokens inside a text need not be those of the marker alone.
    """
    found = text.rfind(marker)
    if found < 0:
        return None
    places = model.tokenizer(text, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    end = found + len(marker)
    # Tokens that the tokenizer adds have no place of their own: those before the text come before the marker.
    return 1 + max(number for number, (first, last) in enumerate(places) if first < last and first < end)
