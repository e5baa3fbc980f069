"""The one place where a reconstruction of images meets the truth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradleak.attacks.base import Reconstruction
from gradleak.core.errors import GradleakError
from gradleak.data.pictures import Pictures, from_uris
from gradleak.data.png import Pixels
from gradleak.scoring.assign import best_assignment
from gradleak.scoring.metric import ImagePair, Metric, Values, measure
from gradleak.scoring.metrics import choose_metrics
from gradleak.scoring.metrics.pixels import mse
from gradleak.scoring.score import Pair, Score


def score_images(reconstruction: Reconstruction, truth: Pictures, *, metrics: Sequence[str | Metric] = ()) -> Score:
    """Compare recovered images with the true ones, pixels from 0 to 1.

    In a batch, images are paired so that the sum of the errors is smallest. A true image that nothing is left for is
    compared with plain grey. `metrics` adds to the usual ones, by name (such as "lpips") or as objects.
    """
    chosen = choose_metrics("images", metrics)
    guesses = from_uris(reconstruction.images) if reconstruction.images else truth.pixels[:0]
    if guesses.shape[1:] != truth.pixels.shape[1:]:
        raise GradleakError("the recovered images have another shape than the true ones")
    true, guessed = [_values(image) for image in truth.pixels], [_values(image) for image in guesses]
    table = [[ImagePair(image, guess) for guess in guessed] for image in true]
    columns = best_assignment([[-mse(pair.truth, pair.guess) for pair in row] for row in table])
    grey = _values(np.full_like(truth.pixels[0], 128))
    assigned = [
        ImagePair(image, grey) if column is None else row[column]
        for image, row, column in zip(true, table, columns, strict=True)
    ]
    scores, means = measure(table, assigned, chosen)
    shown = ["" if column is None else reconstruction.images[column] for column in columns]
    pairs = [
        Pair(truth=uri, reconstruction=guess, scores=values, certified=column in reconstruction.certified_images)
        for uri, guess, values, column in zip(truth.uris(), shown, scores, columns, strict=True)
    ]
    return Score(metrics=means, pairs=pairs)


def _values(pixels: Pixels) -> Values:
    return pixels.astype(np.float64) / 255
