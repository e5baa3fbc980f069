"""What clients of text and of images share: training by a rule, the chain of defences, and the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from gradleak.clients import streaming
from gradleak.clients.aggregate import Mean
from gradleak.clients.training import finite, in_mode, local_training, plain_gradient
from gradleak.clients.wire import received
from gradleak.core.errors import GradleakError
from gradleak.core.memory import require
from gradleak.core.secret import Secret, drawing_from, generator
from gradleak.defenses import parse_defenses
from gradleak.defenses.base import Defense
from gradleak.defenses.chains import chain_gradient
from gradleak.models.base import Examples, Target
from gradleak.models.selection import selected
from gradleak.models.selection_text import ALL
from gradleak.models.tasks import Modality
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.manifest import KNOWABLE, Known, Manifest
from gradleak.updates.precision import DTYPES
from gradleak.updates.update import Update

ADVICE = (
    "take a smaller batch, train LoRA alone (--lora), or take fedsgd without defences that change numbers, whose "
    "gradient is written to the disk as it is made"
)
# What an attacker knows by default.
DEFAULT_KNOWN = ("batch_size",)


class Sender:
    """The part of a federated client that does not depend on what its examples are."""

    modality: ClassVar[Modality]
    knowable: ClassVar[tuple[str, ...]] = KNOWABLE  # what can be known of its batches

    def __init__(
        self,
        model: Target,
        known: Collection[str] = DEFAULT_KNOWN,
        client: ClientRule | str = "fedsgd",
        defenses: Sequence[Defense | str] = (),
        observe: str = ALL,
        aggregate: int = 1,
    ) -> None:
        """`known` is what the attacker knows beside the tensors, of `knowable`.

        `client` and `defenses` may be texts, as on the command line.
        `observe` is the part of the model whose tensors the update holds, such as `layer:6.query`; all is trained
        and defended as before, the rest does not reach the attacker.
        `aggregate` clients share a batch in equal parts; each trains and defends its own part, and the mean of what
        they send is all that reaches the attacker.
        """
        if model.modality != self.modality:
            raise GradleakError(f"{type(self).__name__} is for {self.modality}; {model.name} reads {model.examples}")
        unknown = sorted(set(known) - set(self.knowable))
        if unknown:
            raise GradleakError(
                f"known: unknown value {unknown[0]!r}; of {model.examples} there are {', '.join(self.knowable)}"
            )
        self.model = model
        self.known = tuple(name for name in self.knowable if name in known)
        self.rule = ClientRule.parse(client) if isinstance(client, str) else client
        self.defenses = [parse_defenses([d])[0] if isinstance(d, str) else d for d in defenses]
        self.observe, self.aggregate = observe, aggregate
        if aggregate > 1 and self.rule.pack is not None:
            raise GradleakError("pack: texts of several clients are not packed into one row; leave out aggregate")
        self.observed = set(selected(observe, model))

    def with_defenses(self, defenses: Sequence[Defense]) -> Self:
        """The same client with another chain of defences."""
        return type(self)(self.model, self.known, self.rule, defenses, self.observe, self.aggregate)

    def send(self, batch: Examples, targets: Tensor, secret: Secret | None, facts: Mapping[str, Any]) -> Update:
        """Train on a batch and give what would be sent; `facts` are what an attacker could know of it.

        Dropout and noise come from the secret, which repeats them; without one a fresh secret is drawn for the call.
        """
        require(
            self.memory_needed(batch), self.model.device, f"an update of {self.model.name} by {self._words}", ADVICE
        )
        tensors = self._sent(batch, targets, secret or Secret.draw())
        if not tensors:
            raise GradleakError(f"nothing of {self.observe!r} is left once the defences have acted")
        manifest = Manifest(
            task=self.model.task,
            family=self.model.family,
            model_fingerprint=self.model.fingerprint,
            client=self.rule,
            defenses=tuple(str(defense) for defense in self.defenses),
            known=Known(**{name: fact for name, fact in facts.items() if name in self.known}),
            clients=self.aggregate,
        )
        return Update(tensors, manifest)

    def _sent(self, batch: Examples, targets: Tensor, secret: Secret) -> Mapping[str, Tensor]:
        """What reaches the attacker: the client's own tensors, or the mean of several clients'."""
        if self.aggregate == 1:
            return (self._streamed if self.streams else self._defended)(batch, targets, secret)
        size, left = divmod(len(batch), self.aggregate)
        if left or not size:
            raise GradleakError(
                f"a batch of {len(batch)} cannot be shared by {self.aggregate} clients in equal parts"
            )
        mean = Mean()
        for number in range(self.aggregate):
            own = slice(number * size, (number + 1) * size)
            mean.add(self._defended(batch.part(own), targets[own], secret.child("client", number)))
        return mean.value()

    @property
    def _words(self) -> str:
        return " and ".join([str(self.rule), *map(str, self.defenses)])

    def memory_needed(self, batch: Examples) -> int:
        """Bytes that making an update takes beside the model: what is held of it at once, and activations."""
        parameters = self.model.parameters()
        digits = max(4, DTYPES[self.rule.precision].itemsize)
        sizes = [digits * parameters[name].numel() for name in self.trained]
        if self.streams:
            # A tied matrix gets a gradient from both of its ends, and a sum of them.
            return 3 * max(sizes) + self.model.activation_bytes(batch)
        own = -(-len(batch) // self.aggregate)
        examples = min(own, self.rule.batch) if self.rule.local else own
        copies = (
            1
            + (self.aggregate > 1)
            + sum(defense.copies(examples) for defense in self.defenses)
            + (self.rule.clip is not None)
        )
        if self.rule.local:  # the weights that move, what the optimiser keeps, and the way they went
            copies += 2 + (2 if self.rule.adaptive else bool(self.rule.momentum))
        return copies * sum(sizes) + self.model.activation_bytes(batch)

    @property
    def trained(self) -> list[str]:
        """The parameters that the defences leave to be trained."""
        names = list(self.model.parameters())
        for defense in self.defenses:
            names = defense.trained(names, self.model)
        return names

    @property
    def streams(self) -> bool:
        """Whether its update is written to a file as it is made: a large gradient that nothing needs as a whole."""
        rule = self.rule
        if (
            self.aggregate > 1
            or rule.local
            or rule.precision != "fp32"
            or rule.clip is not None
            or any(d.whole for d in self.defenses)
        ):
            return False
        parameters = self.model.parameters()
        return sum(4 * parameters[name].numel() for name in self.trained) >= streaming.STREAMED_FROM

    def _streamed(self, batch: Examples, targets: Tensor, secret: Secret) -> Mapping[str, Tensor]:
        """What `_defended` gives, tensor by tensor through a file."""
        names = [name for name in self.trained if name in self.observed]
        size = sum(4 * self.model.parameters()[name].numel() for name in names)
        with streaming.file_of_tensors(names, size) as (writer, mapped):

            def take(name: str, gradient: Tensor) -> None:
                if name in self.observed:
                    own = finite({name: gradient}, f"training by {self.rule}")
                    writer.add(name, received(own, self.model, self.rule, self.defenses)[name])

            with drawing_from(secret.child("dropout")), in_mode(self.model, self.rule.mode):
                streaming.stream_gradient(self.model, batch, targets, self.trained, take)
            return mapped() if writer.written else {}

    def _defended(self, batch: Examples, targets: Tensor, secret: Secret) -> dict[str, Tensor]:
        """What the client computes from its batch, after all defences, as it arrives, of what is observed."""
        names = self.trained
        generators = self._generators(secret)
        gradient = chain_gradient(self.defenses, generators) or plain_gradient
        with drawing_from(secret.child("dropout")):
            tensors = local_training(self.model, batch, targets, self.rule, names, gradient)
        for defense, own in zip(self.defenses, generators, strict=True):
            tensors = defense.apply(tensors, self.model, own)
        arrived = received(tensors, self.model, self.rule, self.defenses)
        return {name: tensor for name, tensor in arrived.items() if name in self.observed}

    def _generators(self, secret: Secret) -> list[torch.Generator]:
        """A stream for each defence: what one draws depends on no other, and stays when another is left out."""
        before: Counter[str] = Counter()
        generators = []
        for text in map(str, self.defenses):
            generators.append(generator(secret.child("defence", text, before[text])))
            before[text] += 1
        return generators
