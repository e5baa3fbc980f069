"""Soft: sentences of a language model's update that shows only a part of what its layers saw."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field

from gradleak.attacks.base import Attack, AttackContext, AttackOptions, Reconstruction, Sentence
from gradleak.attacks.crowded.attended import attention_shows
from gradleak.attacks.crowded.chains import Chains
from gradleak.attacks.crowded.reading import Read as CrowdedRead
from gradleak.attacks.crowded.reading import Reading as CrowdedReading
from gradleak.attacks.crowded.reading import as_rich, crowded, learned_in
from gradleak.attacks.evidence.tokens import Tokens, tokens_of
from gradleak.attacks.reasons import Reason, reason_fields
from gradleak.attacks.soft.background import Background, Spot, background, spots_of
from gradleak.attacks.soft.directions import observed
from gradleak.attacks.soft.open_search import LIKELIEST, OpenJudge, learn, open_search
from gradleak.attacks.soft.predictions import COMPARED, SPREAD, Comparison, Predictions, comparison, views_of
from gradleak.attacks.soft.reading import Read, Reading, SearchSize, beginnings, sure
from gradleak.attacks.soft.rehearsal import Distort, Learned, gradient_of, rehearse
from gradleak.attacks.soft.search import CLOSE, Written, distinct
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.progress import Progress
from gradleak.defenses import known_defenses
from gradleak.models.text import TextModel
from gradleak.priors.public import public_rows
from gradleak.updates.gradient import as_gradient
from gradleak.updates.update import Update

# Public sentences that show what states look like; tokens of rehearsed ones at most.
PUBLIC, LONGEST = 100, 40
# Public sentences after whose prefixes it is seen how much of a crowded update anything explains.
PREFIXES = 12
# The share of the time in which beginnings are gathered where nothing can be solved for.
GATHERED = 0.6
# How sure a sentence of a crowded update must be to be given without proof.
GIVEN = 0.5
# The share of the time that learning what evidence is worth may take.
REHEARSAL_SHARE = 0.4
# Of it, the share for learning how gradients spread.
COMPARING_SHARE = 0.5
# Distinct tokens of a usual sentence: how many sentences there are, where nobody says.
USUAL = 14
# Groups of layers whose predictions are looked at where nothing else shows; the lowest takes no part in the search.
OPEN_GROUPS = 3
# By how many deviations those layers must confirm a sentence.
CONFIRMED = 5.0
# What was learned is kept for so many kinds of updates: the next update of a run needs it again.
KEPT = 2
# Randomness of public text and of rehearsals; an answer depends on no other.
SEED = 0


class SoftOptions(AttackOptions):
    beams: int = Field(192, ge=1, le=1024, description="sentences that grow at once")
    groups: int | None = Field(None, ge=1, description="different openings that share them; default: by the batch")
    closer: int = Field(8, ge=1, description="most tokens after each whose states are looked at, likeliest first")
    rounds: int = Field(32, ge=1, description="searches; what is proved in one is taken out before the next")
    rehearsals: int = Field(4, ge=1, le=100, description="batches of public text on which evidence is weighed")
    length: int = Field(64, ge=2, description="most tokens of a sentence")


class Soft(Attack):
    """Beam search over the tokens of the batch, by evidence of all layers whose worth is learned on public text."""

    name = "soft"
    summary = (
        "sentences of a language model beyond the rank, LoRA or full: soft spans of all layers weighed on public text"
    )
    Options = SoftOptions
    options: SoftOptions
    at_once = 1

    def prepared(self, model: TextModel) -> Soft:
        if not model.goal.autoregressive:
            raise GradleakError("soft grows sentences from their beginnings: it needs a causal language model")
        return self

    def run(self, updates: Sequence[Update], model: TextModel, context: AttackContext) -> list[Reconstruction]:
        (update,) = updates
        gradient = as_gradient(update, model)
        tokens = tokens_of(model, gradient, budget=context.budget)
        return [self.read(gradient, tokens, model, context)]

    def read(self, gradient: Update, tokens: Tokens, model: TextModel, context: AttackContext) -> Reconstruction:
        """The sentences of a gradient, made of the tokens that it names; of the whole vocabulary if it names none."""
        budget, progress = context.budget, context.progress
        content = [token for token in model.content(list(tokens.scores)) if bool(model.text_tokens[token])]
        context.keep(0, _reconstruction(model, tokens, content, Read(), budget))
        if not content:
            return self._read_openly(gradient, tokens, model, context)
        if crowded(model, gradient):
            return self._read_crowded(gradient, tokens, content, model, context)
        learned = self._learned(gradient, model, len(content), budget, progress) if len(content) > 1 else None
        if learned is None:
            reasons = [] if budget.over else [Reason(kind="states-missing")]
            return _reconstruction(model, tokens, content, Read(), budget, reasons)
        size = SearchSize(
            _sentences(gradient, len(content)),
            self.options.beams,
            self.options.groups,
            self.options.rounds,
            min(self.options.length, model.max_length),
            replace(CLOSE, most=self.options.closer),
        )
        progress.begin(f"{self.name} {context.before + 1}/{context.total}", 0)
        reading = Reading(
            model,
            gradient,
            list(tokens.scores),
            *learned,
            size,
            budget,
            lambda grown: progress.advance(0, text=model.decode(grown)),
        )
        found = reading.run(lambda so_far: context.keep(0, _reconstruction(model, tokens, content, so_far, budget)))
        progress.end()
        return _reconstruction(model, tokens, content, found, budget)

    def _learned(
        self, gradient: Update, model: TextModel, tokens: int, budget: Budget, progress: Progress
    ) -> tuple[Background, Learned] | None:
        """What states look like in public text, and what evidence of such an update is worth there."""
        sentences, names = _sentences(gradient, tokens), tuple(gradient.tensors)
        key = ("named", *self._kind(gradient, model, sentences))
        if key in _LEARNED:
            return _LEARNED.recall(key)
        spots = spots_of(model, names)
        if not spots:
            return None
        own = budget.part(REHEARSAL_SHARE)
        progress.begin(f"{self.name}: rehearsing on public text", self.options.rehearsals, "batches")
        general = self._usual(model, spots, names, progress)
        if observed(general, gradient.tensors) is None:
            return None
        learned = rehearse(
            model,
            gradient,
            general,
            self._compared(gradient, model, sentences, 1, own),
            self._rehearsed(model, sentences),
            _distort(gradient, model),
            own,
            SEED,
            progress.advance,
        )
        progress.end()
        if learned is None:
            return None
        return _LEARNED.put(key, (general, learned)) if not own.over else (general, learned)

    def _usual(
        self, model: TextModel, spots: Sequence[Spot], names: tuple[str, ...], progress: Progress
    ) -> Background:
        """What states look like in public text, whatever the client did."""
        key = (model.fingerprint, names)
        if key in _STATES:
            return _STATES.recall(key)
        return _STATES.put(key, background(model, spots, public_rows(model, PUBLIC, SEED, progress=progress)))

    def _kind(self, gradient: Update, model: TextModel, sentences: int) -> tuple[Any, ...]:
        """What decides what is learned for an update: others of the same kind need not learn it again."""
        manifest, names = gradient.manifest, tuple(gradient.tensors)
        return model.fingerprint, names, sentences, str(manifest.client), manifest.defenses, self.options.rehearsals

    def _rehearsed(self, model: TextModel, sentences: int) -> list[list[list[int]]]:
        """Batches of public text that evidence is weighed on."""
        rows = public_rows(model, self.options.rehearsals * sentences, SEED + 1, most=LONGEST)
        return [rows[n : n + sentences] for n in range(0, len(rows), sentences)]

    def _compared(
        self, gradient: Update, model: TextModel, sentences: int, groups: int, budget: Budget
    ) -> Comparison:
        """Updates of other public batches, made and distorted as the client makes its own."""
        rows = public_rows(model, COMPARED * sentences + SPREAD, SEED + 2, most=LONGEST)
        names, distort = list(gradient.tensors), _distort(gradient, model)
        batches = [rows[n * sentences : (n + 1) * sentences] for n in range(COMPARED)]
        key = (model.fingerprint, sentences)
        return comparison(
            model,
            views_of(model, groups),
            [distort(gradient_of(model, batch, names)) for batch in batches],
            rows[COMPARED * sentences :],
            lambda row, wanted: gradient_of(model, [row], wanted),
            budget.part(COMPARING_SHARE),
            _SPREADS.recall(key) if key in _SPREADS else _SPREADS.put(key, {}),
        )

    def _read_crowded(
        self, gradient: Update, tokens: Tokens, content: Sequence[int], model: TextModel, context: AttackContext
    ) -> Reconstruction:
        """The sentences of a full gradient of more tokens than dimensions.

        Those that can be followed from proof to proof come first; the others are looked for in what is left.
        """
        budget, progress = context.budget, context.progress
        length = min(self.options.length, model.max_length)
        proved: list[tuple[int, ...]] = []

        def keep(found: CrowdedRead) -> None:
            context.keep(0, _of_crowd(model, tokens, content, found, budget))

        def show(grown: Sequence[int]) -> None:
            progress.advance(0, text=model.decode(grown))

        progress.begin(f"{self.name} {context.before + 1}/{context.total}", 0)
        if attention_shows(model, gradient.tensors, content):
            # With more different tokens than dimensions it may lead nowhere, and time is kept for the other way.
            patience = None if len(content) < model.width else budget.part(GATHERED)
            chains = Chains(model, gradient, content, length, budget, show, patience)
            followed = chains.run(lambda so_far: keep(CrowdedRead().beside(so_far.proved)))
            proved = list(followed.proved)
            gradient = Update(followed.left, gradient.manifest)
            if followed.complete or budget.over or not crowded(model, gradient):
                found = CrowdedRead(proved=followed.complete).beside(proved)
                return _of_crowd(model, tokens, content, found, budget)
        sentences = max(1, _sentences(gradient, len(content)) - len(proved))
        progress.begin(f"{self.name}: rehearsing on public text", 0)
        key = ("crowded", *self._kind(gradient, model, sentences))
        if key not in _LEARNED:
            rows = public_rows(model, 2 * sentences, SEED + 1, most=LONGEST, progress=progress)
            prefixes = public_rows(model, PREFIXES, SEED + 2, most=LONGEST)
            learned = learned_in(model, gradient, as_rich(rows, len(content)), prefixes, SEED)
            if learned is None:
                reasons = [Reason(kind="states-missing")]
                return _of_crowd(model, tokens, content, CrowdedRead().beside(proved), budget, reasons)
            _LEARNED.put(key, learned)
        progress.begin(f"{self.name} {context.before + 1}/{context.total}", 0)
        reading = CrowdedReading(model, gradient, content, sentences, length, _LEARNED.recall(key), budget, show)
        found = reading.run(lambda so_far: keep(so_far.beside(proved))).beside(proved)
        progress.end()
        return _of_crowd(model, tokens, content, found, budget)

    def _read_openly(
        self, gradient: Update, tokens: Tokens, model: TextModel, context: AttackContext
    ) -> Reconstruction:
        """The sentences of a gradient that names no tokens, by what they explain as predictions."""
        budget, progress = context.budget, context.progress
        progress.begin(f"{self.name}: rehearsing on public text", 0)
        learned = self._learned_openly(gradient, model, budget)
        if learned is None:
            reasons = [] if budget.over else [Reason(kind="tokens-missing")]
            return _reconstruction(model, tokens, [], Read(), budget, reasons)
        compared, witnesses, judge = learned
        progress.begin(f"{self.name} {context.before + 1}/{context.total}", 0)
        # What a search prefers, it prefers for chance too: layers that had no say in it decide.
        witness = Predictions.of(model, witnesses, gradient.tensors)
        said: dict[tuple[int, ...], bool] = {}

        def confirmed(sentence: Written) -> bool:
            tokens = sentence.best.tokens
            if tokens not in said:
                said[tokens] = len(tokens) > 1 and witness.testimony(tokens) >= CONFIRMED
            return said[tokens]

        written = open_search(
            Predictions.of(model, compared, gradient.tensors),
            judge,
            beginnings(model, model.text_tokens.nonzero()[:, 0]),
            self.options.beams,
            min(self.options.length, model.max_length),
            budget,
            confirmed,
            lambda grown: progress.advance(0, text=model.decode(grown)),
        )
        progress.end()
        likely = [each.best for each in distinct(written)[:LIKELIEST] if sure(each.best) and confirmed(each)]
        found = Read(likely=[(each.tokens, each) for each in likely[: gradient.known.size]])
        reasons = [] if likely or budget.over else [Reason(kind="tokens-missing")]
        return _reconstruction(model, tokens, [], found, budget, reasons)

    def _learned_openly(
        self, gradient: Update, model: TextModel, budget: Budget
    ) -> tuple[Comparison, Comparison, OpenJudge] | None:
        """What sentences are searched by, what confirms them, and what evidence is worth."""
        sentences, names = _sentences(gradient, USUAL), list(gradient.tensors)
        key = ("unnamed", *self._kind(gradient, model, sentences))
        if key in _LEARNED:
            return _LEARNED.recall(key)
        own = budget.part(REHEARSAL_SHARE)
        every = self._compared(gradient, model, sentences, OPEN_GROUPS, own)
        lowest = min((view.first for view in every.views), default=0)
        compared = every.only(lambda view: view.first > lowest)
        witnesses = every.only(lambda view: view.first == lowest)
        if not compared.views:
            return None
        distort = _distort(gradient, model)
        rehearsed = (
            (Predictions.of(model, compared, distort(gradient_of(model, rows, names))), rows)
            for rows in self._rehearsed(model, sentences)
        )
        judge = learn(rehearsed, own)
        return None if judge is None else _LEARNED.put(key, (compared, witnesses, judge))


class _Kept(OrderedDict[Any, Any]):
    """The last few things that were learned."""

    def recall(self, key: Any) -> Any:
        self.move_to_end(key)
        return self[key]

    def put(self, key: Any, learned: Any) -> Any:
        self[key] = learned
        while len(self) > KEPT:
            self.popitem(last=False)
        return learned


_LEARNED = _Kept()
# What public text alone shows. A rehearsal that was cut goes on from it at the next update, and one for another
# defence begins with it.
_STATES, _SPREADS = _Kept(), _Kept()


def _sentences(gradient: Update, tokens: int) -> int:
    """How many sentences the batch has, as known or by its tokens."""
    return gradient.known.size or max(1, round(tokens / USUAL))


def _distort(gradient: Update, model: TextModel) -> Distort:
    """What the client's defences did to its gradient, done to a rehearsed one."""
    defenses = [defense for defense in known_defenses(gradient.manifest.defenses) if defense is not None]

    def distort(tensors: Any) -> Any:
        made = dict(tensors)
        for number, defense in enumerate(defenses):
            made = defense.apply(made, model, torch.Generator().manual_seed(SEED + number))
        return {name: made[name] for name in gradient.tensors if name in made}

    return distort


