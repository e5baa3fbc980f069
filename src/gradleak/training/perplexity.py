"""How well a language model predicts held-out text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from gradleak.models.text import TextModel

# A model that has diverged may have any perplexity, or none; a million is worse than all there is to compare.
WORST = 1e6


def perplexity(model: TextModel, rows: Sequence[Sequence[int]], batch_size: int = 32) -> float:
    """The exponential of the mean loss per token, over all tokens that follow another."""
    total, tokens = 0.0, 0
    for first in range(0, len(rows), batch_size):
        batch = model.pad(rows[first : first + batch_size])
        kept = batch.mask[:, 1:]
        with torch.no_grad():
            logits = model.logits(ids=batch.ids, mask=batch.mask)[:, :-1][kept]
        total += float(F.cross_entropy(logits.float(), batch.ids[:, 1:][kept], reduction="sum"))
        tokens += int(kept.sum())
    mean = total / tokens
    return math.exp(mean) if mean < math.log(WORST) else WORST
