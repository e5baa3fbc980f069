"""What a bag of tokens names of the private texts: the tokens themselves, and the words, names and numbers they make.

Their order is not in a bag. A word, name or number counts as named if every token of it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby

from pydantic import BaseModel, ConfigDict, Field

from gradleak.models.text import TextModel
from gradleak.scoring.pieces import Count, Pieces, pieces, pieces_held, total
from gradleak.scoring.text import words


class NamedCounts(BaseModel):
    """How much of a batch a bag names, or bags of many batches."""

    model_config = ConfigDict(extra="forbid")

    tokens: Count = Field(description="different tokens of the batch; an unknown one is never named")
    guesses: int = Field(description="tokens of the bag")
    words: Count = Field(description="different words of the batch")
    pieces: Pieces = Field(description="names and numbers, sentence by sentence")

    @property
    def recall(self) -> float:
        """Percent of the batch's tokens that were named."""
        return 100 * self.tokens.found / max(1, self.tokens.total)

    @property
    def precision(self) -> float:
        """Percent of the named tokens that were there."""
        return 100 * self.tokens.found / max(1, self.guesses)


class Named(NamedCounts):
    """The same of one batch, with what was named."""

    which: list[str] = Field(default_factory=list, description="the names and numbers that were named")
    wrong: list[str] = Field(default_factory=list, description="tokens of the bag that the batch does not have")


def all_named(counted: Sequence[NamedCounts | None]) -> NamedCounts | None:
    """All of them together, in numbers; None where some were not counted, or there are none."""
    known = [each for each in counted if each is not None]
    if not known or len(known) < len(counted):
        return None
    first, *others = known
    for other in others:
        first = NamedCounts(
            tokens=first.tokens + other.tokens,
            guesses=first.guesses + other.guesses,
            words=first.words + other.words,
            pieces=first.pieces + other.pieces,
        )
    return NamedCounts.model_validate(first.model_dump(include=set(NamedCounts.model_fields)))


def named(bag: Collection[str], texts: Sequence[str], model: TextModel) -> Named:
    """What these tokens, under the tokenizer's names, tell of the texts."""
    sentences = [model.content(row) for row in model.tokenize(texts)]
    there = sorted({token for tokens in sentences for token in tokens})
    names = dict(zip(there, map(str, model.tokenizer.convert_ids_to_tokens(there)), strict=True))
    told = set(bag) - {model.tokenizer.unk_token}
    hit = {token for token, name in names.items() if name in told}
    seen = [_with_gaps(tokens, hit, model) for tokens in sentences]
    counted = total([pieces(text, shown) for text, shown in zip(texts, seen, strict=True)])
    assert counted is not None
    every = {word for text in texts for word in words(text)}
    shown_words = {word for shown in seen for word in words(shown)}
    which = [piece for text, shown in zip(texts, seen, strict=True) for piece in pieces_held(text, shown)]
    return Named(
        tokens=Count(found=len(hit), total=len(there)),
        guesses=len(told),
        words=Count(found=len(every & shown_words), total=len(every)),
        pieces=counted,
        which=list(dict.fromkeys(which)),
        wrong=sorted(told - set(names.values())),
    )


def _with_gaps(tokens: Sequence[int], hit: Collection[int], model: TextModel) -> str:
    """A true sentence with what was not named left out."""
    runs = [list(run) for there, run in groupby(tokens, hit.__contains__) if there]
    return "\n".join(model.decode(run) for run in runs)
