"""Which tokens a batch had where a gradient shows only a few sums over it, as LoRA's factors do.

The rows of the first layer's gradient are sums over the batch of what the layer saw. Without learned positions that
is one vector per token of the vocabulary, so the rows are combinations of few vectors of a known list. However many
tokens there are, up to the width, they can be found: take the token that explains most of what is left, remove what
it explains from all rows, and go on. Once nothing is left but rounding, the tokens that were taken are all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.spans.candidates import first_inputs
from gradleak.attacks.spans.certify import attention_parts, carried
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel

# What rounding in fp32 leaves of the rows, relative to their size.
ROUNDING = 2e-6
# A token must lie this far outside the tokens taken before, or it explains by chance.
LEAST_OUTSIDE = 1e-3
# Share of the width up to which taking tokens makes sense: beyond it any few vectors explain everything.
MOST_TAKEN = 0.8
# Tokens whose coefficients are this small beside the usual were taken by mistake.
MISTAKE = 1e-3
# Rounds of dropping mistakes and taking again.
ROUNDS = 12
# The share of the taken that is doubted in a round that did not explain everything.
DOUBTED = 0.1
CHUNK = 8192
# Tokens among which the best is looked for, and how many are taken before these are looked up anew.
SHORTLIST, REFRESH = 2048, 8


@dataclass(frozen=True)
class SparseTokens:
    """Tokens with the size of their coefficients, and the share of the rows' norm that they leave unexplained."""

    sizes: dict[int, float]
    rest: float

    @property
    def certified(self) -> bool:
        """Whether nothing but rounding is left, which proves the set: no others explain the rows with so few."""
        return self.rest <= ROUNDING


def sparse_tokens(model: TextModel, tensors: Mapping[str, Tensor], budget: Budget) -> SparseTokens | None:
    """The tokens whose inputs combine to the first layer's gradients; None where that cannot be asked.

    It cannot where positions are learned, as a token then has an input of its own at each, where the first layer was
    not sent, and where it is seen only through LoRA's first factor.
    """
    if model.adapter.positions is not None:
        return None
    matrices, seen_through = carried(tensors, attention_parts(model, 0))
    if not matrices or seen_through is not None:
        return None
    rows = torch.cat([matrix.double() / matrix.double().norm().clamp_min(1e-300) for matrix in matrices])
    vocabulary = torch.arange(model.vocabulary_size, device=model.device)
    atoms = torch.empty(len(vocabulary), matrices[0].shape[1], device=model.device)  # joining parts would take twice
    for part in vocabulary.split(CHUNK):
        atoms[part] = F.normalize(first_inputs(model, part, 1)[:, 0].float(), dim=1)
    return combination(rows, atoms, budget)


def combination(rows: Tensor, atoms: Tensor, budget: Budget | None = None) -> SparseTokens:
    """The fewest unit vectors of which all rows are combinations, as far as a greedy search finds them.

    >>> generator = torch.Generator().manual_seed(0)
    >>> atoms = F.normalize(torch.randn(500, 40, generator=generator), dim=1)
    >>> rows = torch.randn(6, 12, generator=generator).double() @ atoms[:12].double()
    >>> found = combination(rows, atoms)
    >>> sorted(found.sizes) == list(range(12)), found.certified
    (True, True)
    """
    if not float(rows.norm()):
        return SparseTokens({}, 0.0)
    # All that counts are the rows' span and how long they are along it, so more rows than dimensions are no help.
    if rows.shape[0] > rows.shape[1]:
        rows = torch.linalg.qr(rows, mode="r").R
    most = int(MOST_TAKEN * rows.shape[1])
    best, taken = SparseTokens({}, 1.0), list[int]()
    for number in range(ROUNDS):
        taken = _take(rows, atoms, taken, most, budget)
        coefficients, rest = _solve(rows, atoms, taken)
        usual = float(coefficients.median()) if len(coefficients) else 0.0
        kept = [token for token, size in zip(taken, coefficients.tolist(), strict=True) if size > MISTAKE * usual]
        coefficients, rest = _solve(rows, atoms, kept) if len(kept) < len(taken) else (coefficients, rest)
        found = SparseTokens(dict(zip(kept, coefficients.tolist(), strict=True)), rest)
        best = min(best, found, key=lambda each: each.rest)
        if best.certified or (budget is not None and budget.over):
            break
        # The weakest are likeliest to be mistakes, and what replaces them sees more of the right ones explained.
        order = coefficients.argsort(descending=True).tolist()
        taken = [kept[place] for place in order[: max(1, int(len(kept) * (1 - DOUBTED * (1 + number))))]]
    return best


def _take(rows: Tensor, atoms: Tensor, taken: list[int], most: int, budget: Budget | None) -> list[int]:
    """The tokens taken before and those that explain most of what is left, one after the other.

    The best are looked for among a few that explain much; which these are is seen anew after every few.
    """
    taken, size = list(taken), float(rows.norm())
    basis = _orthonormal(atoms[taken].to(rows))
    left = rows - (rows @ basis.T) @ basis
    outside = torch.ones(len(atoms), device=rows.device)
    seen = 0
    while len(taken) < most and float(left.norm()) > ROUNDING * size:
        if budget is not None and budget.over:
            break
        outside -= (atoms @ basis[seen:].T.to(atoms)).square().sum(dim=1)
        seen = len(basis)
        explained = (atoms @ left.T.to(atoms)).square().sum(dim=1) / outside.clamp_min(LEAST_OUTSIDE)
        explained[taken] = -1.0
        few = explained.topk(min(len(atoms), SHORTLIST)).indices
        near, room = atoms[few], outside[few].clone()
        for _ in range(min(REFRESH, most - len(taken))):
            scores = (near @ left.T.to(near)).square().sum(dim=1) / room.clamp_min(LEAST_OUTSIDE)
            place = int(scores.argmax())
            vector = near[place].to(basis)
            for _ in range(2):  # once leaves rounding of the size of the vector
                vector = vector - basis.T @ (basis @ vector)
            vector = vector / vector.norm().clamp_min(1e-300)
            basis, left = torch.cat([basis, vector[None]]), left - torch.outer(left @ vector, vector)
            room = room - (near @ vector.to(near)).square()
            room[place] = float("inf")
            taken.append(int(few[place]))
            if float(left.norm()) <= ROUNDING * size:
                break
    return taken


def _orthonormal(vectors: Tensor) -> Tensor:
    return torch.linalg.qr(vectors.T).Q.T if len(vectors) else vectors


def _solve(rows: Tensor, atoms: Tensor, taken: list[int]) -> tuple[Tensor, float]:
    """The size of each vector's coefficients in all rows, and the share of the rows that is left."""
    if not taken:
        return rows.new_zeros(0), 1.0
    chosen = atoms[taken].to(rows)
    coefficients = torch.linalg.lstsq(chosen.T, rows.T).solution
    rest = float((rows.T - chosen.T @ coefficients).norm() / rows.norm())
    return coefficients.norm(dim=1), rest
