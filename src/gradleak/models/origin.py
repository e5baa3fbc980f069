"""Where the weights of a model came from: what was drawn, what was put on it, what is to be said of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradleak.core.text import enumerated
from gradleak.models.families import Family
from gradleak.models.lora_text import LoraSettings


@dataclass(frozen=True)
class Origin:
    """Which parameters were drawn, from which seed, as the checkpoint has none; and what else is to be said of it."""

    drawn: tuple[str, ...] = ()
    seed: int = 0
    remarks: tuple[str, ...] = ()
    lora: LoraSettings | None = None  # of fresh adapters
    family: Family | None = None  # the declaration of its parts, if it is not the listed one

    def with_remark(self, remark: str) -> Origin:
        return replace(self, remarks=(*self.remarks, remark))

    def with_family(self, family: Family, remark: str | None) -> Origin:
        origin = replace(self, family=family)
        return origin if remark is None else origin.with_remark(remark)

    def with_lora(self, settings: LoraSettings) -> Origin:
        return replace(self.with_remark(settings.sentence), lora=settings)

    @property
    def notes(self) -> tuple[str, ...]:
        """
        >>> Origin(("classifier.bias", "classifier.weight"), 3).notes[0]
        'The head is new: classifier.bias and classifier.weight are not in the checkpoint and were drawn from seed 3.'
        """
        if not self.drawn:
            return self.remarks
        verb = "is not in the checkpoint and was" if len(self.drawn) == 1 else "are not in the checkpoint and were"
        return (f"The head is new: {enumerated(self.drawn)} {verb} drawn from seed {self.seed}.", *self.remarks)
