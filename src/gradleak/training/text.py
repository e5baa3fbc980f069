"""Texts as simulated training sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.clients.text import Client
from gradleak.core.errors import GradleakError
from gradleak.core.secret import Secret
from gradleak.data.draws import completions_of
from gradleak.data.texts import Row
from gradleak.models.base import Target
from gradleak.models.tasks.classification import class_number
from gradleak.models.text import TextModel
from gradleak.training.finetune import check_measured, evaluate
from gradleak.training.learner import Learner, percent
from gradleak.training.perplexity import perplexity
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.update import Update


@dataclass(frozen=True)
class TextExample:
    """A row the model can take, with its tokens and its class (0 where there are none)."""

    row: Row
    tokens: list[int]
    label: int


class TextLearner(Learner[TextExample]):
    def __init__(self, rows: Sequence[Row], model: TextModel) -> None:
        self.rows, self.model = rows, model
        self._pools: dict[int, list[TextExample]] = {}

    def pool(self, max_tokens: int) -> list[TextExample]:
        """Looked for once: to tokenize a corpus may take longer than a short training."""
        if max_tokens not in self._pools:
            self._pools[max_tokens] = self._find(max_tokens)
        return self._pools[max_tokens]

    def _find(self, max_tokens: int) -> list[TextExample]:
        check_measured(self.model)
        model, limit = self.model, min(max_tokens, self.model.max_length)
        frame = len(model.prefix) + len(model.suffix)
        encoded = model.tokenizer([row.text for row in self.rows], verbose=False)["input_ids"]
        examples = []
        for row, tokens in zip(self.rows, encoded, strict=True):
            if not frame < len(tokens) <= limit:
                continue
            if not model.goal.labelled:
                if len(tokens) > 1:  # one token has no next one to predict
                    examples.append(TextExample(row, tokens, 0))
            elif row.label is None:
                raise GradleakError("the accuracy of a classifier needs labels in the data: give --label-column")
            else:
                examples.append(TextExample(row, tokens, class_number(model, row.label)))
        return examples

    def client(self, model: TextModel, rule: ClientRule, defenses: Sequence[str]) -> Client:
        return Client(model, client=rule, defenses=defenses)

    def update(self, client: Client, examples: Sequence[TextExample], secret: Secret | None = None) -> Update:
        rows = [example.row for example in examples]
        labels = [example.label for example in examples]
        return client.update([row.text for row in rows], labels, secret, completions_of(rows))

    def quality(self, model: TextModel, examples: Sequence[TextExample]) -> dict[str, float]:
        if model.goal.quality == "perplexity":
            return {"perplexity": perplexity(model, [example.tokens for example in examples])}
        return percent(evaluate(model, [(example.tokens, example.label) for example in examples], 32))

    def majority(self, model: Target, examples: Sequence[TextExample]) -> dict[str, float]:
        return super().majority(model, examples) if self.model.goal.labelled else {}
