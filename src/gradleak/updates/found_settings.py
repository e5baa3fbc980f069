"""How a training went, as the files beside its weights say: Hugging Face's Trainer's, and a Flower project's."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradleak.core.errors import GradleakError
from gradleak.core.foreign import read_fields
from gradleak.core.reading import read_json_table, read_text

ARGUMENTS, STATE, PROJECT = "training_args.bin", "trainer_state.json", "pyproject.toml"
MAX_STATE, MAX_PROJECT = 64 << 20, 1 << 20
# A Flower app keeps its results some folders below its settings.
FOLDERS_UP = 3
# What Trainer takes where nothing is said.
TRAINER: dict[str, Any] = {"optimizer": "adamw", "wd": 0.0, "decay": "matrices", "clip": 1.0, "schedule": "linear"}
# Names of optimisers that are torch's AdamW, whoever computes it.
ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_hf", "adamw_apex_fused", "paged_adamw_32bit",
         "paged_adamw")  # fmt: skip
SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}
# Keys of a Flower app's settings, by how they end; the first that is there counts.
KEYS = {
    "learning-rate-max": "lr", "learning-rate": "lr", "lr": "lr", "max-steps": "steps", "local-steps": "steps",
    "local-epochs": "epochs", "num-train-epochs": "epochs", "per-device-train-batch-size": "batch",
    "train-batch-size": "batch", "batch-size": "batch", "gradient-accumulation-steps": "accumulate",
    "weight-decay": "wd", "max-grad-norm": "clip", "warmup-steps": "warmup",
}  # fmt: skip
WHOLE = ("steps", "epochs", "batch", "accumulate", "warmup", "total")


@dataclass(frozen=True)
class FoundSettings:
    """Settings of a client rule by name; and `optimizer`, `passes`, and `total`, the steps that the schedule has."""

    file: Path
    settings: Mapping[str, Any]
    trainer: bool
    notes: tuple[str, ...] = field(default=())


def settings_beside(folder: Path) -> list[FoundSettings]:
    """What the files in a folder of weights say, the most reliable first; one that cannot be read is noted."""
    above = [place / PROJECT for place in (folder.resolve(), *folder.resolve().parents[:FOLDERS_UP])]
    readers: list[tuple[Path, Callable[[Path], FoundSettings | None]]] = [
        (folder / STATE, _trainer_state),
        (folder / ARGUMENTS, _trainer_arguments),
        *((place, _flower_project) for place in above),
    ]
    found = []
    for file, read in readers:
        try:
            each = read(file) if file.is_file() else None
        except GradleakError:
            each = FoundSettings(
                file, {}, False, (f"{file.name} beside the weights cannot be read, and is not used",)
            )
        if each is not None:
            found.append(each)
    return found


def _trainer_arguments(file: Path) -> FoundSettings:
    """Trainer's settings, a pickle: only its plain values are read."""
    held = read_fields(file)
    devices = max(1, int(_number(held.get("_n_gpu")) or 1))
    size = _number(held.get("per_device_train_batch_size"))
    steps, epochs = _number(held.get("max_steps")), _number(held.get("num_train_epochs"))
    warmup, ratio = (_number(held.get(name)) or 0.0 for name in ("warmup_steps", "warmup_ratio"))
    settings: dict[str, Any] = {
        "lr": _number(held.get("learning_rate")),
        "batch": size and size * devices,
        "accumulate": _number(held.get("gradient_accumulation_steps")),
        "steps": steps,
        "epochs": epochs if not steps else None,
        "wd": _number(held.get("weight_decay"), zero=True),
        "clip": _number(held.get("max_grad_norm")),
        "eps": _number(held.get("adam_epsilon")),
        "warmup": warmup if warmup >= 1 else None,
    }
    beta = tuple(_number(held.get(name), zero=True) for name in ("adam_beta1", "adam_beta2"))
    if None not in beta:
        settings["betas"] = beta
    if held.get("max_grad_norm") == 0:
        settings["clip"] = 0.0
    notes = [f"computed in mixed precision ({name})" for name in ("bf16", "fp16") if held.get(name) is True]
    if smoothing := _number(held.get("label_smoothing_factor")):
        notes.append(f"labels were smoothed by {smoothing:g}, which the attack does not know")
    if 0 < (ratio or warmup) < 1:
        notes.append("the step size rose at first, which the rule leaves out")
    more, remarks = _named(held.get("optim"), held.get("lr_scheduler_type"))
    return FoundSettings(file, _clean(settings) | more, True, (*notes, *remarks))


