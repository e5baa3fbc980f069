"""gradleak measures how much private text can be read back from federated-learning updates.

The flow is one line: a client makes an update, an attack reads it, the reconstruction is scored.

>>> import gradleak
>>> gradleak.__version__.count(".")
2
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradleak.errors import GradleakError
from gradleak.version import __version__

if TYPE_CHECKING:
    from gradleak.attacks.base import Reconstruction
    from gradleak.attacks.images.run import attack_images
    from gradleak.attacks.run import attack
    from gradleak.auditing import audit
    from gradleak.checkpoints.run import audit_checkpoints
    from gradleak.image_auditing import audit_images
    from gradleak.leakmap.run import leak_map
    from gradleak.models.image import ImageModel, load_image_model
    from gradleak.models.load import load_model
    from gradleak.models.target import TargetModel
    from gradleak.pictures import Pictures, read_pictures
    from gradleak.runner.sweep import sweep
    from gradleak.scenario.client import Client
    from gradleak.scenario.image_client import ImageClient
    from gradleak.scoring.score import score
    from gradleak.scoring.score_images import score_images
    from gradleak.tradeoff.frontier import frontier
    from gradleak.tradeoff.utility import utility
    from gradleak.update import Update, load_update

__all__ = [
    "Client",
    "GradleakError",
    "ImageClient",
    "ImageModel",
    "Pictures",
    "Reconstruction",
    "TargetModel",
    "Update",
    "__version__",
    "attack",
    "attack_images",
    "audit",
    "audit_checkpoints",
    "audit_images",
    "frontier",
    "leak_map",
    "load_image_model",
    "load_model",
    "load_update",
    "read_pictures",
    "score",
    "score_images",
    "sweep",
    "utility",
]

# Imported on first use: torch and transformers take seconds to load, and `gradleak --help` needs neither.
_HOMES = {
    "Client": "gradleak.scenario.client",
    "ImageClient": "gradleak.scenario.image_client",
    "ImageModel": "gradleak.models.image",
    "Pictures": "gradleak.pictures",
    "Reconstruction": "gradleak.attacks.base",
    "TargetModel": "gradleak.models.target",
    "Update": "gradleak.update",
    "attack": "gradleak.attacks.run",
    "attack_images": "gradleak.attacks.images.run",
    "audit": "gradleak.auditing",
    "audit_checkpoints": "gradleak.checkpoints.run",
    "audit_images": "gradleak.image_auditing",
    "frontier": "gradleak.tradeoff.frontier",
    "leak_map": "gradleak.leakmap.run",
    "load_image_model": "gradleak.models.image",
    "load_model": "gradleak.models.load",
    "load_update": "gradleak.update",
    "read_pictures": "gradleak.pictures",
    "score": "gradleak.scoring.score",
    "score_images": "gradleak.scoring.score_images",
    "sweep": "gradleak.runner.sweep",
    "utility": "gradleak.tradeoff.utility",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gradleak' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
