"""How close an image is to another: MSE, PSNR and SSIM, each for a pair given as (channels, height, width)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import correlate1d

Values = NDArray[np.float64]

# Of equal images; nothing that 8-bit pixels tell apart comes near it.
MOST_PSNR = 100.0
# Wang et al. 2004: a Gaussian window of 11 pixels, and what keeps the quotients finite for values from 0 to 1.
SPREAD, REACH = 1.5, 5
STEADY = (0.01**2, 0.03**2)


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
    blurred = correlate1d(correlate1d(image, weights, axis=1), weights, axis=2)
    return blurred[:, REACH:-REACH, REACH:-REACH]
