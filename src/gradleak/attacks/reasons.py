"""Why an attack could not do something: a kind and its numbers, and a text for people.

A diagnosis compares these facts with what only the honest side knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field

from gradleak.core.text import enumerated

# Kinds, and the names of their numbers, are written into results.json: they change with its schema only.
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
    "nothing-yet",
    "stage-cut",
    "tokens-unknown",
    "states-missing",
    "tokens-missing",
]

TEXTS: dict[Kind, str] = {
    "matrix-missing": "exact recovery needs the gradient of {about}, which this update does not hold",
    "words-missing": "the gradient of the token embedding was not sent",
    "upper-missing": "the update holds no matrix of the upper layers, so sentences are judged as in the paper",
    "last-missing": "last tokens are missing: they show only in the last feed-forward matrix, which this update does "
    "not hold",
    "first-missing": "subspace was skipped: the update holds no matrix of the first layer's attention",
    "nothing-to-match": "matching was not tried: {about}",
    "too-little-seen": "the update holds too little to tell sentences apart by matching: about {told:,.0f} "
    "independent numbers for the {unknown:,.0f} of {tokens:.0f} unknown embeddings",
    "no-gap": "the singular values of {about} fall from {largest:.1e} to {smallest:.1e} without a gap",
    "zero": "the gradient of {about} is zero: there is nothing to read",
    "rows-drowned": "no rows of the token embedding's gradient stand out from the noise",
    "first-drowned": "subspace was skipped: nothing in the first layer rises above noise",
    "rest-drowned": "what remains of the update without the recovered sentences is below its numerical noise",
    "starts-spent": "{starts:.0f} random starts for each length found no further sentence",
    "prefixes-overflow": "too many prefixes fit the spans, which no longer separate right from wrong",
    "dimensions-left": "the recovered sentences explain {told:.0f} of {rank:.0f} dimensions of the update",
    "gradient-left": "the gradients of the recovered sentences do not add up to the update: one lacks its end, or a "
    "sentence is missing that is the beginning of another",
    "last-hidden": "last tokens are missing: they show only once all sentences of the batch are recovered",
    "nothing-written": "film found no sentence that explains enough of the update",
    "rest-unknown": "matching was not tried: what remains of the update without the recovered sentences is not known",
    "size-unknown": "matching was not tried: it needs the batch size, which is not known",
    "nothing-yet": "the attack was ended before it had read anything",
    "stage-cut": "{about} was ended by its share of the time before it had an answer",
    "states-missing": "soft was skipped: the update shows nothing of what layers above the first attention saw",
    "tokens-missing": "soft read nothing: no token of the batch shows, and no sentence is confirmed by layers that "
    "had no part in its search",
    "tokens-unknown": "the tokenizer does not know what was written in {tokens:.0f} places of the recovered "
    "sentences, and no certificate covers it",
}


# Met where something covers exact values, whatever it is.
HIDDEN: frozenset[Kind] = frozenset(
    {"no-gap", "rows-drowned", "first-drowned", "rest-drowned", "starts-spent", "prefixes-overflow",
     "dimensions-left", "gradient-left"}
)  # fmt: skip


class Reason(BaseModel):
    """One thing that an attack could not do, as a fact.

    >>> Reason(kind="starts-spent", numbers={"starts": 192}).text
    '192 random starts for each length found no further sentence'
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    about: str = Field(default="", description="the tensor that it concerns, if any")
    numbers: dict[str, float] = Field(default_factory=dict)
    causes: tuple[str, ...] = Field(default=(), description="what the manifest names that can be why, in words")

    @property
    def text(self) -> str:
        text = TEXTS[self.kind].format(about=self.about, **self.numbers)
        if self.kind == "no-gap":
            return f"{text}: {self._why_no_gap()}"
        return f"{text}; {enumerated(self.causes)} can be why" if self.causes else text

    def _why_no_gap(self) -> str:
        """Too many tokens are a cause only where they are not ruled out: then `most` says how many there can be.

        After several local steps they are not a cause either: how many values stand above rounding (`standing`) then
        is a matter of the steps.
        """
        limit, most = self.numbers["limit"], self.numbers.get("most")
        named = f"{enumerated(self.causes)} can hide the rank" if self.causes else ""
        if "standing" in self.numbers and named:
            return f"{named}; {self.numbers['standing']:.0f} of {limit:.0f} values stand above rounding"
        if most is None:
            many = f"the batch has {limit:.0f} tokens or more, the rank limit of this matrix"
            return f"{named}, or {many}" if named else f"{many}, or noise that the manifest does not name hides them"
        few = f"the batch has {most:.0f} tokens at most, and the rank limit of this matrix is {limit:.0f}"
        other = "noise, rounding or local steps that the manifest does not name hide the rank"
        return f"{named or other} ({few})"


class ReasonFields(TypedDict):
    """The fields of a reconstruction that reasons fill."""

    notes: list[str]
    reasons: list[Reason]


def reason_fields(reasons: Sequence[Reason]) -> ReasonFields:
    """Reasons as a reconstruction holds them: as facts, and as notes for people."""
    return {"notes": [reason.text for reason in reasons], "reasons": list(reasons)}
