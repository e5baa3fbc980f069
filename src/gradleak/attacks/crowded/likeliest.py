"""What came back to each token of a gradient with more different tokens than dimensions: the likeliest, and how sure.

The gradient of a first layer is a sum over its different tokens: what each is read as, which is known, times what
came back to it. With more tokens than dimensions many answers fit. The likeliest is taken where every token has a
size of its own, which is found with it (automatic relevance determination), so that candidates that were not there
end with nothing. Where it is known in which few directions something can have come back to a token, only these are
open to it; each such token leaves fewer unknowns, and soon there is one answer.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Fixed-point steps that find the sizes of all tokens at first, fast ones that empty what was not there and then
# slow ones, and slow ones whenever more is known.
FAST, SLOW, AGAIN = 15, 2, 3
# Once answers are this good in the median, tokens that are smaller than this beside the median were not there.
GOOD, ABSENT = 1e-3, 2e-3
# Nothing, as the size of a token. One that was emptied and was there leaves a rest that no other explains: where it
# would explain so many times what is usual, it is taken back.
NOTHING, MISSING = 1e-30, 4.0
# Rounding in the gradient of each dimension, as a share of the energy: at first, and at most.
LEAST_ROUNDING, MOST_ROUNDING = 1e-14, 1e-6
# What a token may have outside the directions that are open to it: rounding.
ROUNDING = 1e-7
# What a token has outside its directions, as a share of all, if these are wrong. Seen: 1e-3 and less in right ones.
STRAYS = 1e-2
# Rounds in which tokens that do not keep to their directions are let go.
LET_GO = 4
# A share of a token's gradient that is never said to be known better.
SUREST = 1e-9

Shape = tuple[int, int, int]


class Likeliest:
    """Solves `inputs.T @ rows = gradient` for more rows than dimensions; a row has groups of heads with numbers."""

    def __init__(self, inputs: Tensor, gradient: Tensor, sizes: Tensor, shape: Shape) -> None:
        self.inputs, self.shape = inputs, shape
        heads = gradient.unflatten(1, shape)
        # Heads differ in size and say as much about a token; all are brought to one.
        self._scale = heads.square().mean(dim=(0, 3)).sqrt().clamp_min(1e-300)[None, :, :, None]
        self._gradient = (heads / self._scale).flatten(1)
        self._sizes = sizes.double().square().clamp_min(NOTHING)
        self._noise = LEAST_ROUNDING
        self._open: dict[int, Tensor] = {}
        self._open_sizes = sizes.new_zeros(0, dtype=torch.float64)
        self._packed = _Packed({}, shape)
        self._draws = torch.Generator().manual_seed(0)
        self._rows = torch.zeros(len(inputs), gradient.shape[1], dtype=inputs.dtype, device=inputs.device)
        self.off = torch.ones(len(inputs), dtype=inputs.dtype, device=inputs.device)
        for step in range(FAST + SLOW):
            self._step(fast=step < FAST)

    @property
    def rows(self) -> Tensor:
        """What came back to each token, (tokens, numbers); `off` is the share of its energy that may be wrong."""
        return self._unscaled(self._rows)

    @property
    def present(self) -> Tensor:
        """Which tokens got anything back, once that is known; all before."""
        return (
            self._sizes > NOTHING if float(self.off.median()) < GOOD else torch.ones_like(self.off, dtype=torch.bool)
        )

    @property
    def known(self) -> list[int]:
        """Tokens to which only some directions are open."""
        return list(self._open)

    def of(self, gradient: Tensor) -> Tensor:
        """The same of another gradient, by what was found about the sizes and directions of this one."""
        scaled = (gradient.unflatten(1, self.shape) / self._scale).flatten(1)
        return self._unscaled(self._solved(scaled))

    def missed(self, others: Tensor) -> Tensor:
        """How much more the gradient has along what other tokens are read as than these tokens would explain.

        About 1 of a token that was not there, more of one that was and is not among these.
        """
        seen, usual = self._dual(self._gradient), self._dual(self._made_up()[1])
        return (others @ seen).square().sum(dim=1) / (others @ usual).square().sum(dim=1).clamp_min(1e-300)

    def narrow(self, directions: dict[int, Tensor]) -> None:
        """Leave only these open to some tokens, an orthonormal basis (groups, numbers, directions), and solve again.

        A token that does not keep to them is let go: its directions were wrong.
        """
        self._open = {**self._open, **directions}
        for _ in range(LET_GO):
            for _ in range(AGAIN):
                self._step(fast=False)
            strays = self._strays()
            if not strays:
                break
            self._open = {token: basis for token, basis in self._open.items() if token not in strays}

    def _step(self, fast: bool) -> None:
        """Solve with the sizes so far, and take those that the answer has."""
        if list(self._open) != self._packed.tokens:
            self._packed = _Packed(self._open, self.shape)
            inside = self._packed.inside(self._rows)
            self._open_sizes = (inside.square().mean(dim=1) / self._packed.shares.to(inside)).clamp_min(1e-30)
        packed, known = self._packed, self._packed.tokens
        self._factorise()
        self._rows = self._solved(self._gradient)
        made_up = self._made_up() if known else None
        errors = self._errors(made_up)
        found = self._rows.square().mean(dim=1)
        if known:
            inside = packed.inside(self._rows).square().mean(dim=1)
            self._open_sizes = ((inside + errors[known]) / packed.shares).clamp_min(1e-30)
        fixed = found / (1 - errors / self._sizes).clamp_min(1e-9) if fast else found + errors
        self._sizes = fixed.clamp_min(NOTHING)
        if made_up is not None and float(self.off.median()) < GOOD:
            self._sizes[self._sizes < ABSENT**2 * self._sizes.median()] = NOTHING
            self._compare(made_up[1])
        self.off = (errors / found.clamp_min(1e-300)).clamp_min(SUREST)

    def _errors(self, made_up: tuple[Tensor, Tensor] | None) -> Tensor:
        """How far off the numbers of each token are in the mean of their squares, if all sizes are right."""
        if made_up is None:
            reached = (self.inputs * torch.cholesky_solve(self.inputs.T, self._spread).T).sum(dim=1)
            return self._sizes * (1 - self._sizes * reached).clamp_min(0)
        # Seen on a made-up gradient, of which the answer is known.
        rows, gradient = made_up
        return (self._solved(gradient) - rows).square().mean(dim=1)

    def _compare(self, made_up: Tensor) -> None:
        """What this gradient has beyond what is usual: rounding, and tokens that were emptied and were there."""
        seen, usual = self._dual(self._gradient), self._dual(made_up)
        more = float(seen.square().sum() / usual.square().sum().clamp_min(1e-300))
        self._noise = min(max(self._noise * more, LEAST_ROUNDING), MOST_ROUNDING)
        emptied = (self._sizes <= NOTHING).nonzero()[:, 0]
        if not len(emptied):
            return
        own, expected = ((self.inputs[emptied] @ each).square().mean(dim=1) for each in (seen, usual))
        ratios = own / expected.clamp_min(1e-300)
        worst = int(ratios.argmax())
        if float(ratios[worst]) > MISSING:
            self._sizes[emptied[worst]] = (own - expected)[worst] / expected[worst].square()

    def _made_up(self) -> tuple[Tensor, Tensor]:
        """Rows with the sizes and directions that the last solution assumed, and the gradient that they make."""
        packed, (sizes, open_sizes) = self._packed, self._solved_sizes
        drawn, rounding = (
            torch.randn(each.shape, generator=self._draws, dtype=each.dtype).to(each.device)
            for each in (self._rows, self._gradient)
        )
        rows = sizes.sqrt()[:, None] * drawn
        if packed.tokens:
            rows[packed.tokens] = open_sizes.sqrt()[:, None] * packed.inside(drawn)
        return rows, self.inputs.T @ rows + self._rounding**0.5 * rounding

    def _factorise(self) -> None:
        """What every solution with these sizes and directions needs."""
        inputs, packed = self.inputs, self._packed
        self._solved_sizes = self._sizes, self._open_sizes
        sizes = self._sizes.clone()
        if packed.tokens:
            sizes[packed.tokens] = ROUNDING * self._open_sizes
        spread = inputs.T @ (sizes[:, None] * inputs)
        self._rounding = self._noise * float(spread.diagonal().mean())
        spread.diagonal().add_(self._rounding)
        self._spread = torch.linalg.cholesky(spread)
        if not packed.tokens:
            return
        own = inputs[packed.tokens]
        self._to_known = torch.cholesky_solve(own.T, self._spread)
        between = (own @ self._to_known)[packed.owners][:, packed.owners]
        weights = self._open_sizes.sqrt()[packed.owners]
        self._factors = []
        for directions in packed.directions:
            inner = between * (directions @ directions.T) * weights[:, None] * weights[None]
            inner.diagonal().add_(1)
            self._factors.append(torch.linalg.cholesky(inner))

    def _solved(self, gradient: Tensor) -> Tensor:
        """The likeliest rows of a gradient, scaled as this one."""
        packed, (sizes, open_sizes) = self._packed, self._solved_sizes
        rows = self.inputs @ self._dual(gradient)
        answer = sizes[:, None] * rows
        if packed.tokens:
            both = packed.inside(rows) + ROUNDING * rows[packed.tokens]
            answer[packed.tokens] = open_sizes[:, None] * both
        return answer

    def _dual(self, gradient: Tensor) -> Tensor:
        """A gradient divided by what the sizes and directions let expect of it."""
        packed, (_, open_sizes) = self._packed, self._solved_sizes
        dual = torch.cholesky_solve(gradient, self._spread)
        if packed.tokens:
            _, heads, numbers = self.shape
            weights = open_sizes.sqrt()[packed.owners]
            seen = self.inputs[packed.tokens] @ dual  # before dual changes
            for group, (directions, factor) in enumerate(zip(packed.directions, self._factors, strict=True)):
                for head in range(group * heads, (group + 1) * heads):
                    columns = slice(head * numbers, (head + 1) * numbers)
                    along = (seen[packed.owners, columns] * directions).sum(dim=1) * weights
                    along = torch.cholesky_solve(along[:, None], factor)[:, 0] * weights
                    moved = torch.zeros(len(packed.tokens), numbers, dtype=dual.dtype, device=dual.device)
                    dual[:, columns] -= self._to_known @ moved.index_add_(
                        0, packed.owners, along[:, None] * directions
                    )
        return dual

    def _strays(self) -> set[int]:
        """Tokens that have most outside the directions that are open to them, if that is much."""
        packed = self._packed
        if not packed.tokens:
            return set()
        own = self._rows[packed.tokens]
        shares = (own - packed.inside(self._rows)).norm(dim=1) / own.norm(dim=1).clamp_min(1e-300)
        # A wrong one drags others along, so the worst go first.
        limit = max(STRAYS, float(shares.max()) / 2)
        return {token for token, share in zip(packed.tokens, shares.tolist(), strict=True) if share > limit}

    def _unscaled(self, rows: Tensor) -> Tensor:
        return (rows.unflatten(1, self.shape) * self._scale).flatten(1)


class _Packed:
    """The directions that are open to some tokens, together: one row for each, of each group of heads."""

    def __init__(self, bases: dict[int, Tensor], shape: Shape) -> None:
        self.tokens, self.shape = list(bases), shape
        self.shares = torch.zeros(0, dtype=torch.float64)
        if not bases:
            return
        device = next(iter(bases.values())).device
        counts = torch.tensor([basis.shape[2] for basis in bases.values()], device=device)
        self.owners = torch.repeat_interleave(torch.arange(len(counts), device=device), counts)
        self.directions = [torch.cat([basis[group].T for basis in bases.values()]) for group in range(shape[0])]
        self.shares = counts.to(self.directions[0]) / shape[2]
        most = int(counts.max())
        self._bases = torch.stack(
            [torch.nn.functional.pad(basis, (0, most - basis.shape[2])) for basis in bases.values()]
        )

    def inside(self, rows: Tensor) -> Tensor:
        """Of all rows those of these tokens, without what they have outside their directions."""
        if not self.tokens:
            return rows[:0]
        own = rows[self.tokens].unflatten(1, self.shape)
        return ((own @ self._bases) @ self._bases.mT).flatten(1)
