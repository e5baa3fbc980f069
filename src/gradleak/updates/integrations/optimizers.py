"""The client rule of an optimiser object, as far as a rule can say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradleak.updates.precision import DTYPES
from gradleak.updates.rule_options import optimizer_note

NAMES = {"SGD": "fedavg", "Adam": "adam", "AdamW": "adamw"}
# Options of torch's optimisers that make them other ones.
VARIANTS = ("amsgrad", "maximize", "nesterov", "dampening")
USED = "the optimiser had taken steps before, whose means are not known"


def rule_of_optimizer(
    optimizer: Any, parameters: Mapping[str, Tensor], *, first: bool = True
) -> tuple[dict[str, Any], list[str]]:
    """The settings of a rule but for its step sizes and batches, and what they say only roughly.

    `parameters` are those that are trained, by name; `first`: the optimiser has taken no step yet.

    >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
    >>> rule_of_optimizer(torch.optim.AdamW([weight]), {"weight": weight})
    ({'name': 'adamw', 'wd': 0.01, 'betas': (0.9, 0.999), 'eps': 1e-08}, [])
    """
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    groups = inner.param_groups
    name = NAMES.get(type(inner).__name__)
    variants = [each for each in VARIANTS if any(group.get(each) for group in groups)]
    if name is None or variants:
        return {"name": "fedavg"}, optimizer_note(" and ".join([type(inner).__name__, *variants]))
    kind, notes = next((kind for kind, dtype in DTYPES.items() if _all_of(dtype, parameters)), "fp32"), []
    settings: dict[str, Any] = {"name": name, **({"precision": kind} if kind != "fp32" else {})}
    wd = max(float(group.get("weight_decay", 0)) for group in groups)
    settings["wd"] = wd
    if wd:
        decay = _what_decays(groups, parameters)
        settings |= {"decay": "matrices"} if decay == "matrices" else {}
        notes += [] if decay else ["some weights decayed and others did not; all are taken to have decayed"]
    if len({float(group["lr"]) for group in groups}) > 1:
        notes.append("weights had different step sizes; the first group's is taken")
    if name == "fedavg":
        momentum = float(groups[0].get("momentum", 0))
        settings |= {"momentum": momentum} if momentum else {}
    else:
        settings |= {"betas": tuple(map(float, groups[0]["betas"])), "eps": float(groups[0]["eps"])}
    if not first and (name != "fedavg" or settings.get("momentum")):
        notes.append(USED)
    return settings, notes


def _what_decays(groups: list[dict[str, Any]], parameters: Mapping[str, Tensor]) -> str | None:
    """`all` or `matrices`, as a rule has it; None if it is neither."""
    decaying = {id(p) for group in groups if group.get("weight_decay") for p in group["params"]}
    if len({float(group["weight_decay"]) for group in groups if group.get("weight_decay")}) > 1:
        return None
    if all(id(p) in decaying for p in parameters.values()):
        return "all"
    return "matrices" if all((id(p) in decaying) == (p.ndim > 1) for p in parameters.values()) else None


def _all_of(dtype: torch.dtype, parameters: Mapping[str, Tensor]) -> bool:
    return all(parameter.dtype == dtype for parameter in parameters.values())
