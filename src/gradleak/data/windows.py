"""Texts cut into pieces of a fixed number of tokens, as language models are trained on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradleak.core.errors import GradleakError
from gradleak.data.texts import Row
from gradleak.models.text import TextModel


def cut_rows(rows: Sequence[Row], model: TextModel, length: int) -> list[Row]:
    """The pieces of all rows, each with its row's label; `length` counts special tokens."""
    if any(row.completions for row in rows):
        raise GradleakError("a piece of a text does not show what its completion is: loss=completion takes no window")
    pieces = [Row(text, row.label) for row in rows for text, _ in windows(row.text, model, length)]
    if not pieces:
        raise GradleakError(f"no text of the data has {length} tokens")
    return pieces


def windows(text: str, model: TextModel, length: int) -> Iterator[tuple[str, list[int]]]:
    """Pieces of one text with their tokens. What would not be the same tokens again as a text is passed over.

    A piece that begins within a word is such a case; the next one begins a token later.
    """
    inner = length - len(model.prefix) - len(model.suffix)
    if inner < 1:
        raise GradleakError(f"a piece of {length} tokens is all special tokens for {model.name}")
    tokens = model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    first = 0
    while first + inner <= len(tokens):
        piece = model.decode(tokens[first : first + inner])
        again = model.tokenizer(piece, verbose=False)["input_ids"]
        if len(again) == length and len(model.content(again)) == inner:
            yield piece, again
            first += inner
        else:
            first += 1
