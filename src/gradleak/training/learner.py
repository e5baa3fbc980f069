"""What simulated training asks of a kind of data: examples, a client that sends updates, how good a model is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from gradleak.clients.sender import Sender
from gradleak.core.secret import Secret
from gradleak.models.base import Target
from gradleak.training.classes import classification_metrics
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.update import Update


class Labelled(Protocol):
    """An example with its class; 0 where there are none."""

    @property
    def label(self) -> int: ...


Example = TypeVar("Example", bound=Labelled)


class Learner(ABC, Generic[Example]):
    """One kind of data, as simulated federated training sees it."""

    @abstractmethod
    def pool(self, max_tokens: int) -> list[Example]:
        """All examples that the model can take; text of more tokens is passed over."""

    @abstractmethod
    def client(self, model: Any, rule: ClientRule, defenses: Sequence[str]) -> Sender:
        """A client that trains this model."""

    @abstractmethod
    def update(self, client: Any, examples: Sequence[Example], secret: Secret | None = None) -> Update:
        """What the client sends of some examples; all that it draws comes from the secret, or from a fresh one."""

    @abstractmethod
    def quality(self, model: Any, examples: Sequence[Example]) -> dict[str, float]:
        """How good a model is on held-out examples: accuracy, F1 and MCC in percent, or perplexity."""

    def majority(self, model: Target, examples: Sequence[Example]) -> dict[str, float]:
        """The quality of always predicting the commonest class; empty where there are no classes."""
        labels = [example.label for example in examples]
        common = Counter(labels).most_common(1)[0][0]
        return percent(classification_metrics(labels, [common] * len(labels), model.num_labels))


def percent(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: round(100 * value, 2) for name, value in metrics.items()}
