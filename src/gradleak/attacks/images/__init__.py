"""Attacks on the updates of image models: they read updates, and the auxiliary images an attacker holds."""

from __future__ import annotations

from gradleak.attacks.images.base import ImageAttack
from gradleak.core.registry import Registry

IMAGE_ATTACKS: Registry[type[ImageAttack]] = Registry(
    "attack on images",
    {
        "control": "gradleak.attacks.images.control:ImageControl",
        "gi-gip": "gradleak.attacks.images.gip:GiGip",
        "ig": "gradleak.attacks.images.ig:Ig",
        "lti": "gradleak.attacks.images.lti:ImageLti",
    },
    base=ImageAttack,
    group="gradleak.image_attacks",
)
