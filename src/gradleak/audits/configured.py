"""What a configuration asks for, done by the flow for text or the one for images, as its model decides."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradleak.attacks.base import Reconstruction
from gradleak.audits.capture import capture_update
from gradleak.audits.image_files import capture_images, print_image_score, reconstruct_images, score_image_files
from gradleak.audits.image_run import audit_images
from gradleak.audits.reconstruct import print_score, reconstruct, score_files
from gradleak.audits.results import Results
from gradleak.audits.run import audit
from gradleak.audits.spec import AuditConfig
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.progress import Progress
from gradleak.models.load import modality_of

# What becomes of a result, and how long it may take, is no part of what is audited.
_ASIDE = {"out", "redact", "budget"}


def audit_of(config: AuditConfig, budget: Budget, progress: Progress, lpips: bool = False) -> Results:
    """Run the audit that is described; `lpips` compares images by that metric too."""
    if _of_images(config):
        settings = _settings(config, audit_images) | {"attack": image_attack(config), "lpips": lpips}
        return audit_images(**settings, budget=budget, progress=progress)
    if lpips:
        raise GradleakError(f"LPIPS compares images; {config.model} reads text")
    return audit(**_settings(config, audit), budget=budget, progress=progress)


def capture_of(config: AuditConfig, out: Path, progress: Progress) -> tuple[Path, Path]:
    """Write the update of one batch, and its truth beside it."""
    return (capture_images if _of_images(config) else capture_update)(config, out, progress)


def attack_of(
    update: Path, config: AuditConfig, out: Path | None, budget: Budget, progress: Progress
) -> tuple[Reconstruction, Path | None]:
    """Attack an update folder."""
    if _of_images(config):
        return reconstruct_images(update, config, image_attack(config), out, budget, progress)
    if "data" in config.model_fields_set:
        raise GradleakError("--data is the auxiliary images of an attack on an image model; this is a text model")
    return reconstruct(update, config, out, budget, progress)


def print_score_of(reconstruction: Path, truth: Path, model: str, entities: bool) -> None:
    """Compare a reconstruction with a truth file."""
    if modality_of(model) == "images":
        print_image_score(score_image_files(reconstruction, truth))
    else:
        print_score(score_files(reconstruction, truth, model, entities))


def image_attack(config: AuditConfig) -> str:
    """The attack that was said; else the one that does best under defences."""
    return config.attack if "attack" in config.model_fields_set else "lti"


def _of_images(config: AuditConfig) -> bool:
    """Whether the model reads images; what was set and means nothing for its kind is refused."""
    images = modality_of(config.model) == "images"
    wrong = sorted(config.model_fields_set - set(_settings(config, audit_images)) - _ASIDE)
    if images and wrong:
        raise GradleakError(f"{wrong[0]!r} is for text models; {config.model} reads images")
    return images


def _settings(config: AuditConfig, run: Callable[..., Results]) -> dict[str, Any]:
    """Those settings that an audit takes."""
    return config.model_dump(include=set(inspect.signature(run).parameters) - _ASIDE)
