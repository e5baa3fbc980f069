"""Texts packed into rows of so many tokens, as trainers of language models do it, each text with an end token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.models.batch import Batch
from gradleak.models.tasks.base import NOT_PREDICTED
from gradleak.models.text import TextModel

if TYPE_CHECKING:
    from gradleak.updates.client_rule import ClientRule


@dataclass(frozen=True)
class Piece:
    """Some tokens of a text, and what is to be predicted at each of them."""

    ids: list[int]
    targets: list[int]

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, first: int, last: int) -> Piece:
        return Piece(self.ids[first:last], self.targets[first:last])


Rows = list[list[Piece]]


def pack(model: TextModel, rule: ClientRule, texts: Sequence[Piece]) -> tuple[Batch, Tensor]:
    """The rows that the texts are packed into by the rule, and what is predicted in them."""
    assert rule.pack is not None
    if rule.pack > model.max_length:
        raise GradleakError(f"pack={rule.pack}: {model.name} takes at most {model.max_length} tokens")
    end = model.tokenizer.eos_token_id
    if end is None:
        raise GradleakError(f"pack joins texts by an end token, and the tokenizer of {model.name} has none")
    ended = [text if text.ids[-1] == end else Piece([*text.ids, end], [*text.targets, end]) for text in texts]
    rows = wrapped(ended, rule.pack) if rule.packing == "wrapped" else best_fit(ended, rule.pack)
    # A piece of a single token has nothing to predict where it sees no other.
    rows = [[piece for piece in row if len(piece) > 1 or rule.attends_across] for row in rows]
    rows = [row for row in rows if sum(map(len, row)) > 1]
    if not any(target != NOT_PREDICTED for row in rows for piece in row for target in piece.targets[1:]):
        raise GradleakError(f"rows of {rule.pack} tokens leave nothing to predict: give a larger pack")
    batch = model.pad([[token for piece in row for token in piece.ids] for row in rows])
    targets = model.pad([[target for piece in row for target in piece.targets] for row in rows]).ids
    if rule.attends_across:
        return batch, targets
    starts = torch.zeros_like(batch.mask)
    for number, row in enumerate(rows):
        place = 0
        for piece in row:
            starts[number, place] = True
            place += len(piece)
    packed = SeparateTexts(batch.ids, batch.mask, starts)
    return (packed, targets) if rule.local else packed.apart(targets)  # which row a text is in decides only steps


def wrapped(texts: Sequence[Piece], length: int) -> Rows:
    """All texts as one long one, cut every `length` tokens wherever that is; the last row may be shorter.

    >>> a, b = Piece([1, 2, 3, 0], [1, 2, 3, 0]), Piece([4, 5, 0], [4, 5, 0])
    >>> [[piece.ids for piece in row] for row in wrapped([a, b], 5)]
    [[[1, 2, 3, 0], [4]], [[5, 0]]]
    """
    rows: Rows = []
    room = 0
    for text in texts:
        first = 0
        while first < len(text):
            if not room:
                rows.append([])
                room = length
            piece = text.cut(first, first + room)
            rows[-1].append(piece)
            first, room = first + len(piece), room - len(piece)
    return rows


def best_fit(texts: Sequence[Piece], length: int) -> Rows:
    """Whole texts, the longest first, each into the row that it leaves least room in.

    >>> texts = [Piece([1] * size, [1] * size) for size in (2, 5, 3, 4)]
    >>> [[len(piece) for piece in row] for row in best_fit(texts, 7)]
    [[5, 2], [4, 3]]
    """
    rows: Rows = []
    room: list[int] = []
    for number, text in sorted(enumerate(texts), key=lambda each: -len(each[1])):
        if len(text) > length:
            raise GradleakError(
                f"text {number + 1} has {len(text)} tokens with its end token, and packing=bfd keeps texts whole in "
                f"rows of {length}: take a larger pack, or packing=wrapped"
            )
        fitting = [row for row, left in enumerate(room) if left >= len(text)]
        if not fitting:
            rows.append([])
            room.append(length)
            fitting = [len(rows) - 1]
        best = min(fitting, key=lambda row: room[row])
        rows[best].append(text)
        room[best] -= len(text)
    return rows


@dataclass(frozen=True)
class SeparateTexts(Batch):
    """Packed rows whose texts do not see one another, and whose positions begin anew with every text.

    What the model makes of them is what it makes of the texts one by one, so that is how it is computed.
    """

    starts: Tensor

    def part(self, which: slice) -> SeparateTexts:
        return SeparateTexts(self.ids[which], self.mask[which], self.starts[which])

    def apart(self, targets: Tensor) -> tuple[Batch, Tensor]:
        """Every text as a row of its own; nothing is predicted across the border of two."""
        places = (self.starts & self.mask).nonzero().tolist()
        ends = dict(enumerate(self.lengths))
        spans = []
        for (row, first), following in zip(places, [*places[1:], [-1, 0]], strict=True):
            spans.append((row, first, following[1] if following[0] == row else ends[row]))
        width = max(last - first for _, first, last in spans)
        ids = self.ids.new_zeros(len(spans), width)
        wanted = targets.new_full((len(spans), width), NOT_PREDICTED)
        mask = torch.zeros_like(ids, dtype=torch.bool)
        for number, (row, first, last) in enumerate(spans):
            ids[number, : last - first] = self.ids[row, first:last]
            wanted[number, : last - first] = targets[row, first:last]
            mask[number, : last - first] = True
        return Batch(ids, mask), wanted
