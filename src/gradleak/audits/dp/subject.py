"""What both checks are about: a client, what its defences promise, and the gradients of single examples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.audits.dp.check import Tensors
from gradleak.audits.modality import MODALITIES
from gradleak.audits.run import load_target
from gradleak.audits.spec import AuditSpec
from gradleak.clients.text import Client
from gradleak.core.errors import GradleakError
from gradleak.core.progress import Progress
from gradleak.data.draws import TextBatch
from gradleak.data.texts import Row
from gradleak.defenses import parse_defenses
from gradleak.defenses.base import Defense, Promise
from gradleak.models.tasks.base import GivenLabel
from gradleak.models.text import TextModel, text_target


@dataclass(frozen=True)
class Subject:
    """A client under check, with the data that its examples are drawn from."""

    spec: AuditSpec
    rows: Sequence[Row]
    client: Client
    promise: Promise

    @property
    def model(self) -> TextModel:
        return self.client.model

    @property
    def defenses(self) -> list[str]:
        return [str(defense) for defense in self.client.defenses]

    @property
    def clip(self) -> float | None:
        """The norm that single examples are clipped to; None if no defence says it."""
        return next((getattr(each, "clip", None) for each in self.client.defenses if each.clips), None)

    def drawn(self, examples: int) -> TextBatch:
        """So many examples of the data."""
        text = MODALITIES.get("text")
        (batch,) = text.draw(self.spec.with_(batch_size=examples, trials=1), self.rows, self.model)
        assert isinstance(batch, TextBatch)
        return batch

    def gradients(
        self, texts: Sequence[str], labels: Sequence[GivenLabel] | None, progress: Progress
    ) -> list[Tensors]:
        """Every text's own gradient, of the parameters that the client trains."""
        return own_gradients(self.client, texts, labels, progress)


def subject(
    spec: AuditSpec,
    noise: float | None,
    model: TextModel | None,
    defenses: Sequence[Defense] | None,
    progress: Progress,
    moved: bool = False,
) -> Subject:
    """The client of a spec; a loaded model and defences as objects may take the place of those that the spec names.

    `moved`: its model is a copy, which the check trains.
    """
    progress.begin("reading data", 0)
    rows = MODALITIES.get("text").read(spec)  # before the model: a file that is wrong is an error at once
    chain = list(defenses) if defenses is not None else parse_defenses(spec.defenses)
    promise = promised(chain, noise)
    model = model or text_target(load_target(spec, progress), "dp-check")
    target = model.copied(frozen=False) if moved else model
    return Subject(spec, rows, Client(target, client=spec.client, defenses=chain), promise)


def promised(defenses: Sequence[Defense], noise: float | None) -> Promise:
    """What a chain of defences promises, with the noise multiplier that the user says it has, if any."""
    promise = next((each for each in (defense.promise() for defense in defenses) if each is not None), None)
    if noise:
        return Promise(noise) if promise is None else promise._replace(noise=noise)
    if promise is None:
        raise GradleakError(
            "none of the defences promises differential privacy; give --defense dpsgd:noise=1.0,clip=1.0, one of "
            "your own with a promise, or --noise"
        )
    return promise


def promised_loss(promise: Promise, times: int) -> float:
    """By how many deviations of the noise an example that is in so many mini-batches may move an update.

    >>> promised_loss(Promise(2.0), 4), promised_loss(Promise(2.0, whole=True), 4)
    (1.0, 0.5)
    """
    return math.sqrt(1 if promise.whole else times) / promise.noise


def own_gradients(
    client: Client, texts: Sequence[str], labels: Sequence[GivenLabel] | None, progress: Progress
) -> list[Tensors]:
    """Every text's own gradient, of the parameters that the client trains."""
    plain, trained = Client(client.model), set(client.trained)
    found: list[Tensors] = []
    progress.begin("gradients of candidates", len(texts), "texts")
    for number, text in enumerate(texts):
        tensors = plain.update([text], None if labels is None else [labels[number]]).tensors
        found.append({name: tensor for name, tensor in tensors.items() if name in trained})
        progress.advance(number + 1)
    progress.end()
    return found


def flat(tensors: Tensors, names: Iterable[str], dtype: torch.dtype = torch.float) -> Tensor:
    """The named tensors as one vector, those that are missing left out."""
    return torch.cat([tensors[name].detach().flatten().to("cpu", dtype) for name in names if name in tensors])
