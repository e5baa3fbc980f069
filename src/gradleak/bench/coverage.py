"""How often a 95 % interval over trials holds the true mean, by simulation: `python -m gradleak.bench.coverage`.

Prints the table of `docs/report.md`: for scores as audits give them and several numbers of trials, the share of the
simulated audits whose interval holds the mean, for the percentile bootstrap and for `mean_interval`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gradleak.core.output import say
from gradleak.scoring.interval import Interval, mean_interval

TRIALS = (2, 3, 5, 8, 10, 20, 50)
AUDITS = 1000
RESAMPLES = 1000

Scores = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Scores]


def _whole(share: float) -> Draw:
    """Every batch is read whole or not at all."""
    return lambda random, shape: np.where(random.random(shape) < share, 100.0, 0.0)


def _beta(a: float, b: float) -> Draw:
    return lambda random, shape: 100.0 * random.beta(a, b, shape)


def _mostly(value: float, share: float, other: Draw) -> Draw:
    """So large a share of the batches gives one value, the others are drawn."""
    return lambda random, shape: np.where(random.random(shape) < share, value, other(random, shape))


# What scores look like, with their true mean.
SCORES: dict[str, tuple[Draw, float]] = {
    "whole or nothing, 3 in 10": (_whole(0.3), 30.0),
    "whole or nothing, 1 in 10": (_whole(0.1), 10.0),
    "spread evenly from 0 to 100": (_beta(1, 1), 50.0),
    "around 30": (_beta(3, 7), 30.0),
    "a few words, around 6": (_beta(1, 15), 100 / 16),
    "8 in 10 are 100, the others spread": (_mostly(100, 0.8, _beta(2, 2)), 90.0),
    "8 in 10 are 0, the others spread": (_mostly(0, 0.8, _beta(2, 2)), 10.0),
}


def percentile_bootstrap(values: Sequence[float]) -> Interval:
    """What was used before: percentiles of the means of resampled trials."""
    data = np.asarray(values, dtype=float)
    means = np.random.default_rng(0).choice(data, size=(RESAMPLES, len(data))).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(mean=float(data.mean()), low=float(low), high=float(high))


def coverage(
    method: Callable[[Sequence[float]], Interval], draw: Draw, mean: float, trials: int, audits: int = AUDITS
) -> float:
    """The percentage of simulated audits of so many trials whose interval holds the true mean.

    >>> coverage(mean_interval, *SCORES["around 30"], trials=5, audits=300) > 90
    True
    """
    found = [method(row) for row in draw(np.random.default_rng(trials), (audits, trials)).tolist()]
    return 100 * sum(one.low - 1e-9 <= mean <= one.high + 1e-9 for one in found) / audits


def table(audits: int = AUDITS) -> str:
    """Before and after, as Markdown."""
    lines = [f"| scores | {' | '.join(f'{trials} trials' for trials in TRIALS)} |", "|---" * (len(TRIALS) + 1) + "|"]
    for name, (draw, mean) in SCORES.items():
        cells = (
            " → ".join(f"{coverage(way, draw, mean, n, audits):.0f}" for way in (percentile_bootstrap, mean_interval))
            for n in TRIALS
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    say(*table().splitlines())
