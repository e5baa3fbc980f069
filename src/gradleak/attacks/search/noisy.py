"""Reading updates through Gaussian noise: the likeliest sentence of a single one, the likelier of several answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import torch

from gradleak.attacks.base import Reconstruction, Sentence
from gradleak.attacks.evidence.defended import grid_step, what_shows
from gradleak.attacks.evidence.knowledge import Knowledge, gather
from gradleak.attacks.evidence.lengths import LONGEST
from gradleak.attacks.evidence.likelihood import Batches, Likelihood
from gradleak.attacks.evidence.noise import added_noise
from gradleak.attacks.evidence.rows import row_noise
from gradleak.attacks.search.likeliest import LikeliestSearch, head_names
from gradleak.core.budget import Budget, Stopped
from gradleak.models.text import TextModel
from gradleak.priors.ngram import NgramPrior
from gradleak.updates.update import Update

NAME = "likeliest"
# Guesses at label and length that are looked into, where the update does not show them.
GUESSES = 24
# Of these, how many are searched to the end: those whose first climb comes highest.
FINALISTS = 2
# An answer that explains this share needs no matching.
ENOUGH = 0.9


class Through(NamedTuple):
    """What was read through noise of a size, and the share of the update beyond random words that it explains."""

    answer: Reconstruction
    sigma: float
    explained: float

    @property
    def enough(self) -> bool:
        """Whether it explains more than matching would."""
        return self.explained >= ENOUGH

    def less_likely_than(self, other: Reconstruction, update: Update, model: TextModel) -> bool:
        return likelier([self.answer, other], update, model, self.sigma) is other


def noise_to_judge_by(update: Update, model: TextModel) -> float:
    """The Gaussian noise on a gradient; 0 if there is none, or if something else was done to it as well."""
    if update.manifest.client.local or model.goal.draws_targets or model.goal.paired:
        return 0.0
    seen = what_shows(update, model)
    rounded = any(grid_step(tensor) is not None for tensor in update.tensors.values() if tensor.dim() > 1)
    if seen.signs or seen.masked or seen.pruned or rounded:
        return 0.0
    table = update.tensors.get(model.adapter.parameter_of(model.adapter.token_embedding))
    if table is not None and model.adapter.tied and not row_noise(table):
        return 0.0  # a batch that fills small matrices looks like noise there, but noise shows in every row too
    return added_noise(update, model)


def likelier(answers: Sequence[Reconstruction], update: Update, model: TextModel, sigma: float) -> Reconstruction:
    """Of several answers to an update with this much noise the one whose sentences explain it best."""
    judge = Likelihood(model, update.tensors, sigma, any_size=what_shows(update, model).clipped)

    def value(answer: Reconstruction) -> float:
        if not answer.sentences:
            return float("-inf")
        batch = model.pad([[*model.prefix, *sentence.tokens, *model.suffix] for sentence in answer.sentences])
        targets = model.goal.targets(answer.labels, batch.ids, model.goal.outputs(model)).to(model.device)
        return float(judge.values(Batches(batch.ids[None], batch.mask[None], targets[None])))

    return max(answers, key=value)


def noise_on_one(update: Update, model: TextModel) -> float:
    """The noise on the gradient of a single sentence that a classifier's head shows; 0 if it is anything else."""
    goal, names = model.goal, head_names(model, update.tensors)
    readable = (
        update.known.size == 1
        and model.adapter.family.kind == "encoder"
        and goal.one_per_text
        and bool(goal.label_choices(model))
        and any(update.tensors[name].dim() == 2 for name in names)
    )
    return noise_to_judge_by(update, model) if readable else 0.0


def read_noisy(
    update: Update,
    model: TextModel,
    sigma: float,
    prior: NgramPrior | None,
    seed: int,
    budget: Budget,
    starts: Sequence[Sequence[int]] = (),
) -> Through | None:
    """The likeliest sentence of an update with this much noise; None if there was no time to find one."""
    generator = torch.Generator().manual_seed(seed)
    clipped = what_shows(update, model).clipped
    searches: list[tuple[Knowledge, LikeliestSearch]] = []

    def search_for(known: Knowledge) -> LikeliestSearch:
        target = model.goal.targets(known.labels, torch.zeros(1, 1, dtype=torch.long), model.goal.outputs(model))
        search = LikeliestSearch(
            model, update.tensors, sigma, length=known.lengths[0], target=target.to(model.device), prior=prior,
            any_size=clipped, budget=budget,
        )  # fmt: skip
        searches.append((known, search))
        return search

    with suppress(Stopped):
        first, *others = _guesses(update, model)
        search_for(first).run(starts, generator)
        if not searches[0][1].sure and others:
            for known in others:
                search_for(known).begin(generator)
            finalists = sorted(searches[1:], key=lambda each: each[1].reached, reverse=True)[:FINALISTS]
            for _, search in finalists:
                search.run(starts, generator)
    searches = [each for each in searches if each[1].known]
    if not searches:
        return None
    known, search = max(searches, key=lambda each: each[1].reached)
    likely = search.best()
    sentence = Sentence(
        text=model.decode(likely.tokens), tokens=likely.tokens, confidence=likely.explained * likely.posterior
    )
    answer = Reconstruction(
        sentences=[sentence], labels=known.labels, lengths=known.lengths, found=known.found, status=budget.reason
    )
    return Through(answer, sigma, likely.explained)


def _guesses(update: Update, model: TextModel) -> list[Knowledge]:
    """Labels and lengths that a single sentence may have, likeliest first.

    Noise hides the rows of last positions first, so a length that shows in them is the least there can be.
    """
    guesses = gather(update, model, NAME, GUESSES)
    if update.known.lengths is not None or len({tuple(known.lengths) for known in guesses}) > 1:
        return guesses
    least, most = guesses[0].lengths[0], min(LONGEST, model.max_length)
    longer = [replace(guesses[0], lengths=[n]) for n in range(least + 1, most + 1)]
    return [*guesses, *longer][:GUESSES]
