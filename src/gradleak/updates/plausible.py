"""Whether a client's rule can have made an update: what each rule cannot do, whatever the data are."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.updates.client_rule import HALF, ClientRule, Precision
from gradleak.updates.manifest import Manifest
from gradleak.updates.precision import DTYPES

# The largest relative error of rounding a number.
ROUNDING: dict[Precision, float] = {"fp64": 2.0**-53, "fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}
# How far above a bound is no rounding: optimisers compute in fp32, in another order than we do.
SLACK = 1e-3
# Rows of a token embedding are many; of so many no fewer than half are untouched by any one update.
FEWEST_ROWS, FEWEST_COLUMNS = 64, 8
# What is as near to the weights as this is no gradient and no difference; tensors up to this size are enough to tell.
SAME_AS_WEIGHTS, SMALL = 0.1, 1 << 20
# Of the step size, what Adam moves the middle one of all weights by at least.
ADAMS_LEAST = 0.2


def check_plausible(
    tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor], rule: ClientRule, sentences: int | None = None
) -> None:
    """Refuse an update that this rule cannot have made, saying why.

    `tensors` are the gradient, or weights before minus after, as the client computed it: before defences, and of one
    client. `weights` are those before. Without the number of sentences, rules that count epochs say nothing of the
    number of steps, and only what holds for any number is checked.
    """
    if not rule.local:
        _check_norm(tensors, weights, rule, rule.clip, 0.0)
        return
    if rule.steps is None and sentences is None:
        return
    rates = rule.rates(sentences or rule.batch)
    if rule.name == "fedavg":
        _check_norm(tensors, weights, rule, _longest_way(rule, rates), _rounding(rule, len(rates)))
    if rule.name == "adamw" or (rule.name == "fedavg" and not rule.momentum):
        _check_decay(tensors, weights, rule, rates)
    if rule.adaptive:
        _check_adaptive(tensors, weights, rule, rates)


def check_made(tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor], manifest: Manifest) -> None:
    """The same for an update whose manifest says all: defences, other clients and what is only rough forgive much."""
    _check_not_weights(tensors, weights, manifest.client)
    if not (manifest.defenses or manifest.notes or manifest.clients > 1):
        check_plausible(tensors, weights, manifest.client, manifest.known.size)


def check_steps(rule: ClientRule, epochs: float | None, sentences: int | None) -> None:
    """Refuse more steps than so many passes over so many sentences have."""
    if rule.steps is None or epochs is None or sentences is None:
        return
    most = math.ceil(epochs * math.ceil(math.ceil(sentences / rule.batch) / rule.accumulate))
    if rule.steps > most:
        each = f"{rule.batch * rule.accumulate:,} sentence{'s' if rule.batch * rule.accumulate > 1 else ''}"
        raise GradleakError(
            f"{rule.steps:,} steps of {each} are more than {epochs:g} passes over {sentences:,} have: {most:,}"
        )


def largest_ratio(step: int, betas: tuple[float, float]) -> float:
    """How much of its step size a weight can move in Adam's step of this number, from 1.

    Both means are sums over the gradients so far with weights that fall by beta 1 and beta 2; by Cauchy and Schwarz
    the first is at most a multiple of the second's root, and the gradients that reach it are known.

    >>> largest_ratio(1, (0.9, 0.999)), round(largest_ratio(10, (0.9, 0.999)), 2)
    (1.0, 1.04)
    """
    first, second = betas
    if second == 0:
        return 1.0 if step == 1 or first == 0 else math.inf
    fall = first**2 / second
    total = float(step) if fall == 1 else (1 - fall**step) / (1 - fall)
    raw = (1 - first) / math.sqrt(1 - second) * math.sqrt(total)
    return raw * math.sqrt(1 - second**step) / (1 - first**step)


def precision_of(tensors: Mapping[str, Tensor]) -> Precision:
    """The coarsest precision that holds all these numbers as they are."""
    for name in HALF:
        kind = DTYPES[name]
        if all(bool((tensor.to(kind).float() == tensor.float()).all()) for tensor in tensors.values()):
            return name
    return "fp32"


def _sent_in(weight: Tensor, moved: Tensor) -> Precision:
    """The coarsest precision that the weights after can have been sent in: the difference to them was rounded too."""
    after = weight - moved
    close = 4 * ROUNDING["fp32"] * torch.maximum(weight.abs(), after.abs())
    fits = (kind for kind in HALF if not bool(((after.to(DTYPES[kind]).float() - after).abs() > close).any()))
    return next(fits, "fp32")


def _longest_way(rule: ClientRule, rates: list[float]) -> float | None:
    """How far clipped steps of SGD can lead; None if nothing limits them."""
    if rule.clip is None or rule.wd:
        return None
    pushes = (sum(rule.momentum**back for back in range(min(step, 1000))) for step in range(1, len(rates) + 1))
    return rule.clip * sum(rate * push for rate, push in zip(rates, pushes, strict=True))


def moved_like_adam(moved: Mapping[str, Tensor], rule: ClientRule, sentences: int | None = None) -> bool:
    """Whether what SGD is said to have moved moved as Adam moves it: about everything by about the step size.

    SGD moves a weight by the step size times its gradient, and gradients of most weights are far below 1.
    """
    if rule.name != "fedavg" or rule.lr <= 0:
        return False
    sizes = torch.cat([tensor.detach().float().abs().flatten()[: 1 << 16].cpu() for tensor in moved.values()])
    sizes = sizes[sizes > 0]
    steps = rule.count_steps(sentences or rule.batch)
    return (
        len(sizes) > 0 and ADAMS_LEAST * rule.lr <= float(sizes.median()) <= float(sizes.max()) <= 2 * steps * rule.lr
    )


def _check_not_weights(tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor], rule: ClientRule) -> None:
    """Refuse weights that were taken for a gradient, or for how far weights moved."""
    sizes = {name: weights[name].numel() for name in tensors}
    chosen = [name for name, size in sizes.items() if size <= SMALL] or sorted(sizes, key=sizes.__getitem__)[:1]
    apart = size = 0.0
    for name in chosen:
        weight, tensor = weights[name].detach().float(), tensors[name].detach().float()
        apart += float((tensor.to(weight.device) - weight).square().sum(dtype=torch.float64))
        size += float(weight.square().sum(dtype=torch.float64))
    if not size or apart > SAME_AS_WEIGHTS**2 * size:
        return
    if rule.local:
        raise _cannot(
            rule,
            "it is nearly the model's weights themselves, and it should be the weights before training minus those "
            "after it; did the client send the difference already, or was nothing subtracted?",
        )
    raise _cannot(
        rule,
        "it is nearly the model's weights, not a gradient; of a client that sends weights after training the rule "
        "is one of local steps, such as fedavg or adamw",
    )


def _check_norm(
    tensors: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    rule: ClientRule,
    most: float | None,
    rounding: float,
) -> None:
    if most is None:
        return
    norm, size = (
        math.sqrt(sum(float(table[name].detach().double().square().sum()) for name in tensors))
        for table in (tensors, weights)
    )
    if norm > most * (1 + SLACK) + rounding * size:
        raise _cannot(rule, f"its norm is {norm:.3g}, and clipping leaves at most {most:.3g}; is clip or lr right?")


def _check_adaptive(
    tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor], rule: ClientRule, rates: list[float]
) -> None:
    most = sum(rate * largest_ratio(step, rule.betas) for step, rate in enumerate(rates, 1))
    if not math.isfinite(most):
        return
    for name, moved in tensors.items():
        weight = weights[name].detach().to(moved.device).float()
        shrunk = _decay(rule, rates) if rule.decay == "all" or moved.ndim > 1 else 0.0
        way = (moved.float() - shrunk * weight).abs()
        size = torch.maximum(weight.abs(), (weight - moved).abs())
        if not bool((way > most * (1 + SLACK) + _rounding(rule, len(rates)) * size).any()):
            continue
        coarse = _sent_in(weight, moved)  # numbers that were sent in less precision than was said
        allowed = most * (1 + SLACK) + (_rounding(rule, len(rates)) + 2 * ROUNDING[coarse]) * size
        if bool((way > allowed).any()):
            worst = float((way - _rounding(rule, len(rates)) * size).max())
            raise _cannot(
                rule,
                f"{name} moved by {worst:.3g}, and {len(rates):,} step{'s' if len(rates) > 1 else ''} of it lead "
                f"{most:.3g} far at most; is lr, wd or the number of steps right?",
            )


def _check_decay(
    tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor], rule: ClientRule, rates: list[float]
) -> None:
    """Rows of a token embedding that no token touched move by decay alone, so they show it."""
    expected, steps = _decay(rule, rates), len(rates)
    for name, moved in tensors.items():
        if moved.ndim != 2 or moved.shape[0] < FEWEST_ROWS or moved.shape[1] < FEWEST_COLUMNS:
            continue
        weight = weights[name].detach().to(moved.device).float()
        shown = _shown_decay(moved.float(), weight, _rounding(rule, steps))
        if shown is None:
            continue
        # Rounding may swallow the decay of a step, but not make it another; a quarter is far from what it leaves.
        allowed = 0.25 * max(abs(shown), expected) + steps * ROUNDING[rule.precision] + ROUNDING[rule.wire]
        if abs(shown - expected) <= allowed + ROUNDING[_sent_in(weight, moved)]:
            continue
        way = "grew" if shown < 0 else "decayed" if shown > 0 else "stayed as they were"
        by = f" by {abs(shown):.2g} of themselves" if shown else ""
        total = sum(rates)
        implied = f"; with this lr it was about wd={shown / total:.2g}" if shown >= 0 and total > 0 else ""
        if implied and shown > 0 and expected > 0:
            implied += f", with this wd about lr={rule.lr * shown / expected:.2g}"
        raise _cannot(rule, f"rows of {name} that no token touched {way}{by}; decay takes {expected:.2g}{implied}")


def _shown_decay(moved: Tensor, weight: Tensor, rounding: float) -> float | None:
    """The part of themselves by which most rows moved and nothing else; None where rows moved in other ways."""
    squares = weight.square().sum(dim=1)
    part = (moved * weight).sum(dim=1) / squares.clamp_min(1e-30)
    left = (moved - part[:, None] * weight).square().sum(dim=1).sqrt()
    untouched = (squares > 0) & (left <= rounding * squares.sqrt())
    if int(untouched.sum()) < len(moved) / 2:
        return None
    middle = float(part[untouched].median())
    # Rows of other matrices can all move so little that only rounding is left; those say nothing.
    return middle if float((part[untouched] - middle).abs().median()) <= 0.25 * abs(middle) + 1e-12 else None


def _decay(rule: ClientRule, rates: list[float]) -> float:
    """The part of itself that a weight loses over all steps by decay alone; Adam's goes through its means."""
    if rule.name == "adam":
        return 0.0
    return 1 - math.prod(1 - rate * rule.wd for rate in rates)


def _rounding(rule: ClientRule, steps: int) -> float:
    """How far rounding can move a weight, as a part of it: once a step, and once when it is sent."""
    return 2 * (steps * ROUNDING[rule.precision] + ROUNDING[rule.wire] + ROUNDING["fp32"])


def _cannot(rule: ClientRule, why: str) -> GradleakError:
    return GradleakError(f"the rule {rule} cannot have made this update: {why}")
