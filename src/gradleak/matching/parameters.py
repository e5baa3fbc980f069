"""Which parameters of an update take part in the match, and how much each counts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.models.target import TargetModel
from gradleak.update import Update

# A tensor this far below the typical one holds only rounding, and a cosine would blow that up to full size.
NOTHING = 1e-5


def matched_parameters(
    model: TargetModel,
    targets: Sequence[Mapping[str, Tensor]],
    only: Collection[str] | None = None,
    *,
    words: bool = False,
) -> list[str]:
    """Names of the tensors that can be matched in some of the updates that are attacked together."""
    found = {name for names in matched_in_each(model, targets, only, words=words) for name in names}
    if not found:
        raise GradleakError("the update holds nothing to match beside the word embeddings")
    return [name for name in model.parameters() if name in found]


def matched_in_each(
    model: TargetModel,
    targets: Sequence[Mapping[str, Tensor]],
    only: Collection[str] | None = None,
    *,
    words: bool = False,
) -> list[list[str]]:
    """For every update the names of its tensors that can be matched; those with the same tensors are judged together.

    Left out: the word table unless `words` is set (a dummy of embeddings has no gradient there, nor in an
    output layer that shares it; one of tokens has), key biases (softmax ignores a common shift, so their
    gradient is zero but for rounding, even where a defence has put noise on it), tensors that hold only rounding in
    all updates with the same tensors, and, if `only` is given, everything else.
    """
    kinds: dict[frozenset[str], list[Mapping[str, Tensor]]] = {}
    for target in targets:
        kinds.setdefault(frozenset(target), []).append(target)
    found = {kind: _matched(model, alike, only, words) for kind, alike in kinds.items()}
    return [found[frozenset(target)] for target in targets]


def _matched(
    model: TargetModel, targets: Sequence[Mapping[str, Tensor]], only: Collection[str] | None, words: bool
) -> list[str]:
    """The same of updates that all hold the same tensors."""
    keys = [layer["key"] for layer in model.adapter.parts]
    unusable = {f"{key.name}.bias" for key in keys if key.share == (0, 1)}
    if not words:
        unusable.add(model.adapter.parameter_of(model.adapter.words))
    shared = [n for n in model.parameters() if n not in unusable and n in targets[0]]
    wanted = [name for name in shared if only is None or name in only]
    if not wanted and only is None:
        raise GradleakError("the update holds nothing to match beside the word embeddings")
    if not wanted:  # another engine may match what this one leaves
        return []
    sizes = {name: max(float(t[name].square().mean().sqrt()) for t in targets) for name in shared}
    typical = sorted(sizes.values())[len(sizes) // 2]
    kept = [name for name in wanted if sizes[name] > NOTHING * typical]
    if not kept:
        raise GradleakError("every tensor of the update is zero, so there is nothing to match")
    return kept


def unmatchable(update: Update, model: TargetModel) -> str | None:
    """Why nothing of an update can be matched; None if something can."""
    try:
        matched_parameters(model, [update.tensors])
    except GradleakError as error:
        return str(error)
    return None


def weights_of(
    names: Sequence[str], weights: Sequence[Mapping[str, float]] | None, matched: Sequence[Collection[str]]
) -> Tensor:
    """How much each parameter counts in each update, (parameters, updates): one by default, nothing if unmatched."""
    given: Sequence[Mapping[str, float]] = weights or [{}] * len(matched)
    sets = [set(own) for own in matched]
    rows = [
        [float(own.get(name, 1.0)) if name in kept else 0.0 for own, kept in zip(given, sets, strict=True)]
        for name in names
    ]
    return torch.tensor(rows).view(len(names), len(matched))


def filled(
    tensors: Sequence[Mapping[str, Tensor]], names: Collection[str], model: TargetModel
) -> list[Mapping[str, Tensor]]:
    """The tensors with zeros, which take no memory, for those of these parameters that an update lacks."""
    parameters = model.parameters()

    def zeros(name: str) -> Tensor:
        return torch.zeros((), dtype=model.word_table.dtype).expand(parameters[name].shape)

    return [{**own, **{name: zeros(name) for name in names if name not in own}} for own in tensors]
