"""Attacks: they read updates and nothing else; attacks on images also auxiliary images of the attacker's own."""

from __future__ import annotations

from gradleak.attacks.base import Attack
from gradleak.attacks.images.base import ImageAttack
from gradleak.core.registry import Registry
from gradleak.models.tasks import Modality

ATTACKS: Registry[type[Attack]] = Registry(
    "attack",
    {
        "auto": "gradleak.attacks.auto:Auto",
        "bag": "gradleak.attacks.bag:Bag",
        "control": "gradleak.attacks.control:Control",
        "exact": "gradleak.attacks.exact.attack:Exact",
        "film": "gradleak.attacks.film.attack:Film",
        "dlg": "gradleak.attacks.search.dlg:Dlg",
        "lamp-cos": "gradleak.attacks.search.lamp:LampCos",
        "lamp-l2": "gradleak.attacks.search.lamp:LampL2",
        "lamp-l2l1": "gradleak.attacks.search.lamp:LampL2L1",
        "lti": "gradleak.attacks.inversion.attack:Lti",
        "soft": "gradleak.attacks.soft.attack:Soft",
        "subspace": "gradleak.attacks.search.subspace:Subspace",
        "tag": "gradleak.attacks.search.tag:Tag",
    },
    base=Attack,
    group="gradleak.attacks",
)
IMAGE_ATTACKS: Registry[type[Attack]] = Registry(
    "attack on images",
    {
        "control": "gradleak.attacks.images.control:ImageControl",
        "exact": "gradleak.attacks.images.exact:ImageExact",
        "gi-gip": "gradleak.attacks.images.gip:GiGip",
        "ig": "gradleak.attacks.images.ig:Ig",
        "lti": "gradleak.attacks.images.lti:ImageLti",
    },
    base=ImageAttack,
    group="gradleak.image_attacks",
)
DEFAULT_ATTACK: dict[Modality, str] = {"text": "auto", "images": "lti"}


def attacks_for(modality: Modality) -> Registry[type[Attack]]:
    """The attacks on models that read text, or images."""
    return ATTACKS if modality == "text" else IMAGE_ATTACKS
