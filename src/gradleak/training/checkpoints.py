"""Where the checkpoints of a training lie: `checkpoint-500` inside the finished model's folder.

Hugging Face's trainer does it so too, so trainings of either kind can be audited.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from gradleak.core.errors import GradleakError
from gradleak.core.reading import read_text

METRICS_FILE = "metrics.json"
_NAME = re.compile(r"checkpoint-(\d+)")


def kept_steps(steps: int, count: int) -> list[int]:
    """The steps before the last one at which a model is kept: evenly spaced, the start among them.

    >>> kept_steps(100, 4), kept_steps(2, 4)
    ([0, 25, 50, 75], [0, 1])
    """
    return sorted({i * steps // count for i in range(count)})


def checkpoint_folder(training: Path, step: int) -> Path:
    return training / f"checkpoint-{step}"


def kept_checkpoints(training: Path) -> dict[int, Path]:
    """The checkpoints in a folder by their step, without the finished model."""
    named = {path: _NAME.fullmatch(path.name) for path in training.iterdir() if path.is_dir()}
    return dict(sorted((int(match[1]), path) for path, match in named.items() if match))


def all_models(training: Path) -> dict[int, Path]:
    """Every model of a training by its step, the finished one last if its metrics give its steps."""
    if not training.is_dir():
        raise GradleakError(f"no folder at {training}; give the one that `gradleak finetune --checkpoints` wrote")
    models = kept_checkpoints(training)
    last = read_metrics(training).get("step")
    if isinstance(last, int) and (training / "config.json").is_file():
        models[last] = training
    if len(models) < 2:
        raise GradleakError(
            f"{training} holds {len(models)} models of a training, fewer than two; "
            "train with `gradleak finetune --checkpoints 4`"
        )
    return models


def read_metrics(model: Path) -> dict[str, Any]:
    """What fine-tuning wrote beside a model; nothing if it did not write it."""
    try:
        metrics = json.loads(read_text(model / METRICS_FILE))
    except (GradleakError, ValueError, RecursionError):
        return {}
    return metrics if isinstance(metrics, dict) else {}
