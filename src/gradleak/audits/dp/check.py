"""`gradleak dp-check`: is the noise of a client what it is said to be?

The strongest attacker that differential privacy is about knows everything but one example, and of that one all that
it can be. So the check makes many updates of one batch in which a single place changes between a few candidates, and
counts how often the update tells which it was. More often than the promise allows means that the implementation is
wrong, whatever the reason. Which mistake it is often shows in the noise itself.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gradleak.audits.dp.bounds import SURE, least_loss
from gradleak.audits.dp.result import DpCheck
from gradleak.audits.dp.telling import Telling
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress

Tensors = Mapping[str, Tensor]

CANDIDATES, UPDATES = 2, 400
# A bound is two at once, by counting and by distance, so each is surer than SURE: so many standard errors.
SURE_BY = 2.6
# With fewer updates than this of either half nothing can be learnt.
LEAST_UPDATES = 16
# Tensors of so many entries have their noise compared with what was promised; below this part of it, it is too small.
ENOUGH_ENTRIES, TOO_SMALL = 256, 0.8


def check_updates(
    send: Callable[[int], Tensors],
    gradients: Sequence[Tensors],
    promised: float,
    *,
    updates: int = UPDATES,
    noise: float | None = None,
    clip: float | None = None,
    inside: Sequence[int] | None = None,
    seed: int = 0,
    budget: Budget | str | float | None = None,
    progress: Progress = SILENT,
    model: str = "",
    defenses: Sequence[str] = (),
) -> DpCheck:
    """Whether updates tell candidates apart better than promised.

    Args:
        send: Makes the update of the batch with the candidate of this number in it, with fresh noise each time.
        gradients: Every candidate's own gradient, by the names of the update's tensors; only its direction counts.
        promised: √(noisy steps that an example is in) / noise multiplier.
        updates: How many to make.
        noise: The standard deviation that noise should have on every entry of an update; None if not known.
        clip: The norm that examples are clipped to, to say whether candidates reach it; None if not known.
        inside: Which candidate is in which update, where that was not drawn here.
        seed: Fixes which candidate is in which update.
        budget: A time limit; what was made by then is judged.
        progress: Who watches.
        model: Its name, for the record.
        defenses: Likewise.
    """
    if len(gradients) < 2:
        raise GradleakError("two candidates are the least that can be told apart")
    if not promised > 0:
        raise GradleakError("there is no promise to check: without noise differential privacy holds for nothing")
    started, limit, rng = time.monotonic(), Budget.of(budget), random.Random(seed)
    telling = Telling([to_norm(own, clip) for own in gradients])
    progress.begin("making updates", updates, "updates")
    for number in range(updates):
        if limit.tick():
            break
        drawn = rng.randrange(len(gradients)) if inside is None else inside[number]
        telling.add(send(drawn), drawn)
        progress.advance(number + 1)
    progress.end()
    if telling.updates < 2 * LEAST_UPDATES:
        raise GradleakError(f"{telling.updates} updates tell nothing; at least {2 * LEAST_UPDATES} are needed")
    right = telling.right()
    counted = least_loss(right, telling.updates, len(gradients))
    estimate = telling.loss()
    least = counted if estimate is None else max(counted, estimate[0] - SURE_BY * estimate[1])
    findings = [_better_than_promised(least, promised)] if least > promised else []
    smallest, of_noise = _noise_findings(telling, noise)
    return DpCheck(
        kind="updates",
        model=model,
        defenses=list(defenses),
        candidates=len(gradients),
        tries=telling.updates,
        right=right,
        promised=promised,
        least=least,
        sure=SURE,
        noise=smallest,
        findings=[*findings, *of_noise],
        estimate=None if estimate is None else estimate[0],
        notes=_notes(gradients, clip),
        seconds=time.monotonic() - started,
        status="completed" if telling.updates == updates else limit.reason,
    )


def _better_than_promised(least: float, promised: float) -> str:
    return (
        f"One example moves the updates by {least:.2f} deviations of the noise or more, {least / promised:.1f} times "
        "what was promised: examples are not clipped each, or the noise is too small."
    )


def _noise_findings(telling: Telling, promised: float | None) -> tuple[float | None, list[str]]:
    """The smallest noise of a tensor beside what was promised, and what is wrong with it."""
    findings = [
        f"{one} and {other} get the same noise: their random numbers come from one seed."
        for one, other in telling.repeated()[:1]
    ]
    if not promised:
        return None, findings
    sizes = dict(zip(telling.names, telling.sizes.tolist(), strict=True))
    ratios = {
        name: deviation / promised for name, deviation in telling.noise().items() if sizes[name] >= ENOUGH_ENTRIES
    }
    if not ratios:
        return None, findings
    name = min(ratios, key=ratios.__getitem__)
    if ratios[name] < TOO_SMALL:
        small = sum(ratio < TOO_SMALL for ratio in ratios.values())
        where = "every tensor" if small == len(ratios) else f"{small} of {len(ratios)} tensors, such as {name},"
        why = "; it may be drawn from the same seed each time" if ratios[name] < 0.1 else ""
        findings.append(f"Noise on {where} differs between updates by {ratios[name]:.2g} of what was promised{why}.")
    return ratios[name], findings


def _notes(gradients: Sequence[Tensors], clip: float | None) -> list[str]:
    if clip is None:
        return []
    norms = [float(torch.stack([t.double().square().sum() for t in own.values()]).sum().sqrt()) for own in gradients]
    reach = sum(norm > 1.05 * clip for norm in norms)
    if reach == len(norms):
        return []
    return [
        f"{len(norms) - reach} of {len(norms)} candidates have gradients within the clipping norm of {clip:g}, so "
        "that clipping does nothing to them; check with a smaller one too."
    ]


def to_norm(gradient: Tensors, clip: float | None) -> Tensors:
    """A gradient clipped as it should be; without a norm, of norm one."""
    norm = float(torch.stack([t.double().square().sum() for t in gradient.values()]).sum().sqrt())
    factor = min(1.0, clip / max(norm, 1e-300)) if clip is not None else 1 / max(norm, 1e-300)
    return {name: tensor.double() * factor for name, tensor in gradient.items()}
