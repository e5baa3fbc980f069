"""Attacks: they read updates and nothing else."""

from __future__ import annotations

from gradleak.attacks.base import Attack
from gradleak.core.registry import Registry

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
        "subspace": "gradleak.attacks.search.subspace:Subspace",
        "tag": "gradleak.attacks.search.tag:Tag",
    },
    base=Attack,
    group="gradleak.attacks",
)
