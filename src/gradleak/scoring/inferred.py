"""How right an attack was about labels, lengths and tokens that it was not given and had to infer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gradleak.attacks.base import Reconstruction
from gradleak.models.tasks import Label
from gradleak.scoring.named import Named


def inferred_accuracy(
    reconstruction: Reconstruction,
    labels: Sequence[Label] | None,
    lengths: Sequence[int] = (),
    tokens: Named | None = None,
) -> dict[str, float]:
    """Percent of each that is right, as a bag: which sentence of a batch has which is not asked.

    Of an attack that names tokens: how many of the batch's, and how many of those it named were there.

    >>> guess = Reconstruction(sentences=[], labels=[0, 1], lengths=[7, 9], found=["lengths", "labels"])
    >>> inferred_accuracy(guess, [1, 1], [9, 7])
    {'lengths': 100.0, 'labels': 50.0}
    >>> inferred_accuracy(Reconstruction(lengths=[5, 6, 7, 8], found=["lengths"]), None, [7])
    {'lengths': 25.0}
    """
    truth = {"labels": labels, "lengths": lengths}
    guesses = {"labels": reconstruction.labels, "lengths": reconstruction.lengths}
    accuracy = {
        name: _share(right, guesses[name] or ())
        for name in reconstruction.found
        if (right := truth.get(name)) is not None
    }
    if tokens is not None:
        accuracy |= {"bag recall": tokens.recall, "bag precision": tokens.precision}
    return accuracy


def _share(truth: Sequence[Label], guess: Sequence[Label]) -> float:
    """Of whichever there are more of, so that naming every number there is does not pay."""
    common = (Counter(map(_rounded, truth)) & Counter(map(_rounded, guess))).total()
    return 100 * common / max(len(truth), len(guess)) if truth else 0.0


def _rounded(label: Label) -> Label:
    """A number that was computed counts as right if it is so to two decimals."""
    return round(label, 2) if isinstance(label, float) else label
