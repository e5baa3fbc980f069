"""How close an image is to another, pixel by pixel: MSE, PSNR and SSIM of images as (channels, height, width)."""

from __future__ import annotations

import math

import numpy as np
import scipy  # its parts are loaded when they are first used

from gradleak.scoring.metric import Batch, ImagePair, Metric, Values

# Of equal images; nothing that 8-bit pixels tell apart comes near it.
MOST_PSNR = 100.0
# Wang et al. 2004: a Gaussian window of 11 pixels, and what keeps the quotients finite for values from 0 to 1.
SPREAD, REACH = 1.5, 5
STEADY = (0.01**2, 0.03**2)
# A PSNR from which an image counts as close: a mean squared error of 0.01.
CLOSE = 20.0


def mse(truth: Values, guess: Values) -> float:
    """
    >>> mse(np.zeros((1, 2, 2)), np.full((1, 2, 2), 0.5))
    0.25
    """
    return float(np.square(truth - guess).mean())


def psnr(error: float) -> float:
    """Peak signal-to-noise ratio in dB out of the MSE, for values from 0 to 1.

    >>> round(psnr(0.01), 1), psnr(0.0)
    (20.0, 100.0)
    """
    return min(MOST_PSNR, -10 * math.log10(error)) if error > 0 else MOST_PSNR


def ssim(truth: Values, guess: Values) -> float:
    """Structural similarity, the mean over channels and over all places where the window fits.

    >>> image = np.random.default_rng(0).random((3, 16, 16))
    >>> round(ssim(image, image), 6)
    1.0
    """
    if min(truth.shape[1:]) < 2 * REACH + 1:
        raise ValueError(f"SSIM needs images of at least {2 * REACH + 1} pixels a side")
    mean_a, mean_b = _blurred(truth), _blurred(guess)
    var_a, var_b = _blurred(truth * truth) - mean_a**2, _blurred(guess * guess) - mean_b**2
    both = _blurred(truth * guess) - mean_a * mean_b
    first, second = STEADY
    similar = (2 * mean_a * mean_b + first) * (2 * both + second)
    return float((similar / ((mean_a**2 + mean_b**2 + first) * (var_a + var_b + second))).mean())


def _blurred(image: Values) -> Values:
    weights = np.exp(-0.5 * (np.arange(-REACH, REACH + 1) / SPREAD) ** 2)
    weights /= weights.sum()
    blur = scipy.ndimage.correlate1d
    blurred = blur(blur(image, weights, axis=1), weights, axis=2)
    return blurred[:, REACH:-REACH, REACH:-REACH]


def _mse(pair: ImagePair) -> float:
    return mse(pair.truth, pair.guess)


def _psnr(pair: ImagePair) -> float:
    return psnr(_mse(pair))


def _ssim(pair: ImagePair) -> float | None:
    return ssim(pair.truth, pair.guess) if min(pair.truth.shape[1:]) > 2 * REACH else None


def _close(batch: Batch[ImagePair]) -> float:
    return 100 * sum(_psnr(pair) >= CLOSE for pair in batch.pairs) / len(batch.pairs)


MSE = Metric(
    "mse", "MSE", "mean squared error of a pixel; lower is closer", low=0, high=1, higher_is_closer=False,
    modality="images", function=_mse, digits=4, bound_digits=4,
)  # fmt: skip
PSNR = Metric(
    "psnr", "PSNR", "peak signal-to-noise ratio in dB; higher is closer", low=0, high=MOST_PSNR,
    higher_is_closer=True, modality="images", function=_psnr, digits=1, bound_digits=1,
)  # fmt: skip
SSIM = Metric(
    "ssim", "SSIM", "structural similarity, 1 for equal images; higher is closer", low=-1, high=1,
    higher_is_closer=True, modality="images", function=_ssim, digits=3, bound_digits=3,
)  # fmt: skip
CLOSE_IMAGES = Metric(
    "close_images", "Close images", f"percent of the images that have a PSNR of {CLOSE:.0f} dB or more",
    low=0, high=100, higher_is_closer=True, modality="images", function=_close, digits=1, bound_digits=1,
    of_batch=True,
)  # fmt: skip
