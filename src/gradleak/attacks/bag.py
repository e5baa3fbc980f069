"""Bag: only the tokens of a batch, read off the update at once."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from gradleak.attacks.base import Attack, AttackContext, AttackOptions, Reconstruction
from gradleak.attacks.evidence.rows import RowRule
from gradleak.attacks.evidence.tokens import tokens_of
from gradleak.attacks.reasons import reason_fields
from gradleak.core.budget import Budget
from gradleak.models.text import TextModel
from gradleak.updates.gradient import as_gradient
from gradleak.updates.update import Update


class BagOptions(AttackOptions):
    rule: RowRule = Field(
        "norm", description="under noise: by the length of a token's row, or by film, that paper's threshold"
    )
    spans: bool = Field(True, description="add the tokens that fit the span of the first layer's inputs")


class Bag(Attack):
    """A token shows in its rows of the token embedding and the output layer, and in the span of the first inputs."""

    name = "bag"
    summary = "the tokens of the batch, from the token embedding, the output layer and the first layer; no sentences"
    Options = BagOptions
    options: BagOptions
    at_once = 1

    def memory_needed(self, update: Update, model: TextModel) -> int:
        """A table of the vocabulary in float64, as that of rows is judged, or what the first layer sees of it."""
        table = model.vocabulary_size * model.width
        sent = model.adapter.parameter_of(model.adapter.token_embedding) in update.tensors
        return (2 * 8 if sent else 2 * 4) * table

    def run(self, updates: Sequence[Update], model: TextModel, context: AttackContext) -> list[Reconstruction]:
        return [self.read(as_gradient(update, model), model, context.budget) for update in updates]

    def read(self, gradient: Update, model: TextModel, budget: Budget) -> Reconstruction:
        """The tokens of one gradient."""
        tokens = tokens_of(model, gradient, self.options.rule, self.options.spans, budget)
        return Reconstruction(
            sentences=[],
            **tokens.fields(model, model.content(list(tokens.scores))),
            found=["bag"],
            **reason_fields(tokens.reasons),
            status=budget.reason,
        )