def _trainer_state(file: Path) -> FoundSettings:
    """Where a Trainer run stood when it was saved."""
    held = read_json_table(file, MAX_STATE)
    settings = {
        "steps": _number(held.get("global_step")),
        "total": _number(held.get("max_steps")),
        "batch": _number(held.get("train_batch_size")),
    }
    history = held.get("log_history")
    rows = [row for row in history if isinstance(row, dict)] if isinstance(history, list) else []
    rates = [rate for row in rows if (rate := _number(row.get("learning_rate"), zero=True)) is not None]
    constant: dict[str, Any] = {}
    if len(rates) > 1 and min(rates) == max(rates) > 0:  # falling ones were logged after some steps, or before them
        constant = {"lr": rates[0], "schedule": "constant"}
    passed = _number(held.get("epoch"))
    return FoundSettings(file, _clean(settings) | constant | ({"passes": passed} if passed else {}), True)


def _flower_project(file: Path) -> FoundSettings | None:
    """The settings of a Flower app; None if the project is not one."""
    try:
        parsed = tomllib.loads(read_text(file, MAX_PROJECT))
    except (ValueError, RecursionError) as error:
        raise GradleakError(f"cannot read {file}: it is not TOML") from error
    table: Any = parsed
    for key in ("tool", "flwr", "app", "config"):
        table = table.get(key) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        return None
    flat = {key: value for key, value in _flat(table) if not any(part in key for part in ("eval", "server", "test"))}
    settings: dict[str, Any] = {}
    for ending, name in KEYS.items():
        values = [value for key, value in flat.items() if key.rpartition(".")[2] == ending]
        value = next((_number(each, zero=name == "wd") for each in values), None)
        if value is not None:
            settings.setdefault(name, value)
    if "steps" in settings:
        settings.pop("epochs", None)
    last = {key.rpartition(".")[2]: value for key, value in flat.items()}
    more, notes = _named(last.get("optim", last.get("optimizer")), last.get("lr-scheduler-type"))
    if any(key.rpartition(".")[2] == "learning-rate-max" for key in flat):
        notes = (*notes, "the step size is that of the first round; later rounds have a smaller one")
    trainer = any("training-arguments" in key for key in flat)
    return FoundSettings(file, _clean(settings) | more, trainer, notes) if settings or more else None


def _named(optimizer: Any, schedule: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The optimiser and the schedule by our names, and what is to be noted of one that we do not have."""
    settings: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    if isinstance(optimizer, str) and optimizer.replace("_", "").replace("-", "").isalnum():
        name = optimizer.lower()
        settings["optimizer"] = "adamw" if name in ADAMW else name
    if isinstance(schedule, str) and schedule in SCHEDULES:
        settings["schedule"] = SCHEDULES[schedule]
    elif isinstance(schedule, str) and schedule.isprintable() and schedule:
        settings["schedule"] = "constant"
        notes = (f"the step size followed the schedule {schedule[:40]!r}; it is taken as constant",)
    return settings, notes


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """
    >>> list(_flat({"train": {"learning_rate": 0.1}, "batch-size": 8}))
    [('train.learning-rate', 0.1), ('batch-size', 8)]
    """
    for key, value in table.items():
        name = f"{before}{key.replace('_', '-')}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _number(value: Any, *, zero: bool = False) -> float | None:
    """A number above 0, or from 0 on; None for anything else that a file may hold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if value > 0 or (zero and value == 0) else None


def _clean(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were there; counts as whole numbers, and no more epochs than whole ones."""
    known = {name: value for name, value in settings.items() if value is not None}
    return {
        name: int(value) if name in WHOLE else value
        for name, value in known.items()
        if name not in WHOLE or value == int(value)
    }
