"""Which class an image has: known, or read off the gradient of the last layer."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.core.errors import GradleakError
from gradleak.models.image import ImageModel
from gradleak.updates.update import Update


def labels_of(update: Update, model: ImageModel, attack: str) -> tuple[int, ...]:
    """The classes of a batch: known, or for a single image found by the rule of iDLG."""
    if update.known.classes is not None:
        return update.known.classes
    if update.known.size != 1:
        raise GradleakError(
            f"{attack} finds the label of a single image only; larger batches need batch_size and labels known"
        )
    return (label_of_one(update, model),)


def label_of_one(update: Update, model: ImageModel) -> int:
    """Cross-entropy pulls only the true class's logit up, so its row of the last layer points down.

    Inputs of that layer are rarely negative after sigmoid or ReLU, so whole rows are summed: noise and pruning
    change a sum of hundreds of coordinates less than the bias alone.
    """
    rows = [update.tensors.get(f"{model.head}.{part}") for part in ("weight", "bias")]
    sums = [row.reshape(len(row), -1).sum(dim=1) for row in rows if row is not None]
    if not sums:
        raise GradleakError(f"the update holds nothing of {model.head}, so the label must be known")
    return int(sum(sums[1:], sums[0]).argmin())


def what_was_found(updates: Sequence[Update]) -> list[list[str]]:
    """What the attack had to find itself of every update, as a reconstruction says it."""
    return [[] if update.known.classes is not None else ["labels"] for update in updates]
