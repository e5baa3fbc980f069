"""The honest side: a client that trains on private texts and shares an update."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.clients.sender import Sender
from gradleak.core.errors import GradleakError
from gradleak.core.secret import Secret, generator
from gradleak.models.tasks.base import GivenLabel, Places
from gradleak.models.text import TextModel
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
        labels: Sequence[GivenLabel] | None = None,
        secret: Secret | None = None,
        completions: Sequence[Places | None] | None = None,
    ) -> Update:
        """Train on the texts and return what would be sent; the same secret draws the same dropout and noise.

        Tasks with labels need one per text: a class by number or by its name in the model's config, a number for
        regression, a list of classes for multi-label, a tag for each word for token-classification, and for seq2seq
        the target, a text.
        `completions` says for each text from which to before which character its answers stand, for a rule by which
        only they are predicted; a text without is searched for the rule's marker.
        """
        if not texts:
            raise GradleakError("a client needs at least one text")
        secret = secret or Secret.draw()
        task = self.model.goal
        own = task.labels(self.model, texts, labels)
        drawing = generator(secret.child("targets"))
        batch, targets = task.examples(self.model, texts, own, self.rule, drawing, completions)
        # To the attacker a sentence is what the model sees as one: a packed row, or every text in it.
        sentences, _ = batch.apart(targets)
        facts = {
            "batch_size": len(sentences),
            # The second text of a pair is as private as the first.
            "labels": None if task.paired else task.known_labels(self.model, texts, own),
            "lengths": sentences.lengths,
        }
        return self.send(batch, targets, secret, facts)
