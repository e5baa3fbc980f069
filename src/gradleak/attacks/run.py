"""One call that checks updates, then attacks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradleak.attacks import ATTACKS
from gradleak.attacks.base import Reconstruction
from gradleak.core.budget import Budget
from gradleak.core.progress import SILENT, Progress
from gradleak.core.seeds import derive_seed
from gradleak.models.text import TextModel
from gradleak.updates.update import Update


def attack(
    updates: Update | Sequence[Update],
    model: TextModel,
    name: str = "auto",
    *,
    seed: int | Sequence[int] = 0,
    budget: Budget | None = None,
    progress: Progress = SILENT,
    **options: Any,
) -> list[Reconstruction]:
    """Read text back from one update, or from several of the same model at once.

    `name` is one of `gradleak attacks`; further keywords are that attack's options. The same seed gives the
    same answer. Nothing but the updates and the model is looked at.

    >>> from gradleak import Client, attack, load_model
    >>> model = load_model("minilm")
    >>> update = Client(model).update(["Her biopsy came back clear."], labels=[0])
    >>> (found,) = attack(update, model)
    >>> found.sentences[0].text, found.sentences[0].certified, found.labels
    ('her biopsy came back clear.', True, [0])
    """
    several = [updates] if isinstance(updates, Update) else list(updates)
    method = ATTACKS.get(name).from_settings(options).prepared(model)
    for update in several:
        update.check(model)
    if not several:
        return []
    seeds = [derive_seed(seed, i) for i in range(len(several))] if isinstance(seed, int) else list(seed)
    return method.run(several, model, budget=budget or Budget(), progress=progress, seeds=seeds)
