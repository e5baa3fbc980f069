"""Bag: only the tokens of a batch, read off the update at once."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from gradleak.attacks.base import Attack, AttackContext, AttackOptions, Reconstruction
from gradleak.attacks.evidence.rows import AT_ONCE, RowRule
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
        """What the first layer sees of the vocabulary, or, of a table that was sent, some rows at a time."""
        table = model.vocabulary_size * model.width
        if model.adapter.parameter_of(model.adapter.token_embedding) not in update.tensors:
            return 2 * 4 * table
        return 4 * table if self.options.rule == "film" else 3 * 8 * min(table, AT_ONCE * model.width)

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
