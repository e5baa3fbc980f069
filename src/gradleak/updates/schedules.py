"""Step sizes that were seen, as a rule says them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradleak.updates.client_rule import ClientRule


def schedule_of(rates: Sequence[float], peak: float, warmup: int) -> tuple[dict[str, Any], list[str]]:
    """The settings of a rule whose steps have these sizes; where none has, their mean, and what to note of it.

    `peak` is the step size that the schedule falls from, and `warmup` its steps, if it has some.

    >>> schedule_of([0.4, 0.3, 0.2, 0.1], 0.4, 0)
    ({'lr': 0.4, 'schedule': 'linear', 'warmup': 0}, [])
    >>> schedule_of([0.4, 0.3], 0.4, 0)
    ({'lr': 0.35, 'schedule': 'constant', 'warmup': 0}, ['the step size went from 0.4 to 0.3; their mean is taken'])
    """
    for lr in dict.fromkeys((peak, max(rates))):
        for kind in ("constant", "linear", "cosine"):
            for steps in dict.fromkeys((0, min(warmup, len(rates)))):
                if lr <= 0:
                    continue
                settings = {"lr": lr, "schedule": kind, "warmup": steps}
                rule = ClientRule.model_validate({"name": "fedavg", "steps": len(rates), **settings})
                if all(abs(a - b) <= 1e-3 * lr for a, b in zip(rule.rates(1), rates, strict=True)):
                    return settings, []
    mean = sum(rates) / len(rates)
    note = f"the step size went from {rates[0]:g} to {rates[-1]:g}; their mean is taken"
    return {"lr": mean, "schedule": "constant", "warmup": 0}, [note]
