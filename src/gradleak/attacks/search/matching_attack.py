"""Gradient matching: search for the input whose gradient is the update.

DLG, TAG and LAMP are the same search under different options: optimise token embeddings until their gradient comes
close to the update's, and now and then try the tokens in another order, judged by the gradient and a language prior.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from gradleak.attacks.base import Attack, AttackContext, Keep, Reconstruction
from gradleak.attacks.evidence.defended import Seen, surviving, what_shows
from gradleak.attacks.evidence.hints import Hints
from gradleak.attacks.evidence.knowledge import Knowledge, gather
from gradleak.attacks.evidence.signal_fractions import signal_fractions
from gradleak.attacks.search.noisy import likelier, noise_to_judge_by
from gradleak.attacks.search.optimise import AGAIN_STEPS, MatchingSearch
from gradleak.attacks.search.options import MatchingOptions
from gradleak.core.budget import Budget, Stopped
from gradleak.core.errors import GradleakError
from gradleak.core.memory import parse_memory
from gradleak.core.progress import Progress
from gradleak.matching.distances import Distance
from gradleak.matching.engine import Engine, FactorEngine
from gradleak.matching.naive import NaiveEngine
from gradleak.matching.unrolled import UnrolledEngine
from gradleak.models.text import TextModel, refuse_pairs
from gradleak.priors.base import load_prior
from gradleak.updates.gradient import as_gradient
from gradleak.updates.update import Update


@dataclass(frozen=True)
class Case:
    """An update with all that is known of it before the search: what a defence left to see, labels and lengths."""

    update: Update
    gradient: Update
    seed: int
    seen: Seen
    unrolled: bool
    guesses: Sequence[Knowledge]

    @property
    def size(self) -> int:
        """How many sentences are looked for."""
        return len(self.guesses[0].lengths)

    @property
    def kind(self) -> tuple[Seen, bool, int]:
        """Updates of the same kind can be attacked side by side."""
        return self.seen, self.unrolled, self.size


class MatchingAttack(Attack):
    """What DLG, TAG and LAMP share; they differ in their options only."""

    Options = MatchingOptions
    options: MatchingOptions

    def prepared(self, model: TextModel) -> Self:
        refuse_pairs(model, self.name)
        return type(self)(self.options.completed(model))

    @property
    def prior(self) -> str:
        return self.options.prior

    def run(self, updates: Sequence[Update], model: TextModel, context: AttackContext) -> list[Reconstruction]:
        levels = [noise_to_judge_by(update, model) if self.options.adapt else 0.0 for update in updates]
        noisy = [number for number, level in enumerate(levels) if level > 0]
        if not noisy:
            return self._match(updates, model, context)
        answers = self._match(updates, model, context.with_budget(context.budget.part(0.5)))
        # To weigh parameters by their noise is a guess at what helps. The likelihood of what is found is none.
        ignoring = type(self)(self.options.model_copy(update={"adapt": False}))
        if context.budget.over:
            return answers
        silent = replace(context.for_updates(noisy), keep=lambda *_, **__: None, budget=context.budget.part(0.8))
        without = ignoring._match([updates[number] for number in noisy], model, silent)
        for number, other in zip(noisy, without, strict=True):
            if context.budget.over:  # to compare them takes time too
                break
            answers[number] = likelier([answers[number], other], updates[number], model, levels[number])
            context.keep(number, answers[number], final=True)
        return answers

    def _match(self, updates: Sequence[Update], model: TextModel, context: AttackContext) -> list[Reconstruction]:
        cases = [self._case(*each, model) for each in zip(updates, context.seeds, strict=True)]
        kinds: dict[object, list[int]] = defaultdict(list)
        for number, case in enumerate(cases):
            kinds[case.kind].append(number)
        answers: dict[int, Reconstruction] = {}
        for done, numbers in enumerate(kinds.values()):
            own = context.budget.part(1 / (len(kinds) - done))  # no kind may take the others' time
            part = context.for_updates(numbers).with_budget(own)
            of_kind = self._search([cases[number] for number in numbers], model, part)
            answers.update(zip(numbers, of_kind, strict=True))
            for number in numbers:
                context.keep(number, answers[number], final=True)
        return [answers[number] for number in range(len(updates))]

    def _case(self, update: Update, seed: int, model: TextModel) -> Case:
        gradient = as_gradient(update, model)
        return Case(
            update=update,
            gradient=gradient,
            seed=seed,
            seen=what_shows(update, model) if self.options.adapt else Seen(),
            unrolled=self.options.fedavg == "unrolled" and update.manifest.client.local,
            guesses=gather(gradient, model, self.name, self.options.guesses),
        )

    def _search(self, cases: Sequence[Case], model: TextModel, context: AttackContext) -> list[Reconstruction]:
        """Attack updates of the same kind side by side."""
        budget, progress, keep = context.budget, context.progress, context.keep
        options = adapted(self.options, cases[0].seen)
        uses_prior = options.discrete_every > 0 and options.prior_weight > 0
        search = MatchingSearch(
            options=options,
            model=model,
            engine=_engine(options, cases, model, budget),
            prior=load_prior(options.prior if uses_prior else "none", model, progress, budget),
            seeds=[case.seed for case in cases],
            guesses=[case.guesses for case in cases],
            hints=[self._hints(case, model) for case in cases],
        )
        try:
            finished = self._stages(search, options, budget, progress, keep)
        except Stopped:  # in the middle of a pass
            finished = False
        ended = {"status": "completed" if finished else budget.reason}
        return [search.answer(number).model_copy(update=ended) for number in range(len(cases))]

    def _stages(
        self, search: MatchingSearch, options: MatchingOptions, budget: Budget, progress: Progress, keep: Keep
    ) -> bool:
        """Choose a start, optimise, polish, and again from there; False if the budget ended one of them."""
        progress.begin(f"{self.name}: choosing a start", 1)
        search.start(budget, progress)
        progress.end()
        finished = self._stage(search, options, self.name, options.steps, budget, progress, keep)
        for number in range(options.again if options.polish else 0):
            if not finished or not search.again():
                break
            name = f"{self.name}: again from its tokens, {number + 1} of at most {options.again}"
            finished = self._stage(search, options, name, AGAIN_STEPS, budget, progress, keep)
        return finished

    def _stage(
        self,
        search: MatchingSearch,
        options: MatchingOptions,
        name: str,
        steps: int,
        budget: Budget,
        progress: Progress,
        keep: Keep,
    ) -> bool:
        progress.begin(name, steps, "steps")
        finished = search.optimise(steps, budget, progress, keep)
        progress.end()
        if options.polish and options.discrete_every and options.discrete == "alternate" and finished:
            progress.begin(f"{self.name}: polishing", options.polish, "rounds")
            search.polish(options.polish, budget, progress)
            progress.end()
            finished = not budget.over  # polishing that was cut short counts as a stop like any other
        elif finished:
            search.polish(0, budget, progress)
        return finished

    def _hints(self, case: Case, model: TextModel) -> Hints | None:
        """Tokens to start from and to keep to; plain matching has no hints."""
        return None


def adapted(options: MatchingOptions, seen: Seen) -> MatchingOptions:
    """The options with a distance that is least at the truth although the gradient's sizes are lost.

    Its terms are shares of the whole, so the other terms take the weights they have beside the cosine.
    """
    distance = "sign" if seen.signs else "cosine" if seen.clipped else options.distance
    if distance == options.distance:
        return options
    fields = MatchingOptions.model_fields
    weights = (
        {}
        if options.distance == "cosine"
        else {name: fields[name].default for name in ("regularization", "prior_weight") if getattr(options, name)}
    )
    return options.model_copy(update={"distance": distance, **weights})


def _weights(cases: Sequence[Case], model: TextModel) -> list[dict[str, float]] | None:
    """How much each parameter of each update counts. With signs or zeros no spectrum shows the noise."""
    seen = cases[0].seen
    if seen.signs or seen.masked or seen.pruned:
        return None
    return [signal_fractions(case.update, model) or {} for case in cases]


def _engine(options: MatchingOptions, cases: Sequence[Case], model: TextModel, budget: Budget) -> Engine:
    distance = Distance(options.distance, options.l1_weight)
    if cases[0].unrolled:
        if any(case.update.manifest.clients > 1 for case in cases):
            raise GradleakError(
                "fedavg=unrolled repeats the steps of a single client; this update is the mean of several"
            )
        rules = [case.update.manifest.client for case in cases]
        if other := next((rule for rule in rules if not rule.plain), None):
            raise GradleakError(f"fedavg=unrolled repeats plain steps of SGD; this client trained by {other}")
        return UnrolledEngine(model, [case.update.tensors for case in cases], distance, rules, budget)
    tensors = [case.gradient.tensors for case in cases]
    masks = [surviving(case.update) for case in cases] if cases[0].seen.masked else None
    weights = _weights(cases, model) if options.adapt else None
    if options.engine == "naive":
        return NaiveEngine(model, tensors, distance, weights=weights, masks=masks, budget=budget)
    memory = None if options.memory is None else parse_memory(options.memory)
    tokens = max(sum(guess.lengths) for case in cases for guess in case.guesses)
    place = model.to_bfloat16() if options.precision == "bf16" else model
    return FactorEngine(
        place, tensors, distance, tokens=tokens, memory=memory, weights=weights, masks=masks, budget=budget
    )
