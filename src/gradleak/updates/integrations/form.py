"""A model as other tools name it: which of their tensors are its parameters, and under which names we keep them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.models.adapter_names import MOST_PREFIXES, by_plain_name, spellings
from gradleak.models.discovery.choose import chosen_family
from gradleak.models.families import Task
from gradleak.models.objective import task_of

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Form:
    """What an update of a model must look like, without its weights, so that it travels to every client cheaply.

    `others` are names a state dict may hold beside parameters: buffers, and second names of tied parameters. Of a
    model with adapters `trained` are the parameters that travel; empty: all do.
    """

    task: Task
    family: str
    parameters: Mapping[str, Shape]
    others: frozenset[str]
    state: tuple[str, ...]
    trained: frozenset[str] = frozenset()
    plain: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, module: Any) -> Form:
        """The form of a Hugging Face model, with or without peft adapters."""
        plain = bare(module)
        named = {name: tuple(p.shape) for name, p in plain.named_parameters()}
        state = tuple(plain.state_dict())
        others = frozenset(state) - named.keys() | {name for name, _ in plain.named_buffers()}
        adapted = hasattr(plain, "peft_config")
        trained = frozenset(name for name, p in plain.named_parameters() if adapted and p.requires_grad)
        # What is trained comes first: a head that an adapter brings has the name of the one it replaces.
        names = by_plain_name(sorted((*named, *others), key=lambda name: name not in trained))
        family = chosen_family(plain.config)
        return cls(task_of(plain, family), family.name, named, others, state, trained, names)

    def named(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors that are parameters, under their names in the model; buffers and second names are left out.

        Names may carry a wrapper's prefix (`model.`, `base_model.model.`) or lack peft's adapter name. Tensors that
        are only numbered are taken in the order of the model's state dict, or of its parameters.
        """
        if tensors and all(name.isdigit() for name in tensors):
            tensors = self._in_order([tensors[name] for name in sorted(tensors, key=int)])
        parameters: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            parameter = self._resolved(name)
            if parameter is None:
                raise GradleakError(
                    f"{name[:80]!r} is no parameter of the {self.family} model; is it another model's?"
                )
            if parameter in self.others:
                continue
            if tuple(tensor.shape) != self.parameters[parameter]:
                raise GradleakError(
                    f"{parameter} has shape {list(tensor.shape)}, the model's has {list(self.parameters[parameter])}"
                )
            if parameter in parameters:
                raise GradleakError(f"the parameter {parameter} occurs twice")
            parameters[parameter] = tensor
        if not parameters:
            raise GradleakError("there is no parameter of the model among the tensors")
        return parameters

    def _resolved(self, name: str) -> str | None:
        """The parameter, or what is none, that a name stands for; the name of an adapter may be another one."""
        exact = (name.split(".", prefixes)[-1] for prefixes in range(MOST_PREFIXES + 1))
        for each in exact:
            if each in self.parameters or each in self.others:
                return each
        return next((self.plain[each] for each in spellings(name) if each in self.plain), None)

    def _in_order(self, tensors: list[Tensor]) -> dict[str, Tensor]:
        adapters = tuple(name for name in self.state if name in self.trained)  # all that clients with adapters send
        for names in (self.state, tuple(self.parameters), adapters):
            if len(names) == len(tensors):
                return dict(zip(names, tensors, strict=True))
        raise GradleakError(
            f"{len(tensors)} tensors without names; the model's state dict has {len(self.state)}, "
            f"its parameters are {len(self.parameters)}"
        )


def bare(module: Any) -> Any:
    """The Hugging Face model itself, with peft's adapters in its layers if it has some."""
    plain = module.get_base_model() if hasattr(module, "get_base_model") else module
    if not hasattr(plain, "config") or not hasattr(plain, "named_parameters"):
        raise GradleakError(f"{type(module).__name__} is not a Hugging Face model")
    return plain


def difference(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights before minus weights after, of the parameters that moved: the others were not trained.

    >>> import torch
    >>> difference({"a": torch.ones(2), "b": torch.ones(1)}, {"a": torch.zeros(2), "b": torch.ones(1)})
    {'a': tensor([1., 1.])}
    """
    missing = sorted(after.keys() - before.keys())
    if missing:
        raise GradleakError(f"{missing[0]} is among the weights after training and not among those before")
    moved = {name: before[name].detach().float().cpu() - after[name].detach().float().cpu() for name in after}
    moved = {name: tensor for name, tensor in moved.items() if bool((tensor != 0).any())}
    if not moved:
        raise GradleakError("no weight has moved")
    return moved
