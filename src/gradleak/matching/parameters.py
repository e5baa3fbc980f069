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
    """Names of the tensors that can be matched, the same for all updates that are attacked together.

    Left out: the word table unless `words` is set (a dummy of embeddings has no gradient there, nor in an
    output layer that shares it; one of tokens has), key biases (softmax ignores a common shift, so their
    gradient is zero but for rounding, even where a defence has put noise on it), what some update lacks, tensors
    that hold only rounding in all updates, and, if `only` is given, everything else.
    """
    keys = [layer["key"] for layer in model.adapter.parts]
    unusable = {f"{key.name}.bias" for key in keys if key.share == (0, 1)}
    if not words:
        unusable.add(model.adapter.parameter_of(model.adapter.words))
    shared = [n for n in model.parameters() if n not in unusable and all(n in t for t in targets)]
    wanted = [name for name in shared if only is None or name in only]
    if not wanted:
        raise GradleakError("the update holds nothing to match beside the word embeddings")
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


def weights_of(names: Sequence[str], weights: Sequence[Mapping[str, float]] | None, updates: int) -> Tensor:
    """How much each parameter counts in each update, (parameters, updates); one by default."""
    if weights is None:
        return torch.ones(len(names), updates)
    return torch.tensor([[float(own.get(name, 1.0)) for own in weights] for name in names]).view(len(names), updates)
