"""Some tokens, most of them hidden, from all the others: what BERT and its kind are first trained for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.models.tasks import Label
from gradleak.models.tasks.base import NOT_PREDICTED, Places
from gradleak.models.tasks.per_token import PerToken, pulled_up

if TYPE_CHECKING:
    from gradleak.models.batch import Batch
    from gradleak.models.text import TextModel
    from gradleak.updates.client_rule import ClientRule

# Of the tokens that are predicted, the share that is hidden, and of the others the share that another token replaces;
# the rest stay. So BERT was trained, and so the library's DataCollatorForLanguageModeling does it.
HIDDEN, REPLACED = 0.8, 0.5


class MaskedLM(PerToken):
    """The client draws which tokens are predicted, so that nobody else knows it: `mask` of its rule is their share.

    They are drawn once for an update: a client that takes several steps over a text hides the same tokens each time.
    """

    name = head = "masked-lm"
    meaning = "some tokens of a text, most of them hidden, from all others"
    auto_class = "AutoModelForMaskedLM"
    suffixes = ("ForMaskedLM",)
    labelled = False
    predicts_tokens = draws_targets = True

    def targets(self, labels: Sequence[Label] | None, ids: Tensor, outputs: int) -> Tensor:
        """Nothing is predicted where it was not drawn."""
        return torch.full_like(ids, NOT_PREDICTED)

    def examples(
        self,
        model: TextModel,
        texts: Sequence[str],
        labels: Sequence[Label] | None,
        rule: ClientRule,
        generator: torch.Generator | None = None,
        completions: Sequence[Places | None] | None = None,
    ) -> tuple[Batch, Tensor]:
        batch, _ = super().examples(model, texts, labels, rule)
        if model.tokenizer.mask_token_id is None:
            raise GradleakError(f"the tokenizer of {model.name} has no mask token, which masked-lm needs")
        ids, targets = masked(model, batch, rule.mask, generator)
        return type(batch)(ids, batch.mask), targets

    def outputs(self, model: TextModel) -> int:
        return model.vocabulary_size

    def slopes(
        self, model: TextModel, logits: Tensor, tokens: Sequence[int], predicted: Sequence[int]
    ) -> list[Tensor]:
        """Probabilities less the token that stood there: at hidden tokens alone, then at all tokens of the text."""
        hidden = [place for place, token in enumerate(tokens) if token == model.tokenizer.mask_token_id]
        inner = range(len(model.prefix), len(tokens) - len(model.suffix))
        return [_slopes_at(places, logits, predicted) for places in (hidden, list(inner)) if places and predicted]

    def read_slope(
        self, slope: Tensor, logits: Tensor, tokens: Sequence[int], sentences: int | None
    ) -> tuple[Label | None, float | None]:
        """As a label, for every token what stood there if it was predicted."""
        words, shares, chosen = pulled_up(slope, logits)
        return tuple(torch.where(chosen, words, NOT_PREDICTED).tolist()), float(shares[chosen].sum())

    def as_written(self, tokens: Sequence[int], label: Label | None) -> list[int] | None:
        if not isinstance(label, tuple):
            return None
        return [token if own == NOT_PREDICTED else own for token, own in zip(tokens, label, strict=True)]


def _slopes_at(places: Sequence[int], logits: Tensor, predicted: Sequence[int]) -> Tensor:
    """The probabilities at each of some places, and each of the predicted tokens there, (combined, *logits.shape)."""
    basis = logits.new_zeros(len(places), 1 + len(predicted), *logits.shape)
    for own, place in zip(basis, places, strict=True):
        own[0, 0, place] = logits[0, place].softmax(dim=-1)
        own[torch.arange(1, 1 + len(predicted)), 0, place, torch.tensor(list(predicted))] = 1.0
    return basis.flatten(0, 1)


def masked(model: TextModel, batch: Batch, share: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """The ids with some tokens hidden or replaced, and as targets what stood there.

    A batch in which chance would leave nothing to predict has one token hidden: the library's loss has no value then,
    and no client would send it.
    """
    ids = batch.ids.cpu()
    special = torch.tensor(model.tokenizer.all_special_ids)
    allowed = batch.mask.cpu() & ~torch.isin(ids, special)
    if not bool(allowed.any()):
        raise GradleakError("there is no token that could be hidden: the texts hold nothing but special tokens")
    chosen = (torch.rand(ids.shape, generator=generator) < share) & allowed
    if not bool(chosen.any()):
        places = allowed.nonzero()
        row, place = places[int(torch.randint(len(places), (1,), generator=generator))].tolist()
        chosen[row, place] = True
    draw = torch.rand(ids.shape, generator=generator)
    hidden = chosen & (draw < HIDDEN)
    replaced = chosen & ~hidden & (draw < HIDDEN + (1 - HIDDEN) * REPLACED)
    words = min(len(model.tokenizer), model.vocabulary_size)
    others = torch.randint(words, ids.shape, generator=generator)
    inputs = torch.where(hidden, model.tokenizer.mask_token_id, torch.where(replaced, others, ids))
    targets = torch.where(chosen, ids, NOT_PREDICTED)
    return inputs.to(batch.ids.device), targets.to(batch.ids.device)


MASKED_LM = MaskedLM()
