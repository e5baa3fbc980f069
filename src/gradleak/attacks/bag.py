"""Bag: only the tokens of a batch, read off the word table's gradient in no time."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pydantic import Field

from gradleak.attacks.base import Attack, AttackOptions, Reconstruction
from gradleak.attacks.parts.gradient import as_gradient
from gradleak.attacks.parts.rows import RowRule, present_rows
from gradleak.budget import Budget
from gradleak.models.target import TargetModel
from gradleak.progress import Progress
from gradleak.update import Update


class BagOptions(AttackOptions):
    rule: RowRule = Field(
        "norm", description="under noise: by the length of a token's row, or by film, that paper's threshold"
    )


class Bag(Attack):
    """A token's row of the table moves only if the token was there, or stands out from noise if it did."""

    name = "bag"
    summary = "which tokens the batch has, from the word table's gradient; no sentences"
    Options = BagOptions
    options: BagOptions

    def run(
        self,
        updates: Sequence[Update],
        model: TargetModel,
        *,
        budget: Budget,
        progress: Progress,
        seeds: Sequence[int],
    ) -> list[Reconstruction]:
        return [self._one(as_gradient(update), model) for update in updates]

    def _one(self, update: Update, model: TargetModel) -> Reconstruction:
        started = time.monotonic()
        if model.task == "causal-lm" and model.adapter.output_layer.weight is model.adapter.words.weight:
            note = "an output layer shares the word table, so every row moves; exact reads these updates"
            return Reconstruction(sentences=[], found=["bag"], notes=[note])
        table = update.tensors.get(model.adapter.parameter_of(model.adapter.words))
        if table is None:
            return Reconstruction(sentences=[], found=["bag"], notes=["the word table was not sent"])
        rows = present_rows(table, self.options.rule)
        if rows is None:
            note = "no rows of the word table stand out: noise drowns them"
            return Reconstruction(sentences=[], found=["bag"], notes=[note])
        sizes = table.norm(dim=1)
        content = model.content(rows.tolist())
        names = model.tokenizer.convert_ids_to_tokens(content)
        scores = [float(sizes[token] / sizes.max()) for token in content]
        return Reconstruction(
            sentences=[],
            bag={str(name): round(score, 4) for name, score in zip(names, scores, strict=True)},
            found=["bag"],
            seconds=time.monotonic() - started,
        )
