"""What a defence has visibly done to updates, and how a matching attack takes it into account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.spans.certify import attention_parts
from gradleak.defenses import known_defenses
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# A plain gradient's attention matrices have hardly any exact zero; beyond this share somebody put them there.
ZEROS = 0.01
# Of a random choice of coordinates the smallest is next to nothing; of the largest ones it is a good part of most.
CUT = 0.01
# Beyond this share of zeros, what is equally large is not a sign.
ALL_BUT_ZEROS = 0.5
# Grids of more levels are too fine to matter. What single precision leaves of a whole number of steps.
MOST_LEVELS = 1 << 10
OFF_GRID = 0.05


@dataclass(frozen=True)
class Seen:
    """What shows in the tensors or is told in the manifest.

    signs: values are signs alone. masked: some coordinates were set to zero by chance, so a zero says nothing about
    the gradient. pruned: the smallest were, so it says that the gradient was small there, which plain matching makes
    of it anyway. clipped: sentences' gradients were scaled down by factors that are not told.
    """

    signs: bool = False
    masked: bool = False
    pruned: bool = False
    clipped: bool = False


def what_shows(update: Update, model: TextModel) -> Seen:
    """What a defence has left in this update for all to see."""
    tensors = _telling_tensors(update, model)
    named = [defense for defense in known_defenses(update.manifest.defenses) if defense is not None]
    # Signs are hardly ever zero; the few largest values of a very coarse grid, equally large too, stand among zeros.
    signs = bool(tensors) and all(map(is_sign, tensors)) and _share_of_zeros(tensors) < ALL_BUT_ZEROS
    # Rounded weights leave zeros in the difference of a local training, and so does a coarse grid.
    exact = not update.manifest.client.local or any(defense.leaves in ("largest", "some") for defense in named)
    zeroed = exact and not signs and _is_zeroed(tensors)
    pruned = zeroed and is_pruned(tensors)
    return Seen(signs, zeroed and not pruned, pruned, any(defense.clips for defense in named))


def surviving(update: Update) -> dict[str, Tensor]:
    """For every parameter the coordinates that were not set to zero, as zeros and ones."""
    return {name: (tensor != 0).to(tensor.dtype) for name, tensor in update.tensors.items()}


def is_pruned(tensors: Sequence[Tensor]) -> bool:
    """Whether what was sent are the largest coordinates, and not just any.

    >>> is_pruned([torch.tensor([0.0, 2.0, 3.0])]), is_pruned([torch.tensor([0.0, 1e-6, 3.0, 2.0])])
    (True, False)
    """
    sizes = torch.cat([tensor[tensor != 0].abs() for tensor in tensors])
    return len(sizes) == 0 or float(sizes.min()) > CUT * float(sizes.median())


def is_sign(tensor: Tensor) -> bool:
    """Whether all entries but zeros are equally large.

    >>> is_sign(torch.tensor([0.1, -0.1, 0.0])), is_sign(torch.tensor([0.1, 0.2]))
    (True, False)
    """
    largest = tensor.abs().max()
    return bool(largest > 0) and bool(((tensor.abs() == largest) | (tensor == 0)).all())


def grid_step(tensor: Tensor) -> float | None:
    """The distance of neighbouring values of a tensor that was rounded to a grid; None if it was not.

    >>> grid_step(torch.tensor([0.5, -1.0, 0.0, 2.0] * 3)), grid_step(torch.tensor([0.5, 1.1, 0.0, 2.0] * 3))
    (0.5, None)
    """
    # To sort millions of values takes most of a second; some of them show already that there is no grid.
    some = tensor.reshape(-1)[:: 1 + tensor.numel() // (4 * MOST_LEVELS)]
    if len(some.abs().unique()) > MOST_LEVELS:
        return None
    sizes = tensor.abs().unique()
    if not 2 <= len(sizes) <= MOST_LEVELS or 2 * len(sizes) > tensor.numel():
        return None
    step = float(sizes.diff().min())
    levels = sizes.double() / step
    even = bool(((levels - levels.round()).abs() < OFF_GRID).all())
    return step if even and float(levels[-1]) <= MOST_LEVELS else None


def _telling_tensors(update: Update, model: TextModel) -> list[Tensor]:
    """The attention matrices of an update, or the other matrices of its layers where it has none of them."""
    layers = range(len(model.adapter.parts))
    attention = {part.weight_name for layer in layers for part in attention_parts(model, layer)}
    every = {part.weight_name for parts in model.adapter.parts for part in parts.values()}
    return [tensor for name, tensor in update.tensors.items() if name in attention] or [
        tensor for name, tensor in update.tensors.items() if name in every
    ]


def _is_zeroed(tensors: Sequence[Tensor]) -> bool:
    # A tensor with one coordinate left looks like a grid of two values; of rounded updates all tensors do.
    grids = sum(grid_step(t) is not None for t in tensors)
    return _share_of_zeros(tensors) > ZEROS and 2 * grids < len(tensors)


def _share_of_zeros(tensors: Sequence[Tensor]) -> float:
    return sum(int((t == 0).sum()) for t in tensors) / max(1, sum(t.numel() for t in tensors))
