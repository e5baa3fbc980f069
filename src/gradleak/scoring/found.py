"""How many of the labels and lengths that an attack was not told it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gradleak.attacks.base import Reconstruction


def found_accuracy(
    reconstruction: Reconstruction, labels: Sequence[int] | None, lengths: Sequence[int]
) -> dict[str, float]:
    """Percent of each that is right, as a bag: which sentence of a batch has which is not asked.

    >>> guess = Reconstruction(sentences=[], labels=[0, 1], lengths=[7, 9], found=["lengths", "labels"])
    >>> found_accuracy(guess, [1, 1], [9, 7])
    {'lengths': 100.0, 'labels': 50.0}
    """
    truth = {"labels": labels, "lengths": lengths}
    guesses = {"labels": reconstruction.labels, "lengths": reconstruction.lengths}
    return {name: _share(truth[name] or (), guesses[name] or ()) for name in reconstruction.found}


def _share(truth: Sequence[int], guess: Sequence[int]) -> float:
    common = (Counter(truth) & Counter(guess)).total()
    return 100 * common / len(truth) if truth else 0.0
