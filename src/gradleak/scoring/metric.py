"""What a metric is: a name, what it counts, its range and direction, and the function that computes it.

A metric of one's own is one such object, chosen by the name "module:attribute" or given to `score` as it is:

    shouting = Metric(
        name="shouting", label="Shouting", counts="capitals in what was read back", low=0, high=100,
        higher_is_closer=True, modality="text",
        function=lambda pair: 100 * pair.guess.text.isupper(),
    )
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradleak.attacks.base import Sentence
from gradleak.core.progress import Progress
from gradleak.models.tasks import Modality
from gradleak.models.text import TextModel
from gradleak.scoring.interval import Interval, format_interval
from gradleak.scoring.text import rouge

Values = NDArray[np.float64]
P = TypeVar("P")


@dataclass(frozen=True, eq=False)
class TextPair:
    """A true text and a guess at it, both as text and as the model's tokens without special ones.

    Text that the tokenizer does not know is lost, whoever reads the update: `truth_decoded` holds the names of such
    tokens in its place, which no guess holds.
    """

    truth: str  # as it was written
    truth_tokens: Sequence[int]
    truth_decoded: str  # as the tokens tell it: an uncased model cannot leak case
    guess: Sentence
    model: TextModel
    lost: int = 0  # tokens of the truth that are unknown or special, which no guess can hold

    @functools.cached_property
    def rouge(self) -> dict[str, float]:
        """ROUGE-1, ROUGE-2 and ROUGE-L, which are computed together."""
        return rouge(self.truth_decoded, self.guess.text)


@dataclass(frozen=True, eq=False)
class ImagePair:
    """A true image and a guess at it, (channels, height, width) with values from 0 to 1."""

    truth: Values
    guess: Values


@dataclass(frozen=True, eq=False)
class Batch(Generic[P]):
    """All that a metric of a whole batch may look at."""

    table: Sequence[Sequence[P]]  # a row for every true example, a column for every guess
    pairs: Sequence[P]  # every true example with the guess that was assigned to it
    scores: Sequence[Mapping[str, float]]  # of these pairs, by metric


@dataclass(frozen=True)
class Metric:
    """One way to compare what was read back with the truth.

    `function` takes a `TextPair` or an `ImagePair` and gives a number, or None where the metric does not apply to the
    pair (a sentence that names nobody has no share of names); that of a metric `of_batch` takes a `Batch` of them.
    Means over a batch and over trials, and their intervals, follow from it.
    """

    name: str  # its key in results.json
    label: str
    counts: str  # what it counts, one phrase
    low: float
    high: float
    higher_is_closer: bool
    modality: Modality
    function: Callable[[Any], float | None]
    digits: int = 1
    bound_digits: int = 0  # of the bounds of an interval
    of_batch: bool = False  # computed once for a batch, not for each pair
    optional: bool = False  # measured only when it is asked for
    prepare: Callable[[Progress], object] | None = None  # loads what it needs, or says what is missing

    def figure(self, value: float) -> str:
        """A score with the digits that tell something."""
        return f"{value:.{self.digits}f}"

    def format(self, interval: Interval) -> str:
        """The mean and its interval, such as 43.2 [30, 56]."""
        return format_interval(interval, self.digits, self.bound_digits)


def measure(
    table: Sequence[Sequence[P]], pairs: Sequence[P], metrics: Sequence[Metric]
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """The scores of every pair, and those of the batch: means over the pairs, then metrics of the batch itself."""
    single = [metric for metric in metrics if not metric.of_batch]
    scores = [_values(single, pair) for pair in pairs]
    batch = Batch(table, pairs, scores)
    return scores, mean_scores(scores) | _values([metric for metric in metrics if metric.of_batch], batch)


def mean_scores(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Every score's mean over those that have it: a sentence without named entities has no share of them.

    >>> mean_scores([{"rougeL": 50.0}, {"rougeL": 100.0, "nerr": 40.0}])
    {'rougeL': 75.0, 'nerr': 40.0}
    """
    return {name: sum(values) / len(values) for name, values in by_metric(scores).items()}


def by_metric(scores: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """The values of every score, in order, of those that have it."""
    names = dict.fromkeys(name for each in scores for name in each)
    return {name: [each[name] for each in scores if name in each] for name in names}


def _values(metrics: Sequence[Metric], compared: object) -> dict[str, float]:
    values = {metric.name: metric.function(compared) for metric in metrics}
    return {name: float(value) for name, value in values.items() if value is not None}
