"""FILM: whole sentences of a language model's batch, written by the model itself with tokens of the update."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from gradleak.attacks.base import Attack, AttackContext, AttackOptions, Reconstruction, Sentence
from gradleak.attacks.evidence.rows import RowRule, loudest_rows
from gradleak.attacks.evidence.tokens import Tokens, tokens_of
from gradleak.attacks.film.attribution import Attribution
from gradleak.attacks.film.beam import (
    WEIGHT,
    BeamSettings,
    Grown,
    NGrams,
    RemainingTokens,
    distinct,
    likely_openings,
    search,
)
from gradleak.attacks.film.first_token import FirstTokenRepair
from gradleak.attacks.film.readers import ModelReader, UpdateReader
from gradleak.attacks.film.rearrange import Score, rearranged
from gradleak.attacks.film.sentence_bounds import end_tokens, first_tokens
from gradleak.attacks.film.single import Single, SingleReading, output_rows
from gradleak.attacks.reasons import Reason, reason_fields
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.progress import Progress
from gradleak.matching.gradient_norms import GradientNorms
from gradleak.models.text import TextModel
from gradleak.updates.gradient import as_gradient
from gradleak.updates.update import Update

# Sentences that share a run of so many tokens are the same sentence.
SAME = 4
# Tokens of the openings from which sentences are grown.
OPENING = 3
# What the tokens of a sentence must explain beyond the least: shorter pieces are found in many orders.
ENOUGH = 1.5
# Sentences are taken to be this many times shorter or longer than usual at most; less if there is only one sentence.
SPREAD, ALONE = 2.0, 1.15
# What a sentence that made a noisy update alone explains of it at least; of a batch of two either explains less.
ALONE_EXPLAINS = 0.8
# Beams and first tokens of its search, at most, and what a share counts beside a log-probability, up to which share:
# what is explained decides nearly every step. Measured on smollm2 and five sentences of Rotten Tomatoes, at noise of
# 5e-5 and 5e-4: after true beginnings the right token is first of about 500 in 267 of 270 places, by 16 and 1.0 in
# 265, and ahead by 2 and more in 263, against 256.
ALONE_BEAMS, ALONE_FIRST, ALONE_WEIGHT, ALONE_SHARE = 8, 4, 24.0, 1.5
# Tokens that it may be made of, and how far it falls below its best before it is given up: expected tokens explain
# nothing.
ALONE_TOKENS, ALONE_GIVE_UP = 512, 3.0
# Runs of so many tokens that it has once: a token that comes often would be repeated without end.
ALONE_REPEAT = 4
# Rounds in a row without a new sentence after which there is no other.
IDLE = 3


class FilmOptions(AttackOptions):
    score: Literal["explained", "film"] = Field(
        "explained",
        description="how sentences are judged: by how much of the update they explain, or as in the paper",
    )
    beams: int = Field(32, ge=1, le=1024, description="sentences that grow at once")
    groups: int = Field(8, ge=1, description="different openings that share them")
    rounds: int = Field(20, ge=1, description="searches; each avoids what was found before")
    repeat: int = Field(2, ge=0, description="n-grams of this size occur once in a sentence; 0: no rule")
    avoid: int = Field(4, ge=1, description="n-grams of this size found in a round are avoided in those after it")
    length: int = Field(64, ge=2, description="most tokens of a sentence")
    keep: float = Field(
        0.3, description="mean share of the update that a sentence must explain to be kept (explained)"
    )
    beta: float = Field(1.0, ge=0, description="weight of the gradient's norm beside the perplexity (film)")
    reorder: int = Field(0, ge=0, description="steps of each stage of reordering; the paper takes 200")
    rule: RowRule = Field(
        "norm", description="how rows of the token embedding are told from noise, see the attack bag"
    )
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
        if not model.goal.autoregressive:
            raise GradleakError(
                "film writes sentences with the attacked model, which must be a causal language model"
            )
        return self

    def run(self, updates: Sequence[Update], model: TextModel, context: AttackContext) -> list[Reconstruction]:
        (update,), (seed,), progress = updates, context.seeds, context.progress
        progress.begin(f"{self.name} {context.before + 1}/{context.total}", self.options.rounds, "rounds")
        generator = torch.Generator().manual_seed(seed)
        written = self._write(as_gradient(update, model), model, generator, context)
        progress.end()
        return [written]

    def _write(
        self, gradient: Update, model: TextModel, generator: torch.Generator, context: AttackContext
    ) -> Reconstruction:
        budget, progress = context.budget, context.progress
        tokens = tokens_of(model, gradient, self.options.rule, self.options.spans, budget)
        content = [token for token in model.content(list(tokens.scores)) if bool(model.text_tokens[token])]
        attribution = Attribution(model, gradient) if self.options.score == "explained" else None
        if attribution is not None and not attribution.unit:
            tokens.reasons.append(Reason(kind="upper-missing"))
            attribution = None
        # Nothing shows which tokens there were, as while adapters are fresh (B is zero): with a whole vocabulary to
        # choose from, whatever explains most is no text at all.
        if not content:
            return _reconstruction(model, tokens, content, [], budget)
        first = first_tokens(model, torch.tensor(content, device=model.device))
        # An expected end leaves hardly a trace, so ends are always tried.
        ends = [token for token in end_tokens(model) if bool(model.text_tokens[token])]
        bag = torch.tensor(sorted({*content, *ends}), device=model.device)

        def as_alone(found: Single) -> Reconstruction:
            known, own = tokens, content
            if found.whole:  # then the tokens are known too
                known, own = Tokens.of(found.tokens), model.content(sorted(set(found.tokens)))
            return _reconstruction(model, known, own, [(found.tokens, found.explained)], budget)

        alone = self._alone(
            attribution,
            gradient,
            content,
            _never_predicted(first, tokens.counts),
            budget,
            progress,
            lambda found: context.keep(0, as_alone(found)),
        )
        if alone is not None:
            return as_alone(alone)
        grown = self._rounds(model, attribution, bag, first, tokens.counts, budget, progress)
        if attribution is None:
            judged = self._by_prior(model, grown, content, generator)
        else:
            judged = self._by_update(attribution, grown, content, first, generator)
        return _reconstruction(model, tokens, content, judged, budget)

    def _alone(
        self,
        attribution: Attribution | None,
        gradient: Update,
        bag: Sequence[int],
        first: Sequence[int],
        budget: Budget,
        progress: Progress,
        keep: Callable[[Single], None],
    ) -> Single | None:
        """The sentence behind a noisy update, if it explains enough of it to have made it alone."""
        if attribution is None or not attribution.noise or gradient.known.size not in (None, 1):
            return None
        model, options = attribution.model, self.options
        if output_rows(model) not in gradient.tensors:
            return None
        length = min(options.length, model.max_length)
        settings = BeamSettings(
            min(options.beams, ALONE_BEAMS),
            ALONE_REPEAT,
            length,
            ALONE_WEIGHT,
            most_share=ALONE_SHARE,
            give_up=ALONE_GIVE_UP,
        )
        loud = loudest_rows(gradient.tensors[output_rows(model)], ALONE_TOKENS).tolist()
        possible = [token for token in sorted({*bag, *loud}) if bool(model.text_tokens[token])]
        reading = SingleReading(attribution, gradient, possible, settings, budget, _show_in(progress, 0, model), keep)
        found = reading.read(first[: min(options.groups, ALONE_FIRST)])
        # When the time is over there is nothing else to give.
        enough = 0.0 if budget.over else ALONE_EXPLAINS
        return found if found is not None and found.explained >= enough else None

    def _rounds(
        self,
        model: TextModel,
        attribution: Attribution | None,
        bag: Tensor,
        first: Mapping[int, float],
        counts: Mapping[int, int],
        budget: Budget,
        progress: Progress,
    ) -> list[Grown]:
        """The sentences of all searches, in the order of the searches."""
        options, ends, remaining = self.options, end_tokens(model), RemainingTokens(counts)
        length = min(options.length, model.max_length)
        reader: ModelReader | UpdateReader
        if attribution is None:
            reader = ModelReader(model, bag)
            settings = _plain_settings(options, length, bag, counts, ends)
            queue = [Grown((token,), (), ()) for token in _never_predicted(first, counts)]
        else:
            reader = UpdateReader(attribution, bag)
            settings = BeamSettings(options.beams, options.repeat, length, WEIGHT)
            queue = likely_openings(reader, bag, first, WEIGHT)
        forbidden, used, grown = NGrams(options.avoid), NGrams(OPENING), list[Grown]()
        idle = 0
        for number in range(options.rounds):
            fresh = [opening for opening in queue if opening.tokens[-1] not in used.after(opening.tokens[:-1])]
            openings, queue = fresh[: options.groups], fresh[options.groups :]
            if attribution is None:  # sentences may begin alike
                queue += openings
            seen = search(
                reader,
                bag,
                openings,
                settings,
                ends=ends.__contains__,
                forbidden=forbidden,
                budget=budget,
                show=_show_in(progress, number, model),
            )
            if attribution is None:
                new = self._by_likelihood(seen)
            else:
                new = self._by_shares(seen, remaining, ends.__contains__)
            grown += new
            for sentence in new:
                forbidden.add(sentence.tokens)
                used.add(sentence.tokens[:OPENING])
            progress.advance(number + 1)
            idle = 0 if new else idle + 1
            if idle == IDLE or budget.over:
                break
        return grown

    def _by_likelihood(self, seen: Sequence[Grown]) -> list[Grown]:
        """The likeliest sentence of a search."""
        return sorted(seen, key=lambda sentence: sentence.likelihood, reverse=True)[:1]

    def _by_shares(
        self, seen: Sequence[Grown], remaining: RemainingTokens, ends: Callable[[int], bool]
    ) -> list[Grown]:
        """All sentences of a search that explain enough of the update, with tokens that remain to be found."""
        enough = [s for s in seen if s.explained >= self.options.keep and s.surplus >= ENOUGH]
        return [sentence for sentence in distinct(enough, SAME, ends) if remaining.take(sentence.tokens[1:])]

    def _by_prior(
        self, model: TextModel, grown: Sequence[Grown], bag: Sequence[int], generator: torch.Generator
    ) -> list[tuple[tuple[int, ...], float]]:
        """Reordered and ranked by perplexity and the gradient's norm; the likelier, the higher the confidence."""
        sizes, beta, ends = GradientNorms(model), self.options.beta, end_tokens(model)

        def score(sentences: Sequence[Sequence[int]]) -> Tensor:
            losses, norms = sizes(sentences)
            return losses.exp() + beta * norms

        ranked = sorted(
            (rearranged(s.tokens, score, bag, self.options.reorder, generator, ends.__contains__) for s in grown),
            key=lambda pair: pair[1],
        )
        return [(tokens, 1 / (1 + value)) for tokens, value in ranked]

    def _by_update(
        self,
        attribution: Attribution,
        grown: Sequence[Grown],
        bag: Sequence[int],
        first: Mapping[int, float],
        generator: torch.Generator,
    ) -> list[tuple[tuple[int, ...], float]]:
        """With their first tokens repaired, ranked by how much of the update their tokens explain."""
        ends = end_tokens(attribution.model)
        score: Score = lambda sentences: -torch.stack([s.mean() for s in attribution.shares(sentences)])  # noqa: E731
        repair = FirstTokenRepair(attribution, first)
        shares: dict[tuple[int, ...], float] = {}
        for sentence in grown:
            tokens = repair.repaired(sentence.tokens)
            if self.options.reorder:
                tokens, _ = rearranged(tokens, score, bag, self.options.reorder, generator, ends.__contains__)
            shares[tokens] = min(1.0, max(0.0, sentence.explained))
        return sorted(shares.items(), key=lambda pair: pair[1], reverse=True)


def _never_predicted(first: Mapping[int, float], counts: Mapping[int, int]) -> list[int]:
    """The first tokens that were read but never predicted, so that they began a sentence; all if none shows."""
    certain = [token for token in first if token not in counts] if counts else []
    return certain or list(first)


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
        **tokens.fields(model, content),
        found=["bag", *(["lengths"] if judged else [])],
        **reason_fields(tokens.reasons),
        status=budget.reason if budget.over else "completed",
    )
