"""FILM: whole sentences of a language model's batch, written by the model itself with the tokens the update names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from gradleak.attacks.base import Attack, AttackContext, AttackOptions, Reconstruction, Sentence
from gradleak.attacks.evidence.rows import RowRule
from gradleak.attacks.evidence.tokens import Tokens, tokens_of
from gradleak.attacks.film.beam import WEIGHT, BeamSettings, Grown, NGrams, Stock, distinct, openings, search
from gradleak.attacks.film.beginnings import Beginnings
from gradleak.attacks.film.explained import Explainer
from gradleak.attacks.film.reading import ExplainedReader, PlainReader
from gradleak.attacks.film.rearrange import Score, rearranged
from gradleak.attacks.film.starts import sentence_ends, start_tokens
from gradleak.attacks.reasons import Reason, told
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.progress import Progress
from gradleak.matching.sizes import GradientSizes
from gradleak.models.text import TextModel
from gradleak.updates.gradient import as_gradient
from gradleak.updates.update import Update

# Beginnings that share a run of so many tokens are the same sentence.
SAME = 4
# Tokens of the openings from which sentences are grown.
OPENING = 3
# What the tokens of a sentence must explain beyond the least: shorter pieces are found in many orders.
ENOUGH = 1.5
# Sentences are taken to be this many times shorter or longer than usual at most; less where there is only one.
SPREAD, ALONE = 2.0, 1.15
# Rounds in a row without a new sentence after which there is no other.
IDLE = 3


class FilmOptions(AttackOptions):
    score: Literal["explained", "film"] = Field(
        "explained",
        description="how sentences are judged: by how much of the update they explain, or as in the paper",
    )
    beams: int = Field(32, ge=1, le=1024, description="sentences that grow at once")
    groups: int = Field(8, ge=1, description="different beginnings that share them")
    rounds: int = Field(20, ge=1, description="searches; each avoids what was found before")
    repeat: int = Field(2, ge=0, description="n-grams of this size occur once in a sentence; 0: no rule")
    avoid: int = Field(4, ge=1, description="n-grams of this size found in a round are avoided in those after it")
    length: int = Field(64, ge=2, description="most tokens of a sentence")
    keep: float = Field(0.3, description="mean share of the update a sentence must explain to be told (explained)")
    beta: float = Field(1.0, ge=0, description="weight of the gradient's norm beside the perplexity (film)")
    reorder: int = Field(0, ge=0, description="steps of each stage of reordering; the paper takes 200")
    rule: RowRule = Field("norm", description="how rows of the word table are told from noise, see the attack bag")
    spans: bool = Field(True, description="add tokens that fit the first layer's span to the bag")


class Film(Attack):
    """A bag of tokens from the update, put in order by beam search with the attacked model, then judged."""

    name = "film"
    summary = (
        "sentences of a language model's batch: a bag of tokens, beam search with the model, ranked by the update"
    )
    Options = FilmOptions
    options: FilmOptions
    at_once = 1

    def prepared(self, model: TextModel) -> Film:
        if model.task != "causal-lm":
            raise GradleakError(
                "film writes sentences with the attacked model, which must be a causal language model"
            )
        return self

    def run(self, updates: Sequence[Update], model: TextModel, context: AttackContext) -> list[Reconstruction]:
        (update,), (seed,), progress = updates, context.seeds, context.progress
        progress.begin(f"{self.name} {context.before + 1}/{context.total}", self.options.rounds, "rounds")
        generator = torch.Generator().manual_seed(seed)
        written = self._one(as_gradient(update), model, generator, context.budget, progress)
        progress.end()
        return [written]

    def _one(
        self, gradient: Update, model: TextModel, generator: torch.Generator, budget: Budget, progress: Progress
    ) -> Reconstruction:
        tokens = tokens_of(model, gradient, self.options.rule, self.options.spans)
        content = [token for token in model.content(list(tokens.scores)) if bool(model.text_tokens[token])]
        explainer = Explainer(model, gradient) if self.options.score == "explained" else None
        if explainer is not None and not explainer.unit:
            tokens.reasons.append(Reason(kind="upper-missing"))
            explainer = None
        if not content:
            return _reconstruction(model, tokens, content, [], budget)
        starts = start_tokens(model, torch.tensor(content, device=model.device))
        # An end that was to be expected leaves hardly a trace, so ends are always tried.
        marks = [token for token in sentence_ends(model) if bool(model.text_tokens[token])]
        bag = torch.tensor(sorted({*content, *marks}), device=model.device)
        grown = self._rounds(model, explainer, bag, starts, tokens.counts, budget, progress)
        if explainer is None:
            judged = self._by_prior(model, grown, content, generator)
        else:
            judged = self._by_update(explainer, grown, content, starts, generator)
        return _reconstruction(model, tokens, content, judged, budget)

    def _rounds(
        self,
        model: TextModel,
        explainer: Explainer | None,
        bag: Tensor,
        starts: Mapping[int, float],
        counts: Mapping[int, int],
        budget: Budget,
        progress: Progress,
    ) -> list[Grown]:
        """The sentences of all searches, those of earlier ones first."""
        options, ends, stock = self.options, sentence_ends(model), Stock(counts)
        length = min(options.length, model.max_length)
        reader: PlainReader | ExplainedReader
        if explainer is None:
            reader = PlainReader(model, bag)
            settings = _plain_settings(options, length, bag, counts, ends)
            queue = [Grown((start,), (), ()) for start in _beginning(starts, counts)]
        else:
            reader = ExplainedReader(explainer, bag)
            settings = BeamSettings(options.beams, options.repeat, length, WEIGHT)
            queue = openings(reader, bag, starts, WEIGHT)
        forbidden, known, found = NGrams(options.avoid), NGrams(OPENING), list[Grown]()
        idle = 0
        for number in range(options.rounds):
            fresh = [one for one in queue if one.tokens[-1] not in known.after(one.tokens[:-1])]
            beginnings, queue = fresh[: options.groups], fresh[options.groups :]
            if explainer is None:  # sentences may begin alike
                queue += beginnings
            seen = search(
                reader,
                bag,
                beginnings,
                settings,
                ends=ends.__contains__,
                forbidden=forbidden,
                budget=budget,
                show=_show_in(progress, number, model),
            )
            new = self._by_likelihood(seen) if explainer is None else self._by_shares(seen, stock, ends.__contains__)
            found += new
            for one in new:
                forbidden.add(one.tokens)
                known.add(one.tokens[:OPENING])
            progress.advance(number + 1)
            idle = 0 if new else idle + 1
            if idle == IDLE or budget.over:
                break
        return found

    def _by_likelihood(self, seen: Sequence[Grown]) -> list[Grown]:
        """The likeliest sentence of a search."""
        return sorted(seen, key=lambda one: one.likelihood, reverse=True)[:1]

    def _by_shares(self, seen: Sequence[Grown], stock: Stock, ends: Callable[[int], bool]) -> list[Grown]:
        """All sentences of a search that explain enough of the update, with tokens that are still to be found."""
        told = [one for one in seen if one.explained >= self.options.keep and one.surplus >= ENOUGH]
        return [one for one in distinct(told, SAME, ends) if stock.take(one.tokens[1:])]

    def _by_prior(
        self, model: TextModel, grown: Sequence[Grown], bag: Sequence[int], generator: torch.Generator
    ) -> list[tuple[tuple[int, ...], float]]:
        """Reordered and ranked by perplexity and the gradient's norm; likelier ones get a higher confidence."""
        sizes, beta, ends = GradientSizes(model), self.options.beta, sentence_ends(model)

        def score(sentences: Sequence[Sequence[int]]) -> Tensor:
            losses, norms = sizes(sentences)
            return losses.exp() + beta * norms

        ranked = sorted(
            (rearranged(one.tokens, score, bag, self.options.reorder, generator, ends.__contains__) for one in grown),
            key=lambda pair: pair[1],
        )
        return [(tokens, 1 / (1 + value)) for tokens, value in ranked]

    def _by_update(
        self,
        explainer: Explainer,
        grown: Sequence[Grown],
        bag: Sequence[int],
        starts: Mapping[int, float],
        generator: torch.Generator,
    ) -> list[tuple[tuple[int, ...], float]]:
        """With their first tokens mended, ranked by how much of the update a token of them explains."""
        ends = sentence_ends(explainer.model)
        score: Score = lambda sentences: -torch.stack([s.mean() for s in explainer.shares(sentences)])  # noqa: E731
        beginnings = Beginnings(explainer, starts)
        found: dict[tuple[int, ...], float] = {}
        for one in grown:
            tokens = beginnings.mended(one.tokens)
            if self.options.reorder:
                tokens, _ = rearranged(tokens, score, bag, self.options.reorder, generator, ends.__contains__)
            found[tokens] = min(1.0, max(0.0, one.explained))
        return sorted(found.items(), key=lambda pair: pair[1], reverse=True)


