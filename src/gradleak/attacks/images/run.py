"""One call that checks updates of an image model, then attacks them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from gradleak.attacks.base import Reconstruction
from gradleak.attacks.images import IMAGE_ATTACKS
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.peak import peak_memory
from gradleak.core.progress import SILENT, Progress
from gradleak.core.seeds import derive_seed
from gradleak.data.pictures import Pictures
from gradleak.models.image import ImageModel
from gradleak.updates.update import Update


def attack_images(
    updates: Update | Sequence[Update],
    model: ImageModel,
    name: str = "lti",
    *,
    auxiliary: Pictures | None = None,
    seed: int | Sequence[int] = 0,
    budget: Budget | None = None,
    progress: Progress = SILENT,
    **options: Any,
) -> list[Reconstruction]:
    """Read images back from one update, or from several of the same model at once.

    `name` is one of `gradleak attacks`, `auxiliary` the images the attacker holds; further keywords are that
    attack's options. The same seed gives the same answer.
    """
    several = [updates] if isinstance(updates, Update) else list(updates)
    method = IMAGE_ATTACKS.get(name).from_settings(options)
    if method.needs_auxiliary and not auxiliary:
        raise GradleakError(f"{name} needs auxiliary images: x_train and y_train in the data file")
    if auxiliary is not None:
        model.check_shape(auxiliary.shape)
        model.check_labels(auxiliary.labels)
    for update in several:
        update.check(model)
    if not several:
        return []
    seeds = [derive_seed(seed, i) for i in range(len(several))] if isinstance(seed, int) else list(seed)
    start = time.monotonic()
    with peak_memory(model.device) as peak:
        found = method.run(
            several, model, auxiliary=auxiliary, budget=budget or Budget(), progress=progress, seeds=seeds
        )
    cost = {"seconds": (time.monotonic() - start) / len(several), "peak_memory_mb": peak.megabytes}
    return [one.model_copy(update=cost) for one in found]
