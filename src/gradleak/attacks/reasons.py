"""Why an attack could not do something: a kind and its numbers, and the words that follow from them.

A diagnosis compares these facts with what only the honest side knows; people read the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal[
    "matrix-missing",
    "words-missing",
    "upper-missing",
    "last-missing",
    "first-missing",
    "nothing-to-match",
    "too-little-seen",
    "no-gap",
    "zero",
    "rows-drowned",
    "first-drowned",
    "rest-drowned",
    "starts-spent",
    "prefixes-overflow",
    "dimensions-left",
    "gradient-left",
    "last-hidden",
    "nothing-written",
    "rest-unknown",
    "size-unknown",
]

WORDS: dict[Kind, str] = {
    "matrix-missing": "exact recovery needs the gradient of {about}, which this update does not hold",
    "words-missing": "the word table was not sent",
    "upper-missing": "the update holds no matrix of the upper layers, so sentences are judged as in the paper",
    "last-missing": "last tokens are missing: they show only in the last feed-forward matrix, which this update does "
    "not hold",
    "first-missing": "subspace was skipped: nothing of the first layer's attention is seen",
    "nothing-to-match": "matching was not tried: {about}",
    "too-little-seen": "too little is seen to tell sentences apart by matching: about {told:,.0f} independent "
    "numbers for the {unknown:,.0f} of {tokens:.0f} unknown embeddings",
    "no-gap": "the singular values of {about} fall from {largest:.1e} to {smallest:.1e} without a gap: the batch has "
    "{limit:.0f} tokens or more, the rank limit of this matrix, or noise covers them",
    "zero": "the gradient of {about} is zero: nothing is left to read",
    "rows-drowned": "no rows of the word table stand out: noise drowns them",
    "first-drowned": "subspace was skipped: nothing in the first layer rises above noise",
    "rest-drowned": "what the sentences found leave of the update is not above its numerical noise",
    "starts-spent": "{starts:.0f} starts a length found no further sentence",
    "prefixes-overflow": "too many prefixes fit the spans: they no longer tell right from wrong",
    "dimensions-left": "the sentences found explain {told:.0f} of {rank:.0f} dimensions of the update",
    "gradient-left": "the gradients of the sentences found do not add up to the update: the end of one is missing, "
    "or a sentence that another one begins with",
    "last-hidden": "last tokens are missing: they show only once all sentences of the batch are known",
    "nothing-written": "film found no sentence that explains enough of the update",
    "rest-unknown": "matching was not tried: what the sentences found leave of the update cannot be told",
    "size-unknown": "matching was not tried: it needs the batch size and this update does not grant it",
}


class Reason(BaseModel):
    """One thing that an attack could not do, as a fact.

    >>> Reason(kind="starts-spent", numbers={"starts": 192}).text
    '192 starts a length found no further sentence'
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    about: str = Field(default="", description="the tensor it is about, where it is about one")
    numbers: dict[str, float] = Field(default_factory=dict)

    @property
    def text(self) -> str:
        return WORDS[self.kind].format(about=self.about, **self.numbers)


class Told(TypedDict):
    """The fields of a reconstruction that reasons fill."""

    notes: list[str]
    reasons: list[Reason]


def told(reasons: Sequence[Reason]) -> Told:
    """Reasons as a reconstruction holds them: as facts, and as notes in words."""
    return {"notes": [reason.text for reason in reasons], "reasons": list(reasons)}
