"""Auto: name the tokens, prove what can be proved, let a language model write sentences, match the rest."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

from pydantic import Field

from gradleak.attacks.bag import Bag
from gradleak.attacks.base import Attack, AttackContext, AttackOptions, Keep, Reconstruction, Sentence
from gradleak.attacks.crowded.reading import crowded
from gradleak.attacks.evidence.hints import points_anywhere
from gradleak.attacks.evidence.lengths import shortest_sentence
from gradleak.attacks.exact.attack import Exact, as_reconstruction, recover, show_in
from gradleak.attacks.exact.limits import too_little
from gradleak.attacks.exact.recovery import Outcome
from gradleak.attacks.exact.remaining import remaining
from gradleak.attacks.film.attack import Film
from gradleak.attacks.reasons import Reason, reason_fields
from gradleak.attacks.search.lamp import LampCos
from gradleak.attacks.search.matching_attack import MatchingAttack
from gradleak.attacks.search.noisy import NAME, Through, noise_on_one, read_noisy
from gradleak.attacks.search.subspace import Subspace
from gradleak.attacks.soft.attack import Soft
from gradleak.attacks.spans.certify import attention_parts
from gradleak.core.budget import Stopped, StopReason
from gradleak.core.errors import GradleakError
from gradleak.core.supervision import supervised
from gradleak.matching.parameters import unmatchable
from gradleak.models.text import TextModel
from gradleak.priors.ngram import load_ngram
from gradleak.updates.gradient import Undone, undo
from gradleak.updates.update import Update

# The share of the time that naming the tokens may take. It comes first: where no sentence can be read, the tokens are
# what leaks.
BAG_SHARE = 0.2
# The share of the time left that proving may take, so that some remains for matching.
EXACT_SHARE = 0.6
# The share of the time left after that for writing.
FILM_SHARE = 0.6
# Before it, the share that `soft` may take of what shows no span: its evidence is the strongest there.
SOFT_SHARE = 0.7
# The share that looking through noise may take: what it finds is seldom improved by matching.
NOISY_SHARE = 0.8


class AutoOptions(AttackOptions):
    prior: str = Field("ngram", description="ngram, smollm2, none, or a causal language model (folder or hub id)")
    steps: int | None = Field(None, ge=0, description="optimisation steps of the matching stage; default: its own")
    adapt: bool = Field(True, description="take defences that show in the update into account when matching")
    memory: str | None = Field(None, description="what matching may use, such as 4GB; default: half of the free")


class Auto(Attack):
    """The tokens, exact recovery; where it proves nothing of a language model, `film`; then matching on the rest.

    If the update points at certain tokens, matching keeps to them.
    """

    name = "auto"
    summary = (
        "bag and exact first, then soft (beyond the rank), film (language models), subspace or LAMP; says what failed"
    )
    Options = AutoOptions
    options: AutoOptions

    @property
    def prior(self) -> str:
        return self.options.prior

    def run(self, updates: Sequence[Update], model: TextModel, context: AttackContext) -> list[Reconstruction]:
        undone = [undo(update, model) for update in updates]
        gradients = [each.gradient for each in undone]
        bags = self._name(gradients, model, context)
        context = replace(context, keep=_keep_tokens(context, bags, model))
        outcomes, answers = self._prove(undone, model, context)
        written = self._write(updates, gradients, outcomes, model, context, answers)
        through = self._look_through_noise(updates, outcomes, model, context, answers)
        for number, found in list(through.items()):
            if found.enough:
                answers[number] = _merged(answers[number], through.pop(number).answer, NAME)
                written.add(number)
        budget = context.budget
        for attack, numbers, rest in self._plan(updates, gradients, outcomes, model, answers, written):
            if budget.over:  # matching was still to come, so the attack is not complete
                for number in numbers:
                    answers[number] = answers[number].model_copy(update={"status": budget.reason})
                continue
            try:
                matched = attack.run(rest, model, _beside(context, numbers, answers, attack.name))
            except GradleakError as error:  # such as too little memory: what was found before it stands
                for number in numbers:
                    answers[number].add_reasons(Reason(kind="nothing-to-match", about=str(error)))
                continue
            for number, more in zip(numbers, matched, strict=True):
                before = through.get(number)
                if before is None or before.less_likely_than(more, updates[number], model):
                    through.pop(number, None)
                    answers[number] = _merged(answers[number], more, attack.name)
        for number, found in through.items():
            answers[number] = _merged(answers[number], found.answer, NAME)
        return [_with_tokens(answer, bag, model) for answer, bag in zip(answers, bags, strict=True)]

    def _name(self, gradients: Sequence[Update], model: TextModel, context: AttackContext) -> list[Reconstruction]:
        """The tokens of every update."""
        bag, bags, progress = Bag(), [], context.progress
        progress.begin(f"{self.name}: {bag.name}", len(gradients), "updates")
        for number, gradient in enumerate(gradients):
            own = context.budget.part(BAG_SHARE / (len(gradients) - number))
            try:
                named = supervised(functools.partial(bag.read, gradient, model, own), own)
            except Stopped:
                context.budget.check()
                named = Reconstruction(found=["bag"], **reason_fields([Reason(kind="stage-cut", about=bag.name)]))
            bags.append(named)
            context.keep(number, named)
            progress.advance(number + 1)
        progress.end()
        return bags

    def _prove(
        self, undone: Sequence[Undone], model: TextModel, context: AttackContext
    ) -> tuple[list[Outcome], list[Reconstruction]]:
        outcomes, answers, progress = [], [], context.progress
        progress.begin(f"{self.name}: {Exact.name}", len(undone), "updates")
        for number, (each, seed) in enumerate(zip(undone, context.seeds, strict=True)):
            # A hard update must not take the others' time.
            own = context.budget.part(EXACT_SHARE / (len(undone) - number))
            work = functools.partial(recover, each, model, seed, own, show_in(progress, number))
            try:
                outcome = supervised(work, own)
            except Stopped:  # by its share; if all of the time is over, the attack itself is stopped
                context.budget.check()
                outcome = Outcome(reasons=[Reason(kind="stage-cut", about=Exact.name)])
            outcomes.append(outcome)
            answers.append(as_reconstruction(outcome, model, each.gradient.manifest.client, own))
            context.keep(number, answers[number], final=outcome.complete)
            progress.advance(number + 1)
        progress.end()
        return outcomes, answers

    def _write(
        self,
        updates: Sequence[Update],
        gradients: Sequence[Update],
        outcomes: Sequence[Outcome],
        model: TextModel,
        context: AttackContext,
        answers: list[Reconstruction],
    ) -> set[int]:
        """Let a language model write sentences where nothing was proved, as beyond the rank limit.

        Returns the updates of which it wrote some. `film` keeps only sentences that explain enough of the update, so
        an update without any goes on to matching.
        """
        if not model.goal.autoregressive or context.budget.over:
            return set()
        written: set[int] = set()
        film = Film()
        writers: list[tuple[Attack, float]] = [(Soft(), SOFT_SHARE), (film, FILM_SHARE)]
        for writer, part in writers:
            nothing = [n for n, o in enumerate(outcomes) if not o.complete and not o.sentences and n not in written]
            if writer is film:
                unproved = nothing
            elif model.has_adapters:
                # These show a part of every state, and exact recovery has no last tokens of them, so proves nothing.
                unproved = [n for n, own in enumerate(answers) if not _all_proved(own)]
            else:
                unproved = [n for n in nothing if crowded(model, gradients[n])]
            if context.budget.over:
                break
            if not unproved:
                continue
            share = context.for_updates(unproved).with_budget(context.budget.part(part))
            portions = share.portions([updates[n] for n in unproved], writer.at_once)
            attempts = [answer for portion, own in portions for answer in self._written(writer, portion, model, own)]
            for number, more in zip(unproved, attempts, strict=True):
                # Without shares film judges by the model alone, and is never as sure as this.
                sure = [s for s in more.sentences if writer is not film or s.confidence >= film.options.keep]
                if sure:
                    kept = more.model_copy(update={"sentences": sure})
                    before = answers[number] if writer is film else _without_repeats(answers[number], sure)
                    answers[number] = _merged(before, kept, writer.name)
                    written.add(number)
                else:
                    reasons = [Reason(kind="nothing-written")] if writer is film else more.reasons
                    answers[number].add_reasons(*reasons)
                    answers[number] = answers[number].model_copy(update={"status": _ended(answers[number], more)})
        return written

    def _written(
        self, writer: Attack, portion: Sequence[Update], model: TextModel, own: AttackContext
    ) -> list[Reconstruction]:
        """What a writer makes of some updates; if it is ended before, the best that it had."""
        kept: dict[int, Reconstruction] = {}

        def keep(number: int, answer: Reconstruction, final: bool = False) -> None:
            kept[number] = answer

        watched = replace(own, keep=keep)
        try:
            return supervised(functools.partial(writer.run, portion, model, watched), own.budget)
        except Stopped:
            cut = Reconstruction(**reason_fields([Reason(kind="stage-cut", about=writer.name)]))
            return [kept.get(n, cut).model_copy(update={"status": own.budget.reason}) for n in range(len(portion))]

    def _look_through_noise(
        self,
        updates: Sequence[Update],
        outcomes: Sequence[Outcome],
        model: TextModel,
        context: AttackContext,
        answers: list[Reconstruction],
    ) -> dict[int, Through]:
        """The likeliest sentences of the updates that have a single one behind Gaussian noise."""
        if not self.options.adapt or context.budget.over:
            return {}
        unread = [number for number, outcome in enumerate(outcomes) if not outcome.complete and not outcome.sentences]
        levels = {number: noise_on_one(updates[number], model) for number in unread}
        noisy = [number for number, level in levels.items() if level > 0]
        if not noisy:
            return {}
        progress, through = context.progress, {}
        # Whole language models are too slow for so many guesses.
        prior = None if self.options.prior == "none" else load_ngram(model, progress, context.budget)
        progress.begin(f"{self.name}: {NAME}", len(noisy), "updates")
        for done, number in enumerate(noisy):
            own = context.budget.part(NOISY_SHARE / (len(noisy) - done))
            found = read_noisy(updates[number], model, levels[number], prior, context.seeds[number], own)
            if found is not None:
                through[number] = found
                context.keep(number, _merged(answers[number], found.answer, NAME), final=found.enough)
            progress.advance(done + 1)
        progress.end()
        return through

    def _plan(
        self,
        updates: Sequence[Update],
        gradients: Sequence[Update],
        outcomes: Sequence[Outcome],
        model: TextModel,
        answers: Sequence[Reconstruction],
        written: Collection[int],
    ) -> list[tuple[MatchingAttack, list[int], list[Update]]]:
        """Which updates go to which matching attack."""
        groups: dict[type[MatchingAttack], list[tuple[int, Update]]] = defaultdict(list)
        for number, outcome in enumerate(outcomes):
            if outcome.complete or number in written:
                continue
            rest = remaining(gradients[number], outcome, model)
            if rest is None:
                answers[number].add_reasons(Reason(kind="rest-unknown" if outcome.sentences else "size-unknown"))
                continue
            if not outcome.sentences:
                rest = updates[number]  # untouched, so that local steps and rounding can be taken into account
            why_not = unmatchable(rest, model)
            if why_not is not None:
                answers[number].add_reasons(Reason(kind="nothing-to-match", about=why_not))
                continue
            hinted = points_anywhere(gradients[number], model)
            answers[number].add_reasons(*_reservations(rest, model, hinted))
            groups[Subspace if hinted else LampCos].append((number, rest))
        settings = {name: value for name, value in self.options.model_dump().items() if value is not None}
        plan = []
        for kind, members in groups.items():
            attack = kind.from_settings(settings).prepared(model)
            plan.append((attack, [number for number, _ in members], [rest for _, rest in members]))
        return plan


def _reservations(rest: Update, model: TextModel, hinted: bool) -> list[Reason]:
    """Why matching may fail, known before it begins."""
    reasons = []
    if not hinted:
        attention_sent = any(part.carrier(rest.tensors) is not None for part in attention_parts(model, 0))
        reasons.append(Reason(kind="first-drowned" if attention_sent else "first-missing"))
    lengths = rest.known.lengths
    tokens = sum(lengths) if lengths else (rest.known.size or 1) * shortest_sentence(model)
    little = too_little(rest, model, tokens)
    return [*reasons, little] if little else reasons


def _all_proved(answer: Reconstruction) -> bool:
    return bool(answer.sentences) and all(sentence.certified for sentence in answer.sentences)


def _without_repeats(answer: Reconstruction, better: Sequence[Sentence]) -> Reconstruction:
    """An answer without the sentences of which others give more: those that only lack their end."""
    begun = [sentence.tokens for sentence in better]
    kept = [s for s in answer.sentences if not any(own[: len(s.tokens)] == s.tokens for own in begun)]
    return answer.model_copy(update={"sentences": kept, "lengths": None})


def _beside(
    context: AttackContext, numbers: Sequence[int], answers: Sequence[Reconstruction], stage: str
) -> AttackContext:
    """The context of a stage on some of the updates, which keeps its answers beside those from before it."""

    def keep(number: int, answer: Reconstruction, final: bool = False) -> None:
        context.keep(numbers[number], _merged(answers[numbers[number]], answer, stage))

    return replace(context.for_updates(numbers), keep=keep)


def _merged(proved: Reconstruction, matched: Reconstruction, stage: str) -> Reconstruction:
    """Proved sentences first, then those that matching adds."""
    added: list[Sentence] = [sentence.model_copy(update={"stage": stage}) for sentence in matched.sentences]
    both = {
        name: None if first is None and proved.sentences else [*(first or []), *(second or [])] or None
        for name, first, second in (
            ("labels", proved.labels, matched.labels),
            ("lengths", proved.lengths, matched.lengths),
        )
    }
    return proved.model_copy(
        update={
            **both,
            "sentences": [*proved.sentences, *added],
            "found": sorted(set(proved.found) | set(matched.found)),
            "loss": matched.loss,
            "trace": matched.trace,
            "status": _ended(proved, matched),
            "notes": [*proved.notes, *matched.notes],
            "reasons": [*proved.reasons, *matched.reasons],
        }
    )


def _keep_tokens(context: AttackContext, bags: Sequence[Reconstruction], model: TextModel) -> Keep:
    """Keep answers with the tokens that were named before them."""

    def keep(number: int, answer: Reconstruction, final: bool = False) -> None:
        context.keep(number, _with_tokens(answer, bags[number], model), final)

    return keep


def _with_tokens(answer: Reconstruction, named: Reconstruction, model: TextModel) -> Reconstruction:
    """An answer with the tokens that were named at the start, and those of sentences that are proved.

    Why there are none is said where there are none, and nothing else was read.
    """
    if not named.bag and not answer.sentences:
        answer.add_reasons(*(reason for reason in named.reasons if reason not in answer.reasons))
    proved = {token for sentence in answer.sentences if sentence.certified for token in sentence.tokens}
    names = model.tokenizer.convert_ids_to_tokens(sorted(proved))
    return answer.model_copy(
        update={
            "bag": {**(named.bag or answer.bag), **dict.fromkeys(map(str, names), 1.0)},
            "counts": named.counts or answer.counts,
            "found": sorted({*answer.found, *named.found}),
        }
    )


def _ended(first: Reconstruction, second: Reconstruction) -> StopReason:
    """How two stages ended: if either was cut short, the attack was."""
    return second.status if first.status == "completed" else first.status
