"""Attacks: they read updates and nothing else."""

from __future__ import annotations

from gradleak.attacks.base import Attack
from gradleak.registry import Registry

ATTACKS: Registry[type[Attack]] = Registry(
    "attack",
    {
        "control": "gradleak.attacks.control:Control",
        "dlg": "gradleak.attacks.dlg:Dlg",
        "lamp-cos": "gradleak.attacks.lamp:LampCos",
        "tag": "gradleak.attacks.tag:Tag",
    },
)
