"""One class a word, by cross-entropy at the word's first token: names, parts of speech and the like."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.privacy import private
from gradleak.models.tasks import Label
from gradleak.models.tasks.base import NOT_PREDICTED, GivenLabel, whole_numbers
from gradleak.models.tasks.classification import class_number
from gradleak.models.tasks.per_token import PerToken, pulled_up

if TYPE_CHECKING:
    from gradleak.models.text import TextModel


class TokenClassification(PerToken):
    """A label is a tag for each word, by number or name: a list, or a text with blanks between them.

    Words are what blanks separate. A word's first token has its tag; its other tokens, and those that the tokenizer
    adds, are not trained on. A manifest has the tags of tokens.
    """

    name = head = "token-classification"
    meaning = "one class a word"
    auto_class = "AutoModelForTokenClassification"
    suffixes = ("ForTokenClassification",)
    adapter_type = "TOKEN_CLS"

    def label(self, model: TextModel, text: str, given: GivenLabel) -> Label:
        words = text.split()
        tags = given.split() if isinstance(given, str) else given if isinstance(given, Sequence) else [given]
        if len(tags) != len(words):
            raise GradleakError(
                f"token-classification needs one tag per word: {len(words)} words, {len(tags)} tags "
                f"(the text begins {private(repr(text[:40]))})"
            )
        numbers = [int(tag) if isinstance(tag, str) and re.fullmatch(r"\d{1,9}", tag) else tag for tag in tags]
        return tuple(class_number(model, number) for number in numbers)

    def takes(self, given: GivenLabel | None) -> bool:
        return given is not None and not isinstance(given, int)  # a class of the whole text tags no word

    def drawn_label(self, model: TextModel, text: str, rng: random.Random) -> Label:
        return tuple(rng.randrange(model.num_labels) for _ in text.split())

    def known_labels(self, model: TextModel, texts: Sequence[str], labels: Sequence[Label] | None) -> list[Label]:
        return [_by_token(model, text, label) for text, label in zip(texts, labels or (), strict=True)]

    def check_label(self, model: TextModel, label: Label) -> None:
        tags = whole_numbers(self.name, label)
        if any(tag != NOT_PREDICTED and not 0 <= tag < model.num_labels for tag in tags):
            raise GradleakError(f"the manifest gives a tag out of range; {model.name} has {model.num_labels} classes")

    def targets(self, labels: Sequence[Label] | None, ids: Tensor, outputs: int) -> Tensor:
        targets = torch.full_like(ids, NOT_PREDICTED)
        for row, label in zip(targets, labels or (), strict=True):
            tags = whole_numbers(self.name, label)[: len(row)]
            row[: len(tags)] = torch.tensor(tags, dtype=torch.long)
        return targets

    def outputs(self, model: TextModel) -> int:
        return model.num_labels

    def slopes(
        self, model: TextModel, logits: Tensor, tokens: Sequence[int], predicted: Sequence[int]
    ) -> list[Tensor]:
        """At every token of the text probabilities less one class: they add up to zero, so all but one are free."""
        _, length, classes = logits.shape
        inner = range(len(model.prefix), length - len(model.suffix))
        basis = logits.new_zeros(len(inner), classes - 1, 1, length, classes)
        for own, place in zip(basis, inner, strict=True):
            own[:, 0, place, 0] = -1.0
            own[:, 0, place, 1:] = torch.eye(classes - 1, dtype=logits.dtype, device=logits.device)
        return [basis.flatten(0, 1)]

    def read_slope(
        self, slope: Tensor, logits: Tensor, tokens: Sequence[int], sentences: int | None
    ) -> tuple[Label | None, float | None]:
        """Only the class that a token has is pulled up. A token without a tag pulls nothing."""
        tags, shares, tagged = pulled_up(slope, logits)
        return tuple(tags[tagged].tolist()), float(shares[tagged].sum())


def _by_token(model: TextModel, text: str, label: Label) -> Label:
    """The tags of a text's tokens, of which only the first of each word has one."""
    tags = whole_numbers("token-classification", label)
    ends = [found.end() for found in re.finditer(r"\S+", text)]
    places = model.tokenizer(text, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    of_tokens, done = [], 0
    for first, last in places:
        # The tokens that the tokenizer adds have no place; some tokens begin with the blank before their word.
        word = sum(end < last for end in ends)
        tagged = first < last and word >= done and word < len(tags)
        of_tokens.append(tags[word] if tagged else NOT_PREDICTED)
        done = word + 1 if tagged else done
    return tuple(of_tokens)


TOKEN_CLASSIFICATION = TokenClassification()
