"""The control: what the prior alone would guess, with no look at the gradient.

Every score stands beside its score. What an attack scores above it is what the update leaked; the rest is
what anyone could guess of ordinary language.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from pydantic import Field

from gradleak.attacks.base import Attack, AttackContext, AttackOptions, Reconstruction, Sentence
from gradleak.core.progress import SILENT, Progress
from gradleak.models.text import TextModel
from gradleak.priors.base import load_prior
from gradleak.priors.ngram import load_ngram
from gradleak.updates.update import Update

TYPICAL_LENGTH = 12


def frequent_tokens(model: TextModel, count: int, progress: Progress = SILENT) -> list[str]:
    """The control of a bag: so many of the commonest tokens of ordinary language, under the tokenizer's names."""
    allowed = model.text_tokens
    ordinary = (token for token in load_ngram(model, progress).frequent if allowed[token])
    return [str(name) for name in model.tokenizer.convert_ids_to_tokens(list(itertools.islice(ordinary, count)))]


class ControlOptions(AttackOptions):
    prior: str = Field("ngram", description="ngram, or a causal language model (folder or hub id)")


class Control(Attack):
    name = "control"
    reads = False
    summary = "no attack: sentences drawn from the prior alone, at the lengths that the attacker knows"
    Options = ControlOptions
    options: ControlOptions

    @property
    def prior(self) -> str:
        return self.options.prior

    def run(self, updates: Sequence[Update], model: TextModel, context: AttackContext) -> list[Reconstruction]:
        """Of updates that the time did not suffice for, an answer without a sentence that says so; never of all."""
        prior = load_prior(self.options.prior, model, context.progress, context.budget)
        frame = len(model.prefix) + len(model.suffix)
        guesses: list[Reconstruction] = []
        for update, seed in zip(updates, context.seeds, strict=True):
            if guesses and context.budget.over:
                guesses.append(Reconstruction(status=context.budget.reason))
                continue
            generator = torch.Generator().manual_seed(seed)
            known = update.known
            lengths = known.lengths or (TYPICAL_LENGTH,) * (known.size or 1)
            drawn = [prior.sample(n - frame, generator) if prior else [] for n in lengths]
            sentences = [Sentence(text=model.decode(ids), tokens=ids, confidence=0.0) for ids in drawn]
            guesses.append(Reconstruction(sentences=sentences))
            context.keep(len(guesses) - 1, guesses[-1], final=True)
        return guesses
