"""Which parameters of an update take part in the match, and how much each counts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.matching.distances import Distance
from gradleak.models.text import TextModel, refuse_pairs
from gradleak.updates.update import Update

# A tensor this far below the typical one holds only rounding, and a cosine would blow that up to full size.
NOTHING = 1e-5
# Of updates whose largest value has a binary exponent beyond this, sums of squares may leave single precision.
USUAL_EXPONENT = 40


def matched_parameters(
    model: TextModel,
    targets: Sequence[Mapping[str, Tensor]],
    only: Collection[str] | None = None,
) -> list[str]:
    """Names of the tensors that can be matched in some of the updates that are attacked together."""
    matched = {name for names in matched_in_each(model, targets, only) for name in names}
    if not matched:
        raise GradleakError("the update holds nothing to match beside the token embedding")
    return [name for name in model.parameters() if name in matched]


def matched_in_each(
    model: TextModel,
    targets: Sequence[Mapping[str, Tensor]],
    only: Collection[str] | None = None,
) -> list[list[str]]:
    """For every update the names of its tensors that can be matched; those with the same tensors are judged together.

    Left out: the token embedding (a dummy of embeddings has no gradient there, nor in an output layer that shares
    it), key biases (softmax ignores a common shift, so their gradient is zero but for rounding, even where a defence
    has put noise on it; not so where positions turn the keys), tensors that hold only rounding in all updates with
    the same tensors, and, if `only` is given, everything else.
    """
    kinds: dict[frozenset[str], list[Mapping[str, Tensor]]] = {}
    for target in targets:
        kinds.setdefault(frozenset(target), []).append(target)
    matched = {kind: _matched(model, alike, only) for kind, alike in kinds.items()}
    return [matched[frozenset(target)] for target in targets]


def _matched(model: TextModel, targets: Sequence[Mapping[str, Tensor]], only: Collection[str] | None) -> list[str]:
    """The same of updates that all hold the same tensors."""
    keys = [layer["key"] for layer in model.adapter.parts]
    unusable = {f"{key.name}.bias" for key in keys if key.block.whole and not model.adapter.family.rotary}
    unusable.add(model.adapter.parameter_of(model.adapter.token_embedding))
    shared = [n for n in model.parameters() if n not in unusable and n in targets[0]]
    wanted = [name for name in shared if only is None or name in only]
    if not wanted and only is None:
        raise GradleakError("the update holds nothing to match beside the token embedding")
    if not wanted:  # another engine may match what this one leaves
        return []
    sizes = {name: max(typical_entry(t[name]) for t in targets) for name in shared}
    typical = sorted(sizes.values())[len(sizes) // 2]
    kept = [name for name in wanted if sizes[name] > NOTHING * typical]
    if not kept:
        raise GradleakError("every tensor of the update is zero, so there is nothing to match")
    return kept


def typical_entry(tensor: Tensor) -> float:
    """The root of the mean square; in float64, as squares of very small or large numbers leave single precision."""
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) / max(1, tensor.numel()) ** 0.5


def comparable(targets: Sequence[Mapping[str, Tensor]], distance: Distance) -> list[Mapping[str, Tensor]]:
    """The same updates at a size whose squares single precision holds, if the distance does not depend on it."""
    return [_comparable(target, distance) for target in targets]


def _comparable(target: Mapping[str, Tensor], distance: Distance) -> Mapping[str, Tensor]:
    largest = max((_largest(tensor) for tensor in target.values() if tensor.numel()), default=0.0)
    exponent = math.frexp(largest)[1]
    if not largest or abs(exponent) <= USUAL_EXPONENT:
        return target
    if distance.averages:  # a power of two changes no digit
        return {name: torch.ldexp(tensor, torch.tensor(-exponent)) for name, tensor in target.items()}
    if largest**2 * sum(tensor.numel() for tensor in target.values()) > torch.finfo(torch.float32).max:
        raise GradleakError(
            f"the update holds values up to {largest:.1e}, too large for {distance.name}, which compares sizes; "
            "cosine does not (-o distance=cosine)"
        )
    return target


def _largest(tensor: Tensor) -> float:
    """The largest entry's size, without a copy of all."""
    low, high = tensor.aminmax()
    return max(-float(low), float(high))


def unmatchable(update: Update, model: TextModel) -> str | None:
    """Why nothing of an update can be matched; None if something can."""
    try:
        refuse_pairs(model, "matching")
        matched_parameters(model, [update.tensors])
    except GradleakError as error:
        return str(error)
    return None


def weights_of(
    names: Sequence[str], weights: Sequence[Mapping[str, float]] | None, matched: Sequence[Collection[str]]
) -> Tensor:
    """How much each parameter counts in each update, (parameters, updates): one by default, nothing if unmatched."""
    given: Sequence[Mapping[str, float]] = weights or [{}] * len(matched)
    sets = [set(names) for names in matched]
    rows = [
        [float(weight.get(name, 1.0)) if name in kept else 0.0 for weight, kept in zip(given, sets, strict=True)]
        for name in names
    ]
    return torch.tensor(rows).view(len(names), len(matched))


def filled(
    tensors: Sequence[Mapping[str, Tensor]], names: Collection[str], model: TextModel
) -> list[Mapping[str, Tensor]]:
    """The tensors with zeros, which take no memory, for those of these parameters that an update lacks."""
    parameters = model.parameters()

    def zeros(name: str) -> Tensor:
        return torch.zeros((), dtype=model.dtype).expand(parameters[name].shape)

    return [{**update, **{name: zeros(name) for name in names if name not in update}} for update in tensors]
