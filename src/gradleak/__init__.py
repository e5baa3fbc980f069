"""gradleak measures how much private text can be read back from federated-learning updates.

The flow is one line: a client makes an update, an attack reads it, the reconstruction is scored.

>>> import gradleak
>>> gradleak.__version__.count(".")
2
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradleak.core.errors import GradleakError
from gradleak.version import __version__

if TYPE_CHECKING:
    from gradleak.attacks.base import Reconstruction
    from gradleak.attacks.images.run import attack_images
    from gradleak.attacks.run import attack
    from gradleak.audits.image_run import audit_images
    from gradleak.audits.run import audit
    from gradleak.clients.images import ImageClient
    from gradleak.clients.text import Client
    from gradleak.data.pictures import Pictures, read_pictures
    from gradleak.experiments.checkpoints.run import audit_checkpoints
    from gradleak.experiments.frontier.run import frontier
    from gradleak.experiments.frontier.utility import utility
    from gradleak.experiments.map.run import leak_map
    from gradleak.experiments.sweep.run import sweep
    from gradleak.models.image import ImageModel
    from gradleak.models.load import load_model
    from gradleak.models.text import TextModel
    from gradleak.scoring.score import score
    from gradleak.scoring.score_images import score_images
    from gradleak.updates.update import Update, load_update

__all__ = [
    "Client",
    "GradleakError",
    "ImageClient",
    "ImageModel",
    "Pictures",
    "Reconstruction",
    "TextModel",
    "Update",
    "__version__",
    "attack",
    "attack_images",
    "audit",
    "audit_checkpoints",
    "audit_images",
    "frontier",
    "leak_map",
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
    "Client": "gradleak.clients.text",
    "ImageClient": "gradleak.clients.images",
    "ImageModel": "gradleak.models.image",
    "Pictures": "gradleak.data.pictures",
    "Reconstruction": "gradleak.attacks.base",
    "TextModel": "gradleak.models.text",
    "Update": "gradleak.updates.update",
    "attack": "gradleak.attacks.run",
    "attack_images": "gradleak.attacks.images.run",
    "audit": "gradleak.audits.run",
    "audit_checkpoints": "gradleak.experiments.checkpoints.run",
    "audit_images": "gradleak.audits.image_run",
    "frontier": "gradleak.experiments.frontier.run",
    "leak_map": "gradleak.experiments.map.run",
    "load_model": "gradleak.models.load",
    "load_update": "gradleak.updates.update",
    "read_pictures": "gradleak.data.pictures",
    "score": "gradleak.scoring.score",
    "score_images": "gradleak.scoring.score_images",
    "sweep": "gradleak.experiments.sweep.run",
    "utility": "gradleak.experiments.frontier.utility",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gradleak' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
