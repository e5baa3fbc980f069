"""Watching one forward and backward pass: the inputs of every layer and its output gradients.

Rows are independent, so one pass over rows × batch sequences yields every row's own gradient, in factors. The
weights are frozen meanwhile: no weight gradient is ever computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.matching.activations import DERIVATIVES, smooth
from gradleak.matching.factored import Factored
from gradleak.matching.normalisation import is_smooth, normalise, rescale
from gradleak.matching.rules import Rule, rule_for, unfold
from gradleak.models.hooks import of_this_thread


@dataclass
class Gradients:
    """Every captured parameter's gradient: in factors for each use of a matrix, (rows, size) if it is small."""

    factored: dict[str, list[Factored]] = field(default_factory=dict)
    small: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, gradient: Factored | Tensor) -> None:
        """Add what one use of a parameter contributes to its gradient."""
        if isinstance(gradient, Tensor):
            self.small[name] = self.small[name] + gradient if name in self.small else gradient
        else:
            self.factored.setdefault(name, []).append(gradient)

    def leave_out(self, names: Collection[str]) -> None:
        """Forget parameters some use of which could not be read: what the others contribute is not their gradient."""
        for name in names:
            self.small.pop(name, None)
            self.factored.pop(name, None)


class Capture:
    """Knows which modules own the wanted parameters, and reads their gradients off a pass."""

    def __init__(
        self, module: nn.Module, names: Collection[str], rules: Mapping[str, str | Rule] | None = None
    ) -> None:
        """`rules` are those that the model's family adds to the common ones."""
        self.module = module
        wanted = set(names)
        # A tied parameter has several owners, and all of them use it.
        by_id = {id(p): n for n, p in module.named_parameters() if n in wanted}
        self.activations = [m for m in module.modules() if type(m).__name__ in DERIVATIVES]
        self.owners: dict[nn.Module, dict[str, str]] = {}
        self.rules: dict[nn.Module, Rule] = {}
        for owner in module.modules():
            held = {k: by_id[id(p)] for k, p in owner.named_parameters(recurse=False) if id(p) in by_id}
            rule = rule_for(owner, rules) if held else None
            if rule is not None:
                self.owners[owner], self.rules[owner] = held, rule
        self.norms = [m for m in module.modules() if is_smooth(m) and m not in self.owners]

    def gradients(
        self, losses: Callable[[], Tensor], rows: int, batch: int, *, differentiable: bool
    ) -> tuple[Gradients, Tensor]:
        """Run `losses` (one number per row) and give every row's gradient, with the losses."""
        calls: list[tuple[nn.Module, Tensor, Tensor]] = []
        unread: set[str] = set()

        def watch(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> Tensor | None:
            seen, output, changed = _fit(module, args, named, output, rows * batch)
            if seen is not None and module in self.owners:
                calls.append((module, seen, output))
            elif module in self.owners:
                unread.update(self.owners[module].values())
            return output if changed else None

        with frozen(self.module), torch.enable_grad():
            watched = (*self.owners, *self.norms)
            hooks = [module.register_forward_hook(of_this_thread(watch), with_kwargs=True) for module in watched]
            hooks += [activation.register_forward_hook(of_this_thread(smooth)) for activation in self.activations]
            try:
                per_row = losses()
            finally:
                for hook in hooks:
                    hook.remove()
            output_gradients = torch.autograd.grad(
                per_row.sum(), [output for _, _, output in calls], create_graph=differentiable, allow_unused=True
            )
            gradients = Gradients()
            inputs: dict[int, Tensor] = {}
            for (module, seen, _), output_gradient in zip(calls, output_gradients, strict=True):
                if output_gradient is not None:
                    self._read(gradients, module, seen, output_gradient, rows, inputs)
        gradients.leave_out(unread)
        return gradients, per_row

    def _read(
        self,
        gradients: Gradients,
        module: nn.Module,
        seen: Tensor,
        output_gradient: Tensor,
        rows: int,
        inputs: dict[int, Tensor],
    ) -> None:
        """Add the gradients of one call of a module, which saw the input `seen`."""
        if isinstance(module, nn.Conv2d):
            patches, output_gradient = unfold(module, seen), output_gradient.flatten(2).transpose(1, 2)
            x = patches.reshape(rows, -1, patches.shape[-1])
        else:
            width = () if isinstance(module, nn.Embedding) else (seen.shape[-1],)
            # Modules with the same input get the same tensor: what is derived from it is then computed once.
            x = inputs.setdefault(id(seen), seen.reshape(rows, -1, *width))
        by_attribute = self.rules[module](module, x, output_gradient.reshape(rows, -1, output_gradient.shape[-1]))
        for attribute, name in self.owners[module].items():
            if attribute in by_attribute:
                gradients.add(name, by_attribute[attribute])


def _fit(
    module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any], output: Any, sequences: int
) -> tuple[Tensor | None, Any, bool]:
    """The module's input and output if both run over all sequences.

    Tables read once for all are spread out; a normalisation gets cheap derivatives and shows its normalised input.
    Tokens of all sequences may stand in one list.
    """
    seen = _index(module, args, named) if isinstance(module, nn.Embedding) else args[0] if args else None
    if not isinstance(seen, Tensor) or not isinstance(output, Tensor):
        return None, output, False
    if isinstance(module, nn.Embedding):
        if seen.shape[0] not in (1, sequences) or seen.dim() != 2:
            return None, output, False
        # One position row for the whole batch would mix the rows' output gradients: give every sequence its own copy.
        spread = output.expand(sequences, *output.shape[1:]).clone().requires_grad_()
        return seen.expand(sequences, *seen.shape[1:]), spread, True
    listed = output.dim() == 2 and output.shape[0] % sequences == 0
    if not (listed or output.shape[0] == sequences) or not output.requires_grad:
        return None, output, False
    if isinstance(module, nn.LayerNorm) and is_smooth(module):
        normal = normalise(seen, module.eps)
        return normal, rescale(module, normal), True
    return seen, output, False


def _index(module: nn.Embedding, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """The rows that a table was read at. OPT's positions come beside a mask, and the table adds an offset to them."""
    positions = named.get("position_ids")
    index = positions if positions is not None else args[0] if args else None
    return index + getattr(module, "offset", 0) if isinstance(index, Tensor) else None


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """No parameter asks for a gradient inside."""
    asked = [p for p in module.parameters() if p.requires_grad]
    for parameter in asked:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asked:
            parameter.requires_grad_(True)
