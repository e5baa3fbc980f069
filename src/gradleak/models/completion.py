"""What a language model is trained to predict where only the answer of each text counts, not the question."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.core.errors import GradleakError
from gradleak.core.privacy import private
from gradleak.models.tasks.base import NOT_PREDICTED, Places
from gradleak.models.text import TextModel


def completion_targets(
    model: TextModel,
    texts: Sequence[str],
    rows: Sequence[list[int]],
    marker: str,
    completions: Sequence[Places | None] | None = None,
) -> list[list[int]]:
    """The token ids of the rows, but only those of completions are predicted.

    Where `completions` says where they stand in a text, these are all tokens with a character there, as the library
    has it for the turns of an assistant. Else they are what follows the text's last marker; a token that begins
    inside the marker and reaches beyond it belongs to the marker.
    """
    targets = []
    for number, (text, row) in enumerate(zip(texts, rows, strict=True)):
        own = None if completions is None else completions[number]
        wanted = _after(model, text, marker, number, len(row)) if own is None else _within(model, text, own)
        targets.append([token if place in wanted else NOT_PREDICTED for place, token in enumerate(row)])
        if own is not None and all(target == NOT_PREDICTED for target in targets[-1][1:]):
            raise GradleakError(
                f"text {number + 1} has no completion to predict (it begins {private(repr(text[:40]))})"
            )
    return targets


def _within(model: TextModel, text: str, places: Places) -> set[int]:
    """The tokens with a character in one of these places."""
    offsets = model.tokenizer(text, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    return {
        number
        for number, (first, last) in enumerate(offsets)
        if first < last and any(first < end and last > begin for begin, end in places)
    }


def _after(model: TextModel, text: str, marker: str, number: int, length: int) -> range:
    """The tokens after the last marker."""
    begun = _begun(model, text, marker)
    if begun is None:
        raise GradleakError(
            f"text {number + 1} has no {marker!r} that a completion could follow (it begins "
            f"{private(repr(text[:40]))}); another marker: loss=completion,marker=..."
        )
    if begun >= length:
        raise GradleakError(
            f"text {number + 1} ends at {marker!r}, so there is nothing to predict (it begins "
            f"{private(repr(text[:40]))})"
        )
    return range(begun, length)


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
