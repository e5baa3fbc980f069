"""Attacks: they read updates and nothing else."""

from __future__ import annotations

from gradleak.attacks.base import Attack
from gradleak.registry import Registry

ATTACKS: Registry[type[Attack]] = Registry(
    "attack",
    {
        "auto": "gradleak.attacks.auto:Auto",
        "bag": "gradleak.attacks.bag:Bag",
        "control": "gradleak.attacks.control:Control",
        "exact": "gradleak.attacks.exact:Exact",
        "film": "gradleak.attacks.film:Film",
        "dlg": "gradleak.attacks.dlg:Dlg",
        "lamp-cos": "gradleak.attacks.lamp:LampCos",
        "lamp-l2": "gradleak.attacks.lamp:LampL2",
        "lamp-l2l1": "gradleak.attacks.lamp:LampL2L1",
        "lti": "gradleak.attacks.lti:Lti",
        "subspace": "gradleak.attacks.subspace:Subspace",
        "tag": "gradleak.attacks.tag:Tag",
    },
    base=Attack,
)
