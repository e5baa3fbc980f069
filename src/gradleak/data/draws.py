"""Which private examples each trial takes: drawn once from the seed, so that every attack faces the same ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.core.errors import GradleakError
from gradleak.data.pictures import Pictures
from gradleak.data.published import Published, published_order
from gradleak.data.records import Completions
from gradleak.data.texts import Row
from gradleak.data.windows import cut_rows
from gradleak.models.tasks.base import GivenLabel
from gradleak.models.text import TextModel


@dataclass(frozen=True)
class TextBatch:
    """The private texts of one client, with their labels; None where the task has none.

    `completions` are the places of the answers in each text, where the data says which they are.
    """

    texts: list[str]
    labels: list[GivenLabel] | None
    completions: list[Completions | None] | None = None

    def targets(self, model: TextModel) -> list[str] | None:
        """The second texts, where an example is a pair; None where it is not."""
        return [str(label) for label in self.labels or ()] if model.goal.paired else None


def draw_texts(
    rows: Sequence[Row],
    model: TextModel,
    *,
    batch_size: int,
    trials: int,
    seed: int,
    max_tokens: int | None = None,
    window: int | None = None,
    rule: Published | None = None,
) -> list[TextBatch]:
    """Distinct rows for every trial. Asking for more trials keeps the first ones as they were.

    Rows without a label get a class drawn from the seed; rows of more than `max_tokens` tokens are passed over.
    With `window` the rows are cut into pieces of exactly that many tokens first. A published `rule` says which rows
    are taken, whatever the seed.
    """
    rows = rows if window is None else cut_rows(rows, model, window)
    rng = random.Random(seed)
    order = rng.sample(range(len(rows)), len(rows))
    if rule is not None:
        order = published_order(rule, [row.text for row in rows], batch_size)
    needed = batch_size * trials
    chosen: list[Row] = []
    for index in order:
        if len(chosen) == needed:
            break
        row = rows[index]
        if max_tokens is None or _tokens(model, row.text) <= max_tokens:
            chosen.append(row)
    if len(chosen) < needed:
        limit = f" of at most {max_tokens} tokens" if max_tokens else ""
        giver = rule or "the data"
        raise GradleakError(
            f"{trials} trials of {batch_size} texts need {needed} rows; {giver} has {len(chosen)}{limit}"
        )
    return [_batch(chosen[i : i + batch_size], model, rng) for i in range(0, needed, batch_size)]


def draw_images(private: Pictures, batch_size: int, trials: int, seed: int) -> list[Pictures]:
    """Distinct images for every trial. Asking for more trials keeps the first ones as they were."""
    needed = batch_size * trials
    if needed > len(private):
        raise GradleakError(f"{trials} trials of {batch_size} images need {needed}; the data has {len(private)}")
    order = random.Random(seed).sample(range(len(private)), len(private))
    return [private.some(order[first : first + batch_size]) for first in range(0, needed, batch_size)]


def _batch(rows: Sequence[Row], model: TextModel, rng: random.Random) -> TextBatch:
    labels: list[GivenLabel] | None = None
    if model.goal.labelled:
        labels = [_label(row, model, rng) for row in rows]
    return TextBatch([row.text for row in rows], labels, completions_of(rows))


def completions_of(rows: Sequence[Row]) -> list[Completions | None] | None:
    """Where the answers stand in the texts of these rows; None if no row says."""
    places = [row.completions for row in rows]
    return None if all(own is None for own in places) else places


def _label(row: Row, model: TextModel, rng: random.Random) -> GivenLabel:
    if row.label is not None and model.goal.takes(row.label):
        return row.label
    return model.goal.drawn_label(model, row.text, rng)


def _tokens(model: TextModel, text: str) -> int:
    return len(model.tokenizer(text, verbose=False)["input_ids"])
