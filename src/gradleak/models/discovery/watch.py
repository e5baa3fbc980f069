"""Running a small model while something of it is changed, and looking at what its modules see then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.models.discovery.sketch import Sketch, hooked

# Relative differences below this are rounding: some models compute their attention in single precision whatever else.
SAME = 1e-5

Edit = Callable[[Tensor], Tensor]


class _Enough(Exception):  # noqa: N818 - it is no error
    """What was wanted has been seen."""


@dataclass(frozen=True)
class Call:
    """One run of one module: the hidden states that it was given, and what it made of them."""

    module: nn.Module
    seen: Tensor
    made: Tensor


def first_tensor(args: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """The first floating-point tensor among a module's inputs, or parts of its output."""
    for value in (*args, *named.values()):
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    return None


def calls(run: Callable[[], Any], modules: Sequence[nn.Module]) -> list[Call]:
    """What modules see and make, in the order in which they end."""
    found: list[Call] = []

    def note(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        outputs = (
            (output,) if isinstance(output, Tensor) else tuple(output) if isinstance(output, tuple | list) else ()
        )
        seen, made = first_tensor(args, named), first_tensor(outputs, {})
        if made is not None:
            made = made.detach().clone()  # some models add to it where it lies
            found.append(Call(module, made if seen is None else seen, made))

    with hooked([module.register_forward_hook(note, with_kwargs=True) for module in modules]):
        run()
    return found


def read(base: Any, ids: Tensor | None = None, **inputs: Any) -> Any:
    """A pass of a base model over tokens that all stand in the text."""
    if ids is not None:
        inputs["input_ids"] = ids
    rows = inputs["input_ids"] if ids is not None else inputs["inputs_embeds"]
    inputs.setdefault("attention_mask", torch.ones(rows.shape[:2], dtype=torch.long))
    return base(**inputs)


def inputs_of(
    sketch: Sketch,
    modules: Sequence[nn.Module],
    ids: Tensor | None = None,
    edits: Mapping[nn.Module, Edit] | None = None,
    run: Callable[[Tensor], Any] | None = None,
) -> list[Tensor]:
    """What each module sees in its first run, (batch, tokens, width), while the outputs of others are edited.

    The modules must be in the order in which they run; the pass ends at the last of them.
    """
    ids = sketch.ids if ids is None else ids
    seen: dict[int, Tensor] = {}

    def look(number: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            value = first_tensor(args, named)
            if value is not None:
                seen.setdefault(number, value)
            if len(seen) == len(modules):
                raise _Enough

        return hook

    def change(edit: Edit) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            return (
                edit(output.view(*ids.shape, -1)).view(output.shape)
                if output.shape[-1] and _whole(output)
                else output
            )

        return hook

    def _whole(output: Tensor) -> bool:
        return output.numel() == ids.numel() * output.shape[-1]

    handles = [m.register_forward_pre_hook(look(n), with_kwargs=True) for n, m in enumerate(modules)]
    handles += [module.register_forward_hook(change(edit)) for module, edit in (edits or {}).items()]
    with hooked(handles), torch.no_grad(), contextlib.suppress(_Enough):
        (run or (lambda tokens: read(sketch.base, tokens)))(ids)
    missing = [n for n in range(len(modules)) if n not in seen]
    assert not missing, "a module that ran before does not run now"
    return [seen[n].reshape(*ids.shape, -1) for n in range(len(modules))]


def differ(one: Tensor, other: Tensor) -> Tensor:
    """For every row and token whether its numbers are others, (batch, tokens)."""
    one, other = one.detach(), other.detach()
    scale = max(float(one.abs().max()), 1e-30)
    return (one - other).abs().amax(dim=-1) > SAME * scale


def same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and not bool(differ(one, other).any())
