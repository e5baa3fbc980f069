"""Pictures as simulated training sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gradleak.clients.images import ImageClient
from gradleak.core.secret import Secret
from gradleak.data.pictures import Pictures
from gradleak.models.image import ImageModel
from gradleak.training.classes import classification_metrics
from gradleak.training.learner import Learner, percent
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.update import Update


@dataclass(frozen=True)
class ImageExample:
    """A picture by its number among all of them, and its class."""

    number: int
    label: int


class ImageLearner(Learner[ImageExample]):
    def __init__(self, pictures: Pictures) -> None:
        self.pictures = pictures

    def pool(self, max_tokens: int) -> list[ImageExample]:
        return [ImageExample(number, label) for number, label in enumerate(self.pictures.labels)]

    def client(self, model: ImageModel, rule: ClientRule, defenses: Sequence[str]) -> ImageClient:
        return ImageClient(model, client=rule, defenses=defenses)

    def update(self, client: ImageClient, examples: Sequence[ImageExample], secret: Secret | None = None) -> Update:
        return client.update(self._some(examples), secret)

    def quality(self, model: ImageModel, examples: Sequence[ImageExample]) -> dict[str, float]:
        chosen = self._some(examples)
        with torch.no_grad():
            predicted = model.logits(chosen.values(model.device)).argmax(dim=-1).tolist()
        return percent(classification_metrics(list(chosen.labels), predicted, model.num_labels))

    def _some(self, examples: Sequence[ImageExample]) -> Pictures:
        return self.pictures.some([example.number for example in examples])
