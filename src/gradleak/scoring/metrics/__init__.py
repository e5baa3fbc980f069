"""All metrics by name. A package adds its own under the entry point "gradleak.metrics"; see `Metric`.

What a results file names and nobody here knows is shown by its name; nothing is imported for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.core.registry import Registry
from gradleak.models.tasks import Modality
from gradleak.scoring.interval import Interval, format_interval
from gradleak.scoring.metric import Metric

_HERE = "gradleak.scoring.metrics"
# In the order of all tables.
_BUILT_IN: dict[str, Metric | str] = {
    "rouge1": f"{_HERE}.rouge:ROUGE1",
    "rouge2": f"{_HERE}.rouge:ROUGE2",
    "rougeL": f"{_HERE}.rouge:ROUGE_L",
    "token_accuracy": f"{_HERE}.tokens:TOKEN_ACCURACY",
    "exact_match": f"{_HERE}.tokens:EXACT_MATCH",
    "best_rougeL": f"{_HERE}.batch:BEST_ROUGE_L",
    "sentence_recall": f"{_HERE}.batch:SENTENCE_RECALL",
    "sentence_precision": f"{_HERE}.batch:SENTENCE_PRECISION",
    "nerr": f"{_HERE}.nerr:NERR",
    "mse": f"{_HERE}.pixels:MSE",
    "psnr": f"{_HERE}.pixels:PSNR",
    "ssim": f"{_HERE}.pixels:SSIM",
    "lpips": f"{_HERE}.lpips:LPIPS",
    "close_images": f"{_HERE}.pixels:CLOSE_IMAGES",
}
METRICS: Registry[Metric] = Registry("metric", _BUILT_IN, base=Metric, group="gradleak.metrics", instances=True)
# Asked for by the user's own object or path in this process, and so known by name from then on.
_own: dict[str, Metric] = {}


def choose_metrics(modality: Modality, asked: Sequence[str | Metric] = ()) -> list[Metric]:
    """Every metric of a modality that is not optional, and those that were asked for, in the order of tables."""
    wanted = {metric.name: metric for metric in known_metrics(modality) if not metric.optional}
    for each in asked:
        metric = METRICS.get(each) if isinstance(each, str) else each
        if metric.modality != modality:
            raise GradleakError(f"the metric {metric.name!r} compares {metric.modality}, not {modality}")
        if find_metric(metric.name) not in (None, metric):
            raise GradleakError(f"there is another metric of the name {metric.name!r}")
        if metric.name not in METRICS:
            _own[metric.name] = metric
        wanted[metric.name] = metric
    return [wanted[name] for name in in_order(wanted)]


def prepare_metrics(modality: Modality, asked: Sequence[str | Metric], progress: Progress = SILENT) -> None:
    """Load what the metrics need, so that what is missing is said now and not after hours of work."""
    for metric in choose_metrics(modality, asked):
        if metric.prepare is not None:
            metric.prepare(progress)


def known_metrics(modality: Modality | None = None) -> list[Metric]:
    """All metrics that are registered, or those of a modality, in the order of tables."""
    # What a broken package would add is an error only for whoever asks for it.
    every = {name: metric for name, metric in METRICS.entries() if isinstance(metric, Metric)}
    return [every[name] for name in in_order(every) if modality in (None, every[name].modality)]


def metric_names(modality: Modality | None = None) -> list[str]:
    """The names of all metrics, or of those of a modality, in the order of tables."""
    return [metric.name for metric in known_metrics(modality)]


def find_metric(name: str) -> Metric | None:
    """The metric of that name, if it is known here."""
    return METRICS.get(name) if name in METRICS else _own.get(name)


def label_of(name: str) -> str:
    """
    >>> label_of("rougeL"), label_of("mine")
    ('ROUGE-L', 'mine')
    """
    metric = find_metric(name)
    return name if metric is None else metric.label


def labels_of(names: Iterable[str]) -> dict[str, str]:
    """Names with their labels, in the order of tables.

    >>> labels_of({"nerr": 40.0, "rougeL": 75.0})
    {'rougeL': 'ROUGE-L', 'nerr': 'Entities (NERR)'}
    """
    return {name: label_of(name) for name in in_order(names)}


def counts_of(name: str) -> str:
    """What a metric counts; nothing if it is not known here."""
    metric = find_metric(name)
    return "" if metric is None else metric.counts


def range_of(name: str) -> tuple[float, float]:
    """The least and the most that a metric can be; 0 to 100 if it is not known here."""
    metric = find_metric(name)
    return (0.0, 100.0) if metric is None else (metric.low, metric.high)


def figure(name: str, value: float) -> str:
    """A score with the digits that tell something.

    >>> figure("rougeL", 75.04), figure("mse", 0.01234)
    ('75.0', '0.0123')
    """
    metric = find_metric(name)
    return f"{value:.1f}" if metric is None else metric.figure(value)


def format_score(name: str, interval: Interval) -> str:
    """A score's mean and interval.

    >>> format_score("rougeL", Interval(mean=43.21, low=30.2, high=55.7))
    '43.2 [30, 56]'
    """
    metric = find_metric(name)
    return format_interval(interval, 1, 0) if metric is None else metric.format(interval)


def in_order(names: Iterable[str]) -> list[str]:
    """The built-in ones in the order of tables, then the others as they come."""
    given = list(names)
    return [*(name for name in _BUILT_IN if name in given), *(name for name in given if name not in _BUILT_IN)]
