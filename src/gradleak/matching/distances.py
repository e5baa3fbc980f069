"""How far one gradient is from another: a term for every parameter, then one number.

Two ways lead to a term: from the dense gradients themselves, or from three products (their inner product and
their squared sizes), which need no gradient to be formed. Everything is done for many rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

# A squared gradient below this is nothing. Its products with targets of usual size have a finite inverse in fp32.
VANISHING = 1e-24

DistanceName = Literal["cosine", "l2", "l2+l1", "sign"]


@dataclass(frozen=True)
class Distance:
    """cosine: mean over parameters of 1 − cos. l2: sum of squared differences. l2+l1: plus absolute ones.

    sign: mean over parameters of the share of the dummy's absolute gradient whose sign is not the target's, twice.
    Against signs alone it is 0 for the truth, which none of the others is.

    >>> dummy, target = torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    >>> [round(float(Distance(name).from_dense(dummy, target)), 4) for name in ("cosine", "l2", "l2+l1")]
    [0.0, 4.0, 4.02]
    """

    name: DistanceName = "cosine"
    l1_weight: float = 0.01

    @property
    def needs_coordinates(self) -> bool:
        """Whether single coordinates matter, so that products are not enough."""
        return self.name in ("l2+l1", "sign")

    @property
    def averages(self) -> bool:
        """Whether terms are independent of the gradients' size, so that their mean is taken and not their sum."""
        return self.name in ("cosine", "sign")

    def from_dense(self, dummy: Tensor, target: Tensor) -> Tensor:
        """One parameter's term from gradients given as (rows, coordinates)."""
        if self.name == "cosine":
            return self.from_products(
                (dummy * target).sum(dim=1), dummy.square().sum(dim=1), target.square().sum(dim=1)
            )
        if self.name == "sign":
            signs = target.sgn()
            return 1 - (dummy * signs).sum(dim=1) / _absolute(dummy * signs.abs())
        apart = dummy - target
        term = apart.square().sum(dim=1)
        return term if self.name == "l2" else term + self.l1_weight * apart.abs().sum(dim=1)

    def in_place(self, dummy: Tensor, target: Tensor, slope: Tensor | None = None) -> Tensor:
        """`from_dense` of a dummy's gradient that may be overwritten; its derivative is written to `slope`.

        No memory is asked for but a number a row: for pieces of a gradient that takes longer than to compute.
        """
        if self.name in ("cosine", "sign"):
            return self.from_dense(dummy, target) if slope is None else self._share_in_place(dummy, target, slope)
        term = _dot(dummy.sub_(target), dummy)
        if self.name == "l2":
            if slope is not None:
                torch.mul(dummy, 2, out=slope)
            return term
        if slope is None:
            return term + self.l1_weight * dummy.abs_().sum(dim=1)
        torch.sign(dummy, out=slope)
        term += self.l1_weight * _dot(dummy, slope)
        slope.mul_(self.l1_weight).add_(dummy, alpha=2)
        return term

    def _share_in_place(self, dummy: Tensor, target: Tensor, slope: Tensor) -> Tensor:
        """The distances that do not depend on the gradients' size."""
        if self.name == "cosine":
            inner, target_square = _dot(dummy, target), target.square().sum(dim=1)
            dummy_square = _dot(dummy, dummy).clamp_min(VANISHING)
            sizes = dummy_square.sqrt() * torch.where(target_square > 0, target_square, 1.0).sqrt()
            torch.mul(dummy, (inner / (dummy_square * sizes))[:, None], out=slope)
            slope.sub_(target / sizes[:, None])
            return 1 - inner / sizes
        signs = target.sgn()
        inner, size = _dot(dummy, signs), _absolute(dummy * signs.abs())
        torch.sign(dummy, out=slope)
        slope.mul_(signs.abs()).mul_((inner / size.square())[:, None]).sub_(signs / size[:, None])
        return 1 - inner / size

    def from_products(self, inner: Tensor, dummy_square: Tensor, target_square: Tensor) -> Tensor:
        """One parameter's term from ⟨dummy, target⟩, ‖dummy‖² and ‖target‖², each (rows,)."""
        if self.name == "cosine":
            # Everything stays finite where the dummy's gradient vanishes, or nothing of a target was sent.
            wanted = torch.where(target_square > 0, target_square, 1.0)
            sizes = dummy_square.clamp_min(VANISHING).sqrt() * wanted.sqrt()
            return 1 - inner / sizes
        if self.name == "l2":
            return dummy_square - 2 * inner + target_square
        raise ValueError(f"{self.name} does not follow from products")

    def total(self, terms: Sequence[Tensor], weights: Tensor) -> Tensor:
        """The weighted sum of all parameters' terms, or their weighted mean."""
        weights = weights.to(terms[0])
        summed = (weights[:, None] * torch.stack(list(terms))).sum(dim=0)
        # An update none of whose parameters count here has no mean; its sum is zero.
        counted = weights.sum()
        return summed / torch.where(counted > 0, counted, 1.0) if self.averages else summed


def _absolute(values: Tensor) -> Tensor:
    """The sum of absolute values of every row, never zero."""
    return torch.linalg.vector_norm(values, ord=1, dim=1).clamp_min(VANISHING**0.5)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ of every row, where b may have one for all: as a product, which is the fastest there is."""
    return (a[:, None, :] @ b[:, :, None])[:, 0, 0]
