"""How well the true batch itself explains an update: the best that matching could ever reach."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradleak.matching.distances import Distance
from gradleak.matching.dummies import Dummies
from gradleak.matching.naive import NaiveEngine
from gradleak.matching.parameters import unmatchable
from gradleak.models.tasks import Label
from gradleak.models.tasks.base import Places
from gradleak.models.text import TextModel
from gradleak.updates.gradient import as_gradient
from gradleak.updates.update import Update


def truth_distance(
    update: Update,
    texts: Sequence[str],
    labels: Sequence[Label] | None,
    model: TextModel,
    completions: Sequence[Places | None] | None = None,
) -> float | None:
    """Mean of 1 - cos between the update and the gradient of the true batch, word table left out.

    Zero for a plain gradient. Dropout, local steps and noise raise it: so much the attacker cannot explain. None if
    the update holds nothing that can be compared so.
    """
    if unmatchable(update, model) is not None:
        return None
    batch, targets = model.goal.examples(model, texts, labels, update.manifest.client, completions=completions)
    batch, targets = batch.apart(targets)
    dummies = Dummies(
        embeds=model.embed(batch.ids)[None],
        mask=batch.mask[None],
        labels=targets[None],
        target=torch.zeros(1, dtype=torch.long, device=model.device),
    )
    engine = NaiveEngine(model, [as_gradient(update, model).tensors], Distance("cosine"))
    return max(0.0, float(engine.values(dummies)))
