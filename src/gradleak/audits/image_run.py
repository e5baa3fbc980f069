"""An audit of an image model: private images, their updates, an attack on each, and the images it read back."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradleak.attacks.base import Reconstruction
from gradleak.attacks.images import IMAGE_ATTACKS
from gradleak.attacks.images.run import attack_images
from gradleak.audits.results import Results, Scenario, Trial, observed
from gradleak.audits.run import gathered
from gradleak.clients.images import ImageClient
from gradleak.clients.sender import DEFAULT_GRANTS
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.core.seeds import derive_seed
from gradleak.data.pictures import Pictures, apart, read_pictures
from gradleak.models.image import ImageModel, load_image_model
from gradleak.models.selection import ALL
from gradleak.scoring.inferred import inferred_accuracy
from gradleak.scoring.metrics import prepare_metrics
from gradleak.scoring.score_images import score_images


def audit_images(
    model: str | ImageModel = "lenet",
    *,
    data: str | Path | tuple[Pictures, Pictures | None],
    attack: str = "lti",
    options: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    trials: int = 4,
    seed: int = 0,
    known: Sequence[str] = DEFAULT_GRANTS,
    client: str = "fedsgd",
    defenses: Sequence[str] = (),
    lpips: bool = False,
    device: str = "cpu",
    budget: Budget | None = None,
    progress: Progress = SILENT,
) -> Results:
    """Measure how much of its training images a model's updates give away to an attack.

    `data` is an .npz file, or private images and the attacker's auxiliary ones (or None), of which those that are
    private too are left out. Draws `trials` batches from the private images, makes each one's update as a client
    would, attacks all updates together, and scores what was read back beside a control: the mean auxiliary image, or
    plain grey. `lpips` adds that metric, whose weights are fetched once.
    """
    method = IMAGE_ATTACKS.get(attack).from_settings(options or {})  # refuse bad options before any work
    private, auxiliary = apart(*data) if isinstance(data, tuple) else read_pictures(data)
    target = load_image_model(model, device=device) if isinstance(model, str) else model
    batches = draw_batches(private, batch_size, trials, seed)
    metrics = ("lpips",) if lpips else ()
    prepare_metrics("images", metrics, progress)
    sender = ImageClient(target, known, client, defenses)
    seeds = [derive_seed(seed, "trial", i) for i in range(trials)]
    updates = [sender.update(batch, derive_seed(own, "client")) for batch, own in zip(batches, seeds, strict=True)]
    found = attack_images(
        updates, target, attack, auxiliary=auxiliary, seed=seeds, budget=budget, progress=progress,
        **dict(options or {}),
    )  # fmt: skip
    guessed = attack_images(updates, target, "control", auxiliary=auxiliary, seed=seeds)
    measured = [
        _trial(index, seeds[index], *parts, metrics)
        for index, parts in enumerate(zip(batches, found, guessed, strict=True))
    ]
    scenario = Scenario(
        model=target.name,
        family=target.family,
        task=target.task,
        model_fingerprint=target.fingerprint,
        parameters=sum(p.numel() for p in target.parameters().values()),
        data=str(data) if isinstance(data, str | Path) else "given in Python",
        data_rows=len(private),
        auxiliary=None if auxiliary is None else len(auxiliary),
        labels="given",
        batch_size=batch_size,
        trials=trials,
        seed=seed,
        client=sender.rule,
        defenses=list(updates[0].manifest.defenses),
        observed=observed(updates[0], ALL, target),
        known=list(updates[0].known.granted),
    )
    return gathered(scenario, method, measured, target)


def draw_batches(private: Pictures, batch_size: int, trials: int, seed: int) -> list[Pictures]:
    """Distinct images for every trial. Asking for more trials keeps the first ones as they were."""
    if batch_size < 1 or trials < 1:
        raise GradleakError("batch size and trials must be at least 1")
    needed = batch_size * trials
    if needed > len(private):
        raise GradleakError(f"{trials} trials of {batch_size} images need {needed}; the data has {len(private)}")
    order = random.Random(seed).sample(range(len(private)), len(private))
    return [private.some(order[first : first + batch_size]) for first in range(0, needed, batch_size)]


def _trial(
    index: int, seed: int, truth: Pictures, found: Reconstruction, guessed: Reconstruction, metrics: Sequence[str]
) -> Trial:
    scored = score_images(found, truth, metrics=metrics)
    return Trial(
        index=index,
        seed=seed,
        status=found.status,
        truth=truth.uris(),
        labels=list(truth.labels),
        reconstruction=found,
        pairs=scored.pairs,
        scores=scored.metrics,
        control_scores=score_images(guessed, truth, metrics=metrics).metrics,
        found=inferred_accuracy(found, truth.labels, (), ()),
        seconds=found.seconds,
        peak_memory_mb=found.peak_memory_mb,
    )
