"""The honest side: a client that trains on private texts and shares an update."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.clients.sender import Sender
from gradleak.core.errors import GradleakError
from gradleak.core.privacy import private
from gradleak.core.secret import Secret
from gradleak.models.completion import Places
from gradleak.models.text import TextModel
from gradleak.models.training_batch import training_batch
from gradleak.updates.update import Update


class Client(Sender):
    """A federated client: trains on its texts by its rule, defends the result, and sends it.

    >>> from gradleak import Client, load_model
    >>> client = Client(load_model("minilm"), known=("batch_size", "labels"))
    >>> update = client.update(["Her biopsy came back clear."], labels=[0])
    >>> update.known.labels, round(float(update.tensors["classifier.bias"].abs().sum()), 3) > 0
    ((0,), True)
    """

    model: TextModel
    modality = "text"

    def update(
        self,
        texts: Sequence[str],
        labels: Sequence[int | str] | None = None,
        secret: Secret | None = None,
        completions: Sequence[Places | None] | None = None,
    ) -> Update:
        """Train on the texts and return what would be sent; the same secret draws the same dropout and noise.

        Classification needs one label per text: a class number, or a class name of the model's config.
        `completions` says for each text from which to before which character its answers stand, for a rule by which
        only they are predicted; a text without is searched for the rule's marker.
        """
        if not texts:
            raise GradleakError("a client needs at least one text")
        classes = self._classes(texts, labels)
        batch, targets = training_batch(self.model, texts, classes, self.rule, completions)
        # To the attacker a sentence is what the model sees as one: a packed row, or every text in it.
        sentences, _ = batch.apart(targets)
        facts = {"batch_size": len(sentences), "labels": classes, "lengths": sentences.lengths}
        return self.send(batch, targets, secret, facts)

    def _classes(self, texts: Sequence[str], labels: Sequence[int | str] | None) -> list[int] | None:
        if self.model.task == "causal-lm":
            return None
        if labels is None or len(labels) != len(texts):
            raise GradleakError(
                f"classification needs one label per text: {len(texts)} texts, {len(labels or ())} labels"
            )
        return [class_number(self.model, label) for label in labels]


def class_number(model: TextModel, label: int | str) -> int:
    """The class a label means: its number, or its name in the model's config."""
    if isinstance(label, str):
        names = {str(k).lower(): int(v) for k, v in (model.module.config.label2id or {}).items()}
        if label.lower() not in names:
            raise GradleakError(
                f"label {private(repr(label))} is not a class of {model.name}; it has {', '.join(names)}, or the "
                f"numbers 0 to {model.num_labels - 1}"
            )
        return names[label.lower()]
    if not 0 <= label < model.num_labels:
        raise GradleakError(
            f"label {private(str(label))} is out of range: {model.name} has classes 0 to {model.num_labels - 1} "
            "(a new head can have more: --num-labels)"
        )
    return label
