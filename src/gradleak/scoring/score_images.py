"""The one place where a reconstruction of images meets the truth."""

from __future__ import annotations

import numpy as np
import torch

from gradleak.attacks.base import Reconstruction
from gradleak.core.errors import GradleakError
from gradleak.data.pictures import Pictures, from_uris
from gradleak.data.png import Pixels
from gradleak.scoring.assign import best_assignment
from gradleak.scoring.image import REACH, mse, psnr, ssim
from gradleak.scoring.lpips import Lpips
from gradleak.scoring.score import Pair, Score, mean_scores

# What each metric can be at all: the interval of a single trial.
RANGES = {"mse": (0.0, 1.0), "psnr": (0.0, 100.0), "ssim": (-1.0, 1.0), "lpips": (0.0, 1.0)}
# A PSNR from which an image counts as close: a mean squared error of 0.01.
CLOSE = 20.0


def score_images(reconstruction: Reconstruction, truth: Pictures, lpips: Lpips | None = None) -> Score:
    """Compare recovered images with the true ones, pixels from 0 to 1.

    In a batch, images are paired so that the sum of the errors is smallest. A true image that nothing is left for is
    compared with plain grey.
    """
    guesses = from_uris(reconstruction.images) if reconstruction.images else truth.pixels[:0]
    if guesses.shape[1:] != truth.pixels.shape[1:]:
        raise GradleakError("the recovered images have another shape than the true ones")
    errors = [[mse(_values(true), _values(guess)) for guess in guesses] for true in truth.pixels]
    pairs = []
    for true, uri, column in zip(
        truth.pixels, truth.uris(), best_assignment([[-e for e in row] for row in errors]), strict=True
    ):
        guess = np.full_like(true, 128) if column is None else guesses[column]
        shown = "" if column is None else reconstruction.images[column]
        pairs.append(Pair(truth=uri, reconstruction=shown, scores=_compare(true, guess, lpips)))
    close = sum(pair.scores["psnr"] >= CLOSE for pair in pairs)
    means = mean_scores([pair.scores for pair in pairs])
    return Score(metrics=means | {"close_images": 100 * close / len(pairs)}, pairs=pairs)


def _compare(true: Pixels, guess: Pixels, lpips: Lpips | None) -> dict[str, float]:
    a, b = _values(true), _values(guess)
    error = mse(a, b)
    scores = {"mse": error, "psnr": psnr(error)}
    if min(true.shape[1:]) > 2 * REACH:
        scores["ssim"] = ssim(a, b)
    if lpips is not None:
        scores["lpips"] = float(lpips.distances(torch.tensor(a)[None].float(), torch.tensor(b)[None].float()))
    return scores


def _values(pixels: Pixels) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return pixels.astype(np.float64) / 255
