"""Learning To Invert: a network trained on auxiliary data reads the text off an update at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pydantic import Field

from gradleak.attacks.base import Attack, AttackContext, AttackOptions, Reconstruction, Sentence
from gradleak.attacks.inversion.text_reader import PASSES, ReadTokens, TextReader
from gradleak.core.errors import GradleakError
from gradleak.models.text import TextModel, refuse_pairs
from gradleak.updates.update import Update

# Updates that are read at once.
TOGETHER = 32


class LtiOptions(AttackOptions):
    inverter: str = Field("", description="folder that `gradleak train-inverter` wrote; required")
    passes: int = Field(PASSES, ge=1, le=100, description="times the update is read, each with what the last gave")


class Lti(Attack):
    name = "lti"
    summary = "Learning To Invert: a network trained on auxiliary data for this model and this defence"
    Options = LtiOptions
    options: LtiOptions

    def prepared(self, model: TextModel) -> Self:
        refuse_pairs(model, self.name)
        if not self.options.inverter:
            raise GradleakError("lti needs a trained network: gradleak train-inverter, then -o inverter=FOLDER")
        return self

    def run(self, updates: Sequence[Update], model: TextModel, context: AttackContext) -> list[Reconstruction]:
        budget, progress = context.budget, context.progress
        reader = TextReader(self.options.inverter, model)
        answers: list[Reconstruction] = []
        progress.begin(self.name, len(updates), "updates")
        for first in range(0, len(updates), TOGETHER):
            some = updates[first : first + TOGETHER]
            read = [None] * len(some) if budget.tick() else reader.read(some, self.options.passes)
            answers += [
                Reconstruction(
                    sentences=[] if tokens is None else [_sentence(tokens, model)],
                    lengths=None if tokens is None else [reader.settings.length],
                    status=budget.reason if tokens is None else "completed",
                )
                for tokens in read
            ]
            progress.advance(len(answers))
        progress.end()
        return answers


def _sentence(read: ReadTokens, model: TextModel) -> Sentence:
    sure = sum(read.probabilities) / len(read.probabilities)
    return Sentence(text=model.decode(read.tokens), tokens=read.tokens, confidence=min(1.0, sure))
