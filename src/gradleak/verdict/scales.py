"""By what audits of text and of images are judged: the measure, its lines, and the words for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gradleak.models.tasks import TargetTask
from gradleak.scoring.interval import Interval
from gradleak.scoring.metrics import figure
from gradleak.scoring.metrics.pixels import CLOSE

Measure = Literal["rougeL", "psnr"]


@dataclass(frozen=True)
class Scale:
    """One kind of audit. Higher is a leak on every scale."""

    metric: Measure
    label: str
    unit: str
    whole: str  # the metric that counts in percent what came back whole
    noun: str
    came_back: str
    content: str
    far: float  # above guessing by so much, a clear leak is high
    near: float  # the least leak that "not shown" must be able to see

    def said(self, interval: Interval) -> str:
        low, mean, high = (self._figure(value) for value in (interval.low, interval.mean, interval.high))
        return f"{mean} [{low}, {high}]"

    def named(self, interval: Interval) -> str:
        return f"{self.label} {self.said(interval)}"

    def _figure(self, value: float) -> str:
        return f"{value:.0f}" if self.metric == "rougeL" else figure(self.metric, value)


TEXT = Scale("rougeL", "ROUGE-L", "points", "exact_match", "sentence", "whole", "text", far=25.0, near=10.0)
# Three decibels are half the squared error, six a quarter of it.
IMAGES = Scale(
    "psnr", "PSNR", "dB", "close_images", "image", f"to {CLOSE:.0f} dB or better", "images", far=6.0, near=3.0
)
SCALES: dict[Measure, Scale] = {"rougeL": TEXT, "psnr": IMAGES}


def scale_of(task: TargetTask) -> Scale:
    return IMAGES if task == "image-classification" else TEXT
