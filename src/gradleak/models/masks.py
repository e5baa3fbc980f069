"""Masks that say for every token which others it sees, as a model's layers take them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.models.adapter import Adapter
from gradleak.models.hooks import of_this_thread


@dataclass(frozen=True)
class Sees:
    """Which tokens see which: `sees` is (tokens, what stands before and they themselves), `places` are positions.

    Tokens that stand side by side after the same prefix have the same position. What stands before may be in a cache;
    it is at the positions from 0 on.
    """

    sees: Tensor
    places: Tensor

    def within(self, window: int | None) -> Tensor:
        """The same where tokens see so many tokens, counted back from themselves."""
        if window is None:
            return self.sees
        cached = torch.arange(self.sees.shape[1] - len(self.places), device=self.places.device)
        keys = torch.cat([cached, self.places])
        return self.sees & (self.places[:, None] - keys[None] < window)


@contextmanager
def given(adapter: Adapter, mask: Tensor | Sees, rows: int) -> Iterator[Any]:
    """The mask in the form that the model takes for so many rows; a mask over tokens is taken as it is.

    Not all models leave it to the mask who sees whom. Where layers have a buffer for it, that is ours meanwhile.
    """
    if isinstance(mask, Tensor):
        yield mask
        return
    windows = adapter.windows
    buffer = adapter.family.window_mask
    if buffer is not None:
        holders = [layer.get_submodule(buffer.rpartition(".")[0]) for layer in adapter.layers]
        name = buffer.rpartition(".")[2]
        before = [getattr(holder, name) for holder in holders]
        try:
            for holder, window in zip(holders, windows, strict=True):
                setattr(holder, name, _square(mask.within(window)))
            yield _blocking(adapter, mask.sees, rows)
        finally:
            for holder, own in zip(holders, before, strict=True):
                setattr(holder, name, own)
        return
    masks = {window: _blocking(adapter, mask.within(window), rows) for window in dict.fromkeys(windows)}
    kinds = getattr(adapter.config, adapter.family.layer_kinds, None)
    if len(masks) == 1 or kinds is None:
        yield next(iter(masks.values()))
    else:  # a mask for every kind of layer
        yield {kind: masks[window] for kind, window in zip(kinds, windows, strict=False)}


@contextmanager
def placed(adapter: Adapter, positions: Tensor | None) -> Iterator[dict[str, Any]]:
    """Positions, (1, tokens), as arguments of the model; put in on the way where a model counts them itself."""
    if positions is None or not adapter.counts_positions:
        yield {} if positions is None else {"position_ids": positions}
        return
    with ExitStack() as stack:
        if adapter.position_counter is not None:
            stack.enter_context(_counted(adapter.position_counter, positions[0]))
        for attention in adapter.position_biases:
            stack.enter_context(_apart(attention, positions[0]))
        yield {}


@contextmanager
def _counted(table: nn.Module, places: Tensor) -> Iterator[None]:
    """The table read at these positions."""
    handle = table.register_forward_pre_hook(
        of_this_thread(lambda _, args, named: (args, {**named, "position_ids": places})), with_kwargs=True
    )
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _apart(attention: Any, places: Tensor) -> Iterator[None]:
    """The attention's scores by how far these positions are apart."""
    own, length = attention.compute_bias, int(places.max()) + 1

    def ours(*_: Any, **__: Any) -> Tensor:
        bias: Tensor = own(length, length)
        return bias[:, :, places[:, None], places[None]]

    attention.compute_bias = ours
    try:
        yield
    finally:
        del attention.compute_bias


def _blocking(adapter: Adapter, sees: Tensor, rows: int) -> Tensor:
    """What is added to the attention's scores, (rows, 1, tokens, tokens)."""
    dtype = adapter.dtype
    blocked = torch.zeros(sees.shape, dtype=dtype, device=sees.device)
    blocked.masked_fill_(~sees, torch.finfo(dtype).min)
    return blocked[None, None].expand(rows, -1, -1, -1)


def _square(sees: Tensor) -> Tensor:
    """As a buffer over all positions, of which a model takes the last rows."""
    queries, keys = sees.shape
    whole = torch.ones(keys, keys, dtype=torch.bool, device=sees.device)
    whole[keys - queries :] = sees
    return whole[None, None]
