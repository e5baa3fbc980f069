"""What single layers of a model see, without running the rest of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from gradleak.models.adapter import Part
from gradleak.models.hooks import of_this_thread
from gradleak.models.masks import Sees, given, placed
from gradleak.models.text import TextModel


class _Reached(Exception):  # noqa: N818 - it is no error
    """The last wanted input has been seen; the forward pass need not go on."""


class Probe:
    """Runs a model up to some of its linear modules and returns what enters them."""

    def __init__(self, model: TextModel, parts: Sequence[Part]) -> None:
        """`parts` are in the order in which the model runs them."""
        self.model = model
        self.parts = parts

    def __call__(self, *, mask: Tensor | Sees, cache: Any = None, **inputs: Any) -> list[Tensor]:
        """The inputs of the parts, (batch, positions, width) each; `inputs` are those of the base model.

        `mask` says which tokens are real, (batch, positions), or which of them see which.
        `cache` has the keys and values of what stands before; it is written to, and of no use afterwards.
        """
        seen: dict[int, Tensor] = {}
        handles = [
            part.module.register_forward_pre_hook(of_this_thread(self._catch(i, seen)))
            for i, part in enumerate(self.parts)
        ]
        extra: dict[str, Any] = {} if cache is None else {"past_key_values": cache}
        if self.model.adapter.family.kind == "decoder":
            extra["use_cache"] = cache is not None
        batch, positions = next(inputs[name] for name in ("input_ids", "inputs_embeds") if name in inputs).shape[:2]
        try:
            places, adapter = inputs.pop("position_ids", None), self.model.adapter
            with given(adapter, mask, batch) as attention, placed(adapter, places) as where:
                self.model.run(attention_mask=attention, **where, **extra, **inputs)
        except _Reached:
            pass
        finally:
            for handle in handles:
                handle.remove()
        # Some models run all tokens of a batch through their feed-forward blocks as one list.
        states = [seen[i] for i in range(len(self.parts))]
        return [each if each.dim() == 3 else each.view(batch, positions, -1) for each in states]

    def _catch(self, number: int, seen: dict[int, Tensor]) -> Callable[..., None]:
        def hook(module: Any, arguments: tuple[Any, ...]) -> None:
            # The first run counts: shared layers run again, and some matrices see other things afterwards.
            seen.setdefault(number, arguments[0])
            if number == len(self.parts) - 1:
                raise _Reached

        return hook
