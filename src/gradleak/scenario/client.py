"""The honest side: a client that trains on private texts and shares an update."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from gradleak.errors import GradleakError
from gradleak.models.target import Batch, TargetModel
from gradleak.update import GRANTS, ClientRule, Known, Manifest, Update

# What the published attacks take as given. Printed with every result.
PAPER_GRANTS = ("batch_size", "labels", "lengths")


class Client:
    """A federated client under FedSGD: one gradient of the mean loss over its batch, model in eval mode.

    >>> from gradleak import Client, load_model
    >>> client = Client(load_model("minilm"))
    >>> update = client.update(["Her biopsy came back clear."], labels=[0])
    >>> update.known.labels, round(float(update.tensors["classifier.bias"].abs().sum()), 3) > 0
    ((0,), True)
    """

    def __init__(self, model: TargetModel, known: Collection[str] = PAPER_GRANTS) -> None:
        strange = set(known) - set(GRANTS)
        if strange:
            raise GradleakError(f"unknown grant {sorted(strange)[0]!r}; known: {', '.join(GRANTS)}")
        self.model = model
        self.known = tuple(name for name in GRANTS if name in known)

    def update(self, texts: Sequence[str], labels: Sequence[int | str] | None = None) -> Update:
        """Train one step on the texts and return what would be sent.

        Classification needs a label a text: a class number, or a class name the model's config knows.
        """
        if not texts:
            raise GradleakError("a client needs at least one text")
        batch = self.model.encode(texts)
        classes = self._classes(texts, labels)
        gradients = self._gradients(batch, classes)
        known = Known(
            batch_size=len(texts) if "batch_size" in self.known else None,
            labels=tuple(classes) if "labels" in self.known and classes is not None else None,
            lengths=tuple(batch.lengths) if "lengths" in self.known else None,
        )
        manifest = Manifest(
            task=self.model.task,
            family=self.model.adapter.family.name,
            model_fingerprint=self.model.fingerprint,
            client=ClientRule(name="fedsgd"),
            known=known,
        )
        return Update(gradients, manifest)

    def _classes(self, texts: Sequence[str], labels: Sequence[int | str] | None) -> list[int] | None:
        if self.model.task == "causal-lm":
            return None
        if labels is None or len(labels) != len(texts):
            raise GradleakError(
                f"classification needs one label a text: {len(texts)} texts, {len(labels or ())} labels"
            )
        return [class_number(self.model, label) for label in labels]

    def _gradients(self, batch: Batch, classes: list[int] | None) -> dict[str, torch.Tensor]:
        targets = batch.ids if classes is None else torch.tensor(classes, device=self.model.device)
        parameters = self.model.parameters()
        loss = self.model.loss(targets, ids=batch.ids, mask=batch.mask)
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        # A parameter the loss does not reach is not trained, so nothing is sent for it.
        return {name: g.detach() for name, g in zip(parameters, gradients, strict=True) if g is not None}


def class_number(model: TargetModel, label: int | str) -> int:
    """The class a label means: its number, or its name in the model's config."""
    if isinstance(label, str):
        names = {str(k).lower(): int(v) for k, v in (model.module.config.label2id or {}).items()}
        if label.lower() not in names:
            raise GradleakError(f"label {label!r} is not a class of {model.name}; it has {', '.join(names)}")
        return names[label.lower()]
    if not 0 <= label < model.num_labels:
        raise GradleakError(
            f"label {label} is out of range: {model.name} has classes 0 to {model.num_labels - 1} "
            "(a new head can have more: --num-labels)"
        )
    return label
