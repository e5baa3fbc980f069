"""How likely a noisy update is, if given sentences made it.

Gaussian noise has a density: of two guesses that is right which leaves less of the update over, in units of the
noise. All parameters add up, the token embedding too, so nothing has to be weighed. The logarithm of that density is
told against an update of noise alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.matching.capture import Capture, Gradients
from gradleak.matching.factored import Factors, squared_norm
from gradleak.matching.kernels import fastest_products
from gradleak.matching.targets import Group, Target
from gradleak.models.hooks import of_this_thread
from gradleak.models.text import TextModel
from gradleak.updates.update import Update

# Tokens of one pass.
TOKENS_AT_ONCE = 1024


@dataclass(frozen=True)
class Batches:
    """Guesses at a whole batch: ids and mask (guesses, sentences, positions), and what the task learns of them."""

    ids: Tensor
    mask: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, which: Tensor | slice) -> Batches:
        return Batches(self.ids[which], self.mask[which], self.targets[which])


class Slopes(NamedTuple):
    """The likelihood of guesses, (guesses,), and what it would take to change their tokens.

    by_input: its derivative by every token's embedding, (guesses, sentences, positions, width).
    reading: the loss's derivative by the same: what the token's row of the token embedding gets.
    """

    values: Tensor
    by_input: Tensor
    reading: Tensor


def log_likelihood(
    update: Update, model: TextModel, batches: Batches, sigma: float, parameters: Collection[str] | None = None
) -> Tensor:
    """How much likelier the update is if a batch made it than as noise alone, as a logarithm: (guesses,)."""
    return Likelihood(model, update.tensors, sigma, parameters=parameters).values(batches)


class Likelihood:
    """The likelihood of one update under many guesses at once, read off passes in factors."""

    def __init__(
        self,
        model: TextModel,
        tensors: Mapping[str, Tensor],
        sigma: float,
        *,
        parameters: Collection[str] | None = None,
        any_size: bool = False,
        budget: Budget | None = None,
    ) -> None:
        """`sigma` is the noise's standard deviation. `parameters` are those compared, all that were sent by default.

        With `any_size` a guess's gradient may have been made shorter by any factor, as clipping does; the likeliest
        is taken.
        """
        self.model, self.sigma, self.any_size = model, sigma, any_size
        self._budget = budget or Budget()
        self.names = [n for n in model.parameters() if n in tensors and (parameters is None or n in parameters)]
        self._capture = Capture(model.module, self.names, model.adapter.family.rules)
        like = model.token_embedding
        compared = {name: tensors[name].to(like) for name in self.names}
        self._vectors = {name: tensor for name, tensor in compared.items() if tensor.dim() < 2}
        # With noise no matrix has a thin form, so none is looked for.
        matrices = {name: tensor.flatten(1) for name, tensor in compared.items() if tensor.dim() > 1}
        self._matrices = {name: Target([matrix], max(matrix.shape)) for name, matrix in matrices.items()}

    def values(self, batches: Batches) -> Tensor:
        """The log-likelihood of every guess against noise alone, (guesses,)."""
        found = []
        for part in self._parts(batches):
            gradients, _, _ = self._pass(part, differentiable=False)
            with torch.no_grad():
                found.append(self._ratio(gradients, len(part)))
        return torch.cat(found)

    def slopes(self, batches: Batches) -> Slopes:
        """The same with its derivatives by the embeddings."""
        found = []
        for part in self._parts(batches):
            gradients, losses, (embeds,) = self._pass(part, differentiable=True, whole=True)
            (reading,) = torch.autograd.grad(losses.sum(), embeds, retain_graph=True)
            values = self._ratio(gradients, len(part))
            (by_input,) = torch.autograd.grad(values.sum(), embeds)
            shape = (*part.ids.shape, -1)
            found.append(Slopes(values.detach(), by_input.view(shape), reading.view(shape)))
        return Slopes(*(torch.cat(each) for each in zip(*found, strict=True)))

    def states(self, batches: Batches) -> Tensor:
        """What the first compared module sees of every guess; a head sees what the model makes of a sentence."""
        return torch.cat([self._pass(part, differentiable=False)[2][0].detach() for part in self._parts(batches)])

    def beginnings(self, batches: Batches) -> Tensor:
        """The likelihood of every guess at a single sentence, had it ended after each of its tokens, from one pass.

        Right for causal language models and matrices behind their last attention: there what a token adds to the
        gradient depends on no later token, and the loss is a mean over those that were predicted. (guesses, tokens);
        minus infinity where nothing is predicted yet, and past a guess's own end.
        """
        found = []
        for part in self._parts(batches):
            gradients, _, _ = self._pass(part, differentiable=False)
            with torch.no_grad():
                found.append(self._by_length(gradients, part.mask[:, 0].sum(dim=1)))
        return torch.cat(found)

    def _by_length(self, gradients: Gradients, lengths: Tensor) -> Tensor:
        inner = square = torch.zeros(())
        for name, target in self._matrices.items():
            for use in gradients.factored.get(name, ()):
                if not isinstance(use, Factors):
                    raise GradleakError(f"{name} does not lie behind the last attention")
                inner = inner + ((use.left @ target.tensors[0]) * use.right).sum(dim=2)
                both = (use.left @ use.left.transpose(1, 2)) * (use.right @ use.right.transpose(1, 2))
                square = square + both
        if not inner.dim():
            raise GradleakError("the update holds nothing that a likelihood could be computed of")
        # The gradient of a beginning is a mean over fewer tokens.
        predicted = torch.arange(1, inner.shape[1] + 1, device=inner.device)
        scale = (lengths[:, None] - 1) / predicted
        sums = square.cumsum(dim=1).cumsum(dim=2).diagonal(dim1=1, dim2=2)
        values = (scale * inner.cumsum(dim=1) - scale.square() * sums / 2) / self.sigma**2
        values = values.masked_fill(predicted >= lengths[:, None], float("-inf"))  # of the sentence as a whole last
        return torch.cat([torch.full_like(values[:, :1], float("-inf")), values[:, :-1]], dim=1)

    def _parts(self, batches: Batches) -> list[Batches]:
        size = max(1, TOKENS_AT_ONCE // max(1, batches.ids[0].numel()))
        return [batches.take(slice(first, first + size)) for first in range(0, len(batches), size)]

    def _pass(
        self, part: Batches, *, differentiable: bool, whole: bool = False
    ) -> tuple[Gradients, Tensor, list[Tensor]]:
        """Every guess's gradient and mean loss, and what both are differentiated by.

        That is what the first compared module sees, so that nothing is kept of what comes before it; with `whole` it
        is the embeddings.
        """
        self._budget.check()
        ids, mask, targets = (each.flatten(0, 1) for each in (part.ids, part.mask, part.targets))
        leaves: list[Tensor] = []

        def begin(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if not args or not args[0].is_floating_point() or args[0].requires_grad:
                return None
            leaves.append(args[0].detach().requires_grad_())
            return (leaves[-1], *args[1:])

        def losses() -> Tensor:
            embeds: Tensor = self.model.adapter.token_embedding(ids)  # the module itself: its rows are captured
            if whole or embeds.requires_grad:
                leaves.append(embeds.requires_grad_())
            return self.model.goal.row_losses(self.model.logits(embeds=embeds, mask=mask), targets, mask, len(part))

        hooks = [module.register_forward_pre_hook(of_this_thread(begin)) for module in self._capture.owners]
        try:
            with fastest_products(self.model.device):
                gradients, values = self._capture.gradients(
                    losses, *part.ids.shape[:2], differentiable=differentiable
                )
        finally:
            for hook in hooks:
                hook.remove()
        return gradients, values, leaves[:1]

    def _ratio(self, gradients: Gradients, guesses: int) -> Tensor:
        """From ⟨gradient, update⟩ and ‖gradient‖² of all parameters together."""
        inner, square = self._sums(gradients, guesses)
        if self.any_size:
            return inner.clamp_min(0).square() / square.clamp_min(1e-30) / (2 * self.sigma**2)
        return (inner - square / 2) / self.sigma**2

    def _sums(self, gradients: Gradients, guesses: int) -> tuple[Tensor, Tensor]:
        inners, squares, groups = [], [], [Group(0, 0, guesses)]
        for name, target in self._vectors.items():
            if name in gradients.small:
                inners.append(gradients.small[name] @ target)
                squares.append(gradients.small[name].square().sum(dim=1))
        for name, matrix in self._matrices.items():
            uses = gradients.factored.get(name)
            if uses:
                inners.append(torch.stack([matrix.inner(use, groups) for use in uses]).sum(dim=0))
                squares.append(squared_norm(uses))
        if not inners:
            raise GradleakError("the update holds nothing that a likelihood could be computed of")
        return torch.stack(inners).sum(dim=0), torch.stack(squares).sum(dim=0)
