"""The honest side: a client that trains on private texts and shares an update."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from gradleak.clients.sender import DEFAULT_GRANTS, Sender
from gradleak.core.errors import GradleakError
from gradleak.defenses.base import Defense
from gradleak.models.selection import ALL, selected
from gradleak.models.text import TextModel
from gradleak.updates.update import ClientRule, Known, Update


class Client(Sender):
    """A federated client: trains on its texts by its rule, defends the result, and sends it.

    >>> from gradleak import Client, load_model
    >>> client = Client(load_model("minilm"), known=("batch_size", "labels"))
    >>> update = client.update(["Her biopsy came back clear."], labels=[0])
    >>> update.known.labels, round(float(update.tensors["classifier.bias"].abs().sum()), 3) > 0
    ((0,), True)
    """

    def __init__(
        self,
        model: TextModel,
        known: Collection[str] = DEFAULT_GRANTS,
        client: ClientRule | str = "fedsgd",
        defenses: Sequence[Defense | str] = (),
        observe: str = ALL,
    ) -> None:
        """`known` is what the attacker is told; `client` and `defenses` may be texts, as on the command line.

        `observe` is the part of the model whose tensors the update holds, such as `layer:6.query`; all is trained
        and defended as before, the rest does not reach the attacker.
        """
        super().__init__(known, client, defenses)
        self.model: TextModel = model
        self.observe = observe
        self.observed = set(selected(observe, model))

    def update(self, texts: Sequence[str], labels: Sequence[int | str] | None = None, seed: int = 0) -> Update:
        """Train on the texts and return what would be sent; `seed` fixes dropout and noise.

        Classification needs a label a text: a class number, or a class name the model's config knows.
        """
        if not texts:
            raise GradleakError("a client needs at least one text")
        batch = self.model.encode(texts)
        classes = self._classes(texts, labels)
        targets = batch.ids if classes is None else torch.tensor(classes, device=self.model.device)
        tensors = self.defended(batch, targets, seed)
        tensors = {name: tensor for name, tensor in tensors.items() if name in self.observed}
        if not tensors:
            raise GradleakError(f"nothing of {self.observe!r} is left once the defences have acted")
        known = Known(
            batch_size=len(texts) if "batch_size" in self.known else None,
            labels=tuple(classes) if "labels" in self.known and classes is not None else None,
            lengths=tuple(batch.lengths) if "lengths" in self.known else None,
        )
        return self.sent(tensors, known)

    def _classes(self, texts: Sequence[str], labels: Sequence[int | str] | None) -> list[int] | None:
        if self.model.task == "causal-lm":
            return None
        if labels is None or len(labels) != len(texts):
            raise GradleakError(
                f"classification needs one label a text: {len(texts)} texts, {len(labels or ())} labels"
            )
        return [class_number(self.model, label) for label in labels]


def class_number(model: TextModel, label: int | str) -> int:
    """The class a label means: its number, or its name in the model's config."""
    if isinstance(label, str):
        names = {str(k).lower(): int(v) for k, v in (model.module.config.label2id or {}).items()}
        if label.lower() not in names:
            raise GradleakError(
                f"label {label!r} is not a class of {model.name}; it has {', '.join(names)}, or the "
                f"numbers 0 to {model.num_labels - 1}"
            )
        return names[label.lower()]
    if not 0 <= label < model.num_labels:
        raise GradleakError(
            f"label {label} is out of range: {model.name} has classes 0 to {model.num_labels - 1} "
            "(a new head can have more: --num-labels)"
        )
    return label
