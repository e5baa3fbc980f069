"""A text from another, token by token, by cross-entropy: what translation and summaries are trained for.

An example is a pair of texts. The model reads the first, the source; the second, the target, is its label: given as a
text, kept as its tokens. The decoder reads the target moved on by one, after a start token, and predicts every token.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.models.tasks import Label
from gradleak.models.tasks.base import NOT_PREDICTED, GivenLabel, TextTask

if TYPE_CHECKING:
    from gradleak.models.text import TextModel

NO_TARGET = "seq2seq needs a target beside every text: a column of the data (--label-column), or labels in Python"


class Seq2Seq(TextTask):
    name = head = "seq2seq"
    meaning = "a text from another"
    auto_class = "AutoModelForSeq2SeqLM"
    suffixes = ("ForConditionalGeneration",)
    adapter_type = "SEQ_2_SEQ_LM"
    predicts_tokens = paired = True

    def label(self, model: TextModel, text: str, given: GivenLabel) -> Label:
        if isinstance(given, tuple | list):  # tokens, as results and truth files keep them
            label = tuple(int(token) for token in given)
            self.check_label(model, label)
            return label
        (tokens,) = model.encode([str(given)]).sentences()
        return tuple(tokens)

    def drawn_label(self, model: TextModel, text: str, rng: random.Random) -> Label:
        raise GradleakError(NO_TARGET)

    def check_label(self, model: TextModel, label: Label) -> None:
        most = model.vocabulary_size
        if not isinstance(label, tuple) or not label or any(not 0 <= token < most for token in label):
            raise GradleakError(f"a target of {model.name} is a list of its tokens, numbers from 0 to {most - 1}")
        if len(label) > model.max_length:
            raise GradleakError(f"a target has {len(label)} tokens; {model.name} takes at most {model.max_length}")

    def targets(self, labels: Sequence[Label] | None, ids: Tensor, outputs: int) -> Tensor:
        rows = [label for label in labels or () if isinstance(label, tuple)]
        width = max(len(row) for row in rows)
        padded = [[*row, *[NOT_PREDICTED] * (width - len(row))] for row in rows]
        return torch.tensor(padded, dtype=torch.long, device=ids.device)

    def no_targets(self, shape: Sequence[int], outputs: int) -> Tensor:
        return torch.zeros(tuple(shape), dtype=torch.long)

    def inputs(self, model: TextModel, targets: Tensor | None, sentences: int) -> dict[str, Tensor]:
        """What the decoder reads: the targets moved on by one, or the start token alone."""
        if targets is None:
            return {"decoder_input_ids": torch.full((sentences, 1), start_token(model), device=model.device)}
        return {"decoder_input_ids": model.module.prepare_decoder_input_ids_from_labels(targets)}

    def outputs(self, model: TextModel) -> int:
        return model.vocabulary_size

    def losses(self, logits: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        own = targets.reshape(len(mask), -1)
        losses = F.cross_entropy(logits.flatten(0, 1), own.flatten(), reduction="none", ignore_index=NOT_PREDICTED)
        return losses.view(own.shape), own != NOT_PREDICTED

    def predictions(self, targets: Tensor, mask: Tensor) -> int:
        return int((targets != NOT_PREDICTED).sum())


class AmongTargets(Seq2Seq):
    """The same where the target is known to be one of a few."""

    def __init__(self, choices: Sequence[tuple[int, ...]]) -> None:
        self.choices = tuple(choices)

    def label_choices(self, model: TextModel) -> Sequence[Label | None]:
        return self.choices


def start_token(model: TextModel) -> int:
    """What the decoder reads before a target."""
    start = getattr(model.module.config, "decoder_start_token_id", None)
    if type(start) is not int or not 0 <= start < model.vocabulary_size:
        raise GradleakError(f"the config.json of {model.name} names no token that its decoder starts with")
    if type(model.module.config.pad_token_id) is not int:
        raise GradleakError(f"the config.json of {model.name} names no pad_token_id, which its decoder needs")
    return start


SEQ2SEQ = Seq2Seq()
