"""What exact recovery gives back, whichever kind of model it came from."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradleak.attacks.reasons import Reason
from gradleak.attacks.spans.certify import Certificate
from gradleak.models.tasks import Label, SideName


@dataclass(frozen=True)
class Recovered:
    """A sentence with its special tokens, its certificate, and label and weight where the update shows them.

    `share` is the part of the batch's mean that is this sentence's: 1/B where it occurs once. `confidence` is for a
    sentence whose certificate does not hold. `written` are the tokens of the text where the model read others. Where
    an example is a pair of texts, `side` says which of them this is, and `example` is the number of the pair, if the
    update proves which belong together.
    """

    tokens: list[int]
    certificate: Certificate
    label: Label | None = None
    share: float | None = None
    whole: bool = True
    confidence: float = 0.5
    written: list[int] | None = None
    side: SideName | None = None
    example: int | None = None


@dataclass
class Outcome:
    """Everything recovered from an update. `complete` means that nothing of the update is left to explain."""

    sentences: list[Recovered] = field(default_factory=list)
    complete: bool = False
    bag: dict[int, float] = field(default_factory=dict)
    reasons: list[Reason] = field(default_factory=list)