def _reconstruction(
    model: TextModel,
    tokens: Tokens,
    content: Sequence[int],
    found: Read,
    budget: Budget,
    reasons: Sequence[Reason] = (),
) -> Reconstruction:
    proved = [_sentence(model, ids, 1.0, certified=True) for ids in found.proved]
    likely = [
        _sentence(model, ids, 1 / (1 + math.exp(-written.total / len(written.tokens))))
        for ids, written in found.likely
    ]
    sentences = [*proved, *likely]
    return Reconstruction(
        sentences=sentences,
        lengths=[len(ids) for ids in (*found.proved, *(ids for ids, _ in found.likely))] or None,
        **tokens.fields(model, content),
        found=["bag", *(["lengths"] if sentences else [])],
        **reason_fields([*tokens.reasons, *reasons]),
        status="completed" if found.complete or not budget.over else budget.reason,
    )


def _of_crowd(
    model: TextModel,
    tokens: Tokens,
    content: Sequence[int],
    found: CrowdedRead,
    budget: Budget,
    reasons: Sequence[Reason] = (Reason(kind="gradient-left"),),
) -> Reconstruction:
    if found.proved:  # then its tokens are those of the sentences, but for last ones, which are only predicted
        content = sorted({token for ids in found.sentences for token in model.content(ids[:-1])})
        tokens = replace(tokens, scores=dict.fromkeys(content, 1.0), counts={})
    likeliest = sorted(found.sentences.items(), key=lambda each: -each[1])
    given = {ids: 1.0 if found.proved else sure for ids, sure in likeliest if found.proved or sure >= GIVEN}
    sentences = [
        _sentence(model, ids, sure, certified=found.proved or ids in found.certain) for ids, sure in given.items()
    ]
    return Reconstruction(
        sentences=sentences,
        lengths=[len(ids) for ids in given] or None,
        **tokens.fields(model, content),
        found=["bag", *(["lengths"] if sentences else [])],
        **reason_fields([*tokens.reasons, *([] if found.proved else reasons)]),
        status="completed" if found.proved or not budget.over else budget.reason,
    )


def _sentence(model: TextModel, ids: Sequence[int], confidence: float, certified: bool = False) -> Sentence:
    tokens = model.content(ids)
    return Sentence(
        text=model.decode(tokens),
        tokens=tokens,
        confidence=round(confidence, 4),
        certified=certified and bool(tokens),
        stage=Soft.name,
        lost=model.lost(ids),
    )
