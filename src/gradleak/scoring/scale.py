"""By what audits are judged: for every modality the measure, its lines, and the words for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gradleak.models.tasks import Modality
from gradleak.scoring.interval import Interval
from gradleak.scoring.metrics import find_metric, label_of, range_of
from gradleak.scoring.metrics.pixels import CLOSE


@dataclass(frozen=True)
class Scale:
    """How audits of one modality are judged. A higher score is a larger leak on every scale."""

    modality: Modality
    metric: str  # the measure of a leak
    digits: int  # in sentences, where a score stands beside its interval
    unit: str
    whole: str  # the metric that counts in percent what came back whole
    is_whole: Callable[[Mapping[str, float]], bool]  # the same for the scores of one example
    adjective: str  # whole sentences, close images
    noun: str
    came_back: str
    content: str
    far: float  # above guessing by so much, a clear leak is high
    near: float  # the least leak that "not shown" must be able to see
    full: float  # drawn in the strongest colour
    causes_recorded: bool = True  # whether audits record what stood in an attack's way beside the budget

    @property
    def label(self) -> str:
        return label_of(self.metric)

    @property
    def width(self) -> float:
        """How far two scores can lie apart."""
        low, high = range_of(self.metric)
        return high - low

    def format(self, interval: Interval) -> str:
        """
        >>> SCALES["text"].format(Interval(mean=43.21, low=30.2, high=55.7))
        '43 [30, 56]'
        """
        return f"{interval:.{self.digits}f}"

    def format_change(self, change: Interval) -> str:
        """
        >>> SCALES["images"].format_change(Interval(mean=-3.21, low=-6, high=0.4))
        '-3.2 [-6.0, +0.4]'
        """
        return f"{change:+.{self.digits}f}"

    def labelled(self, interval: Interval) -> str:
        """
        >>> SCALES["images"].labelled(Interval(mean=21.3, low=20, high=22.6))
        'PSNR 21.3 [20.0, 22.6]'
        """
        return f"{self.label} {self.format(interval)}"

    def strength(self, score: float) -> float:
        """A score as a share of the strongest colour, from 0 to 1."""
        return min(max(score / self.full, 0.0), 1.0)


SCALES: dict[Modality, Scale] = {
    "text": Scale(
        "text",
        "rougeL",
        digits=0,
        unit="points",
        whole="exact_match",
        is_whole=lambda scores: scores["exact_match"] == 100,
        adjective="whole",
        noun="sentence",
        came_back="whole",
        content="text",
        far=25.0,
        near=10.0,
        full=100.0,
    ),
    "images": Scale(
        "images",
        "psnr",
        digits=1,
        unit="dB",
        whole="close_images",
        is_whole=lambda scores: scores["psnr"] >= CLOSE,
        adjective="close",
        noun="image",
        came_back=f"to {CLOSE:.0f} dB or better",
        content="images",
        # Three decibels are half the squared error, six a quarter of it.
        far=6.0,
        near=3.0,
        full=40.0,
        causes_recorded=False,
    ),
}


def scale_by(metric: str) -> Scale:
    """The scale of what a metric compares; one that is not known here is taken to compare texts."""
    known = find_metric(metric)
    return SCALES["text" if known is None else known.modality]