def _beginning(starts: Mapping[int, float], counts: Mapping[int, int]) -> list[int]:
    """The starts that were read but never predicted, so that they began a sentence; all if that does not show."""
    certain = [start for start in starts if start not in counts] if counts else []
    return certain or list(starts)


def _plain_settings(
    options: FilmOptions, length: int, bag: Tensor, counts: Mapping[int, int], ends: Collection[int]
) -> BeamSettings:
    """A search without shares: sentences are about as long as the tokens divided by the ends, and use up no more."""
    if not counts:
        return BeamSettings(options.beams, options.repeat, length, 0.0)
    sentences = max(1, sum(counts.get(end, 0) for end in ends))
    usual = sum(counts.values()) / sentences + 1
    spread = ALONE if sentences == 1 else SPREAD
    return BeamSettings(
        options.beams,
        options.repeat,
        min(length, max(2, round(spread * usual))),
        0.0,
        least=max(2, round(usual / spread)),
        limits={int(token): counts.get(int(token), 1) for token in bag},
    )


def _show_in(progress: Progress, number: int, model: TextModel) -> Callable[[Sequence[int]], None]:
    return lambda tokens: progress.advance(number, text=model.decode(tokens))


def _reconstruction(
    model: TextModel,
    tokens: Tokens,
    content: Sequence[int],
    judged: Sequence[tuple[tuple[int, ...], float]],
    budget: Budget,
) -> Reconstruction:
    return Reconstruction(
        sentences=[
            Sentence(text=model.decode(ids), tokens=model.content(ids), confidence=round(confidence, 4))
            for ids, confidence in judged
        ],
        lengths=[len(ids) for ids, _ in judged] or None,
        **tokens.told(model, content),
        found=["bag", *(["lengths"] if judged else [])],
        **told(tokens.reasons),
        status=budget.reason if budget.over else "completed",
    )
