"""What every target is, whether it reads text or images: weights with names, a task, and a loss over a batch."""

from __future__ import annotations

import copy
import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from gradleak.core.progress import Progress
from gradleak.models.four_bit import FourBit
from gradleak.models.stored import readable
from gradleak.models.tasks import Modality, TargetTask

if TYPE_CHECKING:
    from gradleak.updates.manifest import Known

# Numbers of a weight that are hashed at a time, as fp32.
HASHED_AT_ONCE = 1 << 24


class Examples(Protocol):
    """The private examples of one local step, in the form their target takes them."""

    def __len__(self) -> int: ...

    def part(self, which: slice) -> Self:
        """Some of the examples, for a smaller step."""


class Target(ABC):
    """A model under audit, as the client, its defences and the update know it.

    What belongs to text or to images alone is added by `TextModel` and `ImageModel`.
    """

    module: Any
    name: str
    task: TargetTask
    modality: ClassVar[Modality]
    examples: ClassVar[str]  # what its examples are called, for messages
    all_layers: ClassVar[str | None] = None  # the selection of all layers, where a model is more than its layers

    @property
    @abstractmethod
    def family(self) -> str:
        """The architecture an update must belong to."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What whoever reads a result must know of the model's weights, such as that its head is new."""
        return ()

    @property
    def adapters(self) -> str | None:
        """The settings of the LoRA adapters that are trained in the place of its weights; None without any."""
        return None

    @property
    def fresh_lora(self) -> str | None:
        """The same of adapters that `lora` put on it, as `lora` takes them."""
        return None

    def announce(self, progress: Progress) -> None:
        """Show the notes where work with the model begins, once nothing is left that could be refused."""
        for note in self.notes:
            progress.message(note)

    @property
    @abstractmethod
    def num_labels(self) -> int: ...

    @property
    @abstractmethod
    def layers(self) -> Sequence[nn.Module]:
        """The layers that a selection numbers, from 1."""

    @property
    @abstractmethod
    def sections(self) -> Mapping[str, Sequence[nn.Module]]:
        """What else a selection can name, such as the head."""

    @abstractmethod
    def layer_tensors(self, number: int) -> Mapping[str, Sequence[str]]:
        """The names of the tensors of each role in a layer; roles that live in one matrix have the same."""

    def layer_parameters(self, number: int) -> list[str]:
        """The names of all that is trained in a layer."""
        return self.parameters_in([self.layers[number - 1]])

    @property
    def layer_count(self) -> int:
        return len(self.layers)

    @property
    def layer_roles(self) -> list[tuple[str, ...]]:
        """The single modules that every layer has; roles that live in one matrix are one module."""
        first, *others = (self.layer_tensors(number) for number in range(1, self.layer_count + 1))
        common = [role for role in first if all(role in other for other in others)]
        return list(dict.fromkeys(fused_with(first, role) for role in common))

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The trainable parameters by name; a tied matrix appears once."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def parameters_in(self, modules: Iterable[nn.Module]) -> list[str]:
        """The names of all that is trained inside the modules; a tied matrix is inside all of its owners."""
        owned = {id(parameter) for module in modules for parameter in module.parameters()}
        return [name for name, parameter in self.parameters().items() if id(parameter) in owned]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of all weights, which shows whether an update was made with this very model."""
        return fingerprint_of(readable(self.module))

    @abstractmethod
    def identity(self) -> str:
        """A hash of all of the model that a result depends on: weights, configuration, tokenizer."""

    @abstractmethod
    def copied(self, frozen: bool = True) -> Self:
        """A model of its own with the same weights, in the same mode.

        Without `frozen` it shares what is not trained, which must then stay as it is.
        """

    def _copied_module(self, frozen: bool) -> Any:
        shared = {} if frozen else {id(p): p for p in self.module.parameters() if not p.requires_grad}
        return copy.deepcopy(self.module, shared)

    @abstractmethod
    def batch_loss(self, batch: Any, targets: Tensor) -> Tensor:
        """The mean loss of a batch, as a client trains with it."""

    def predictions(self, batch: Any, targets: Tensor) -> int:
        """Over how many losses `batch_loss` is the mean."""
        return len(batch)

    def activation_bytes(self, batch: Any) -> int:
        """About how much a backward pass over a batch keeps beside weights and gradients; 0 if it is little."""
        return 0

    @abstractmethod
    def example_losses(self, batch: Any, targets: Tensor) -> Tensor:
        """The loss of every example, (batch,), computed so that Opacus can separate the examples."""

    @abstractmethod
    def check_known(self, known: Known) -> None:
        """Refuse what a manifest says is known if it cannot be true of this model."""


def fused_with(tensors: Mapping[str, Sequence[str]], role: str) -> tuple[str, ...]:
    """The roles of a layer that live in one matrix with this one, itself included, in the layer's order.

    >>> fused_with({"query": ["attn.weight"], "key": ["attn.weight"], "ffn_in": ["fc.weight"]}, "key")
    ('query', 'key')
    """
    return tuple(other for other, names in tensors.items() if names == tensors[role])


def fingerprint_of(weights: Mapping[str, Tensor | FourBit]) -> str:
    """A hash of named weights, whatever their order and precision."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items(), key=lambda each: each[0]):
        digest.update(name.encode())
        numbers = weight.unpacked() if isinstance(weight, FourBit) else weight
        for part in numbers.detach().reshape(-1).split(HASHED_AT_ONCE):
            digest.update(part.float().cpu().contiguous().numpy())
    return digest.hexdigest()[:32]
