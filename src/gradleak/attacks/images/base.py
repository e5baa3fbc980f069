"""What every attack on image models is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from gradleak.attacks.base import Method, Reconstruction
from gradleak.core.budget import Budget
from gradleak.core.progress import Progress
from gradleak.data.pictures import Pictures
from gradleak.models.image import ImageModel
from gradleak.updates.update import Update


class ImageAttack(Method, ABC):
    """One method of reading images back from updates.

    It may look at the updates, the model and the auxiliary images, which are the attacker's own: of the same kind as
    the private ones, and none of them.
    """

    needs_auxiliary: ClassVar[bool] = False

    @abstractmethod
    def run(
        self,
        updates: Sequence[Update],
        model: ImageModel,
        *,
        auxiliary: Pictures | None,
        budget: Budget,
        progress: Progress,
        seeds: Sequence[int],
    ) -> list[Reconstruction]:
        """Attack independent updates of one model; one reconstruction each, in order.

        `seeds` fixes all randomness, one number an update.
        """
