"""Which parameters of an update take part in the match, and how much each counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from torch import Tensor

from gradleak.errors import GradleakError
from gradleak.models.target import TargetModel

# Some gradients are zero by construction and hold only rounding (key biases: softmax ignores a common shift).
# A tensor this far below the typical one carries nothing, and a cosine would blow its rounding up to full size.
NOTHING = 1e-5


def matched_parameters(
    model: TargetModel, targets: Sequence[Mapping[str, Tensor]], only: Collection[str] | None = None
) -> list[str]:
    """Names of the tensors that can be matched when the dummy is a matrix of word embeddings.

    They are the same for all updates that are attacked together. Left out: the word table itself (the dummy
    has no gradient there, nor has an output layer that shares it), what some update lacks, tensors that hold
    only rounding in all updates, and, if `only` is given, everything else.
    """
    words = model.adapter.parameter_of(model.adapter.words)
    shared = [n for n in model.parameters() if n != words and all(n in t for t in targets)]
    wanted = [name for name in shared if only is None or name in only]
    if not wanted:
        raise GradleakError("the update holds nothing to match beside the word embeddings")
    sizes = {name: max(float(t[name].square().mean().sqrt()) for t in targets) for name in shared}
    typical = sorted(sizes.values())[len(sizes) // 2]
    kept = [name for name in wanted if sizes[name] > NOTHING * typical]
    if not kept:
        raise GradleakError("every tensor of the update is zero, so there is nothing to match")
    return kept


def weights_of(names: Iterable[str], weights: Mapping[str, float] | None) -> list[float]:
    """How much each parameter counts; one by default."""
    return [1.0 if weights is None else float(weights.get(name, 1.0)) for name in names]
