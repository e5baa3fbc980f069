"""What every attack on image models is."""

from __future__ import annotations

from gradleak.attacks.base import Attack


class ImageAttack(Attack):
    """A method of reading images back from updates of an `ImageModel`.

    It may look at the updates, the model and the context's auxiliary images, which are the attacker's own.
    """

    modality = "images"
