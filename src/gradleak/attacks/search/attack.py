"""Gradient matching: search the input whose gradient is the one that was shared.

DLG, TAG and LAMP are this one search under different settings: optimise a matrix of word embeddings until
its gradient comes close to the update's, and now and then try the tokens in another order, judged by the
gradient and by a language prior together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field

from gradleak.attacks.base import Attack, AttackContext, AttackOptions, Reconstruction
from gradleak.attacks.evidence.defended import Seen, surviving, what_shows
from gradleak.attacks.evidence.hints import Hints
from gradleak.attacks.evidence.knowledge import Knowledge, gather
from gradleak.attacks.evidence.shares import signal_shares
from gradleak.attacks.search.search import MatchingSearch
from gradleak.core.budget import Budget
from gradleak.core.errors import GradleakError
from gradleak.core.memory import parse_memory
from gradleak.core.progress import Progress
from gradleak.matching.distances import Distance, DistanceName
from gradleak.matching.engine import Engine, FactorEngine
from gradleak.matching.naive import NaiveEngine
from gradleak.matching.unrolled import UnrolledEngine
from gradleak.models.text import TextModel
from gradleak.priors.base import load_prior
from gradleak.updates.gradient import as_gradient
from gradleak.updates.update import Update

# From this size on the published settings are those of BERT-large.
LARGE_WIDTH, LARGE_LAYERS = 1024, 24


class MatchingOptions(AttackOptions):
    """Every setting of the search. The published values are the defaults of the attacks built on it."""

    distance: DistanceName = Field("cosine", description="how gradients are compared")
    l1_weight: float = Field(0.01, ge=0, description="factor on absolute differences in l2+l1")
    steps: int = Field(2000, ge=0, description="optimisation steps")
    optimizer: Literal["adam", "adamw"] = Field("adam", description="adamw decays with eps 1e-6, 0.01")
    lr: float = Field(0.01, gt=0, description="step size")
    schedule: Literal["constant", "step", "linear"] = Field("step", description="how the step size falls")
    decay: float = Field(0.89, gt=0, le=1, description="factor of the step schedule")
    decay_every: int = Field(50, ge=1, description="steps between two factors of the step schedule")
    linear_over: int | None = Field(None, ge=1, description="steps the linear schedule spans; default: steps")
    clip: float | None = Field(None, gt=0, description="largest norm of one update's step gradient")
    regularization: float = Field(1.0, ge=0, description="weight on the mean embedding norm staying typical")
    init_draws: int = Field(500, ge=1, description="random starts, the best is kept")
    init_orders: int = Field(500, ge=0, description="random orders of the best start, the best is kept")
    init_rescale: bool = Field(True, description="scale the start to the vocabulary's mean norm")
    patience: int = Field(0, ge=0, description="stop an attack whose answer was the same for so many steps; 0: never")
    discrete_every: int = Field(75, ge=0, description="steps between two discrete phases; 0: none")
    discrete_after: float = Field(0.1, ge=0, le=1, description="share of the steps before the first one")
    discrete: Literal["alternate", "end"] = Field(
        "alternate", description="end: all discrete phases after the last step, an ablation"
    )
    candidates: int = Field(200, ge=1, description="orders tried for a sentence in a discrete phase")
    polish: int = Field(0, ge=0, description="last rounds that move and exchange the answer's tokens; 0: none")
    prior: str = Field("ngram", description="ngram, smollm2, none, or a causal language model (folder or hub id)")
    prior_weight: float = Field(0.2, ge=0, description="weight on the prior's loss a token")
    guesses: int = Field(24, ge=1, description="most guesses at labels and lengths the gradient does not tell")
    race: int = Field(40, ge=0, description="steps after which only the best of these guesses goes on")
    fedavg: Literal["average", "unrolled"] = Field(
        "average", description="unrolled: differentiate through the client's local steps; exact, slow"
    )
    adapt: bool = Field(
        False, description="take noise, rounding, pruning, signs and clipping that show in the update into account"
    )
    engine: Literal["factor", "naive"] = Field("factor", description="naive: the slow oracle, for comparison")
    precision: Literal["fp32", "bf16"] = Field(
        "fp32", description="bf16: faster on large models where it is supported"
    )
    memory: str | None = Field(None, description="what the engine may use, such as 4GB; default: half of the free")

    def defaults_for(self, large: bool) -> dict[str, Any]:
        """Defaults that differ from the fields' own, on a model of this size."""
        return {}

    def completed(self, model: TextModel) -> Self:
        """These options with everything that was left unsaid filled in for the model."""
        config = model.module.config
        large = int(config.hidden_size) >= LARGE_WIDTH and len(model.adapter.layers) >= LARGE_LAYERS
        said = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self).model_validate({**self.defaults_for(large), **said})


@dataclass(frozen=True)
class Case:
    """One update with all that is known of it before the search: what a defence left to see, labels and lengths."""

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
        """Updates of one kind can be attacked side by side."""
        return self.seen, self.unrolled, self.size


class MatchingAttack(Attack):
    """What DLG, TAG and LAMP share; they differ in their options only."""

    Options = MatchingOptions
    options: MatchingOptions

    def prepared(self, model: TextModel) -> Self:
        return type(self)(self.options.completed(model))

    @property
    def prior(self) -> str:
        return self.options.prior

    def run(self, updates: Sequence[Update], model: TextModel, context: AttackContext) -> list[Reconstruction]:
        cases = [self._case(*each, model) for each in zip(updates, context.seeds, strict=True)]
        kinds: dict[object, list[int]] = defaultdict(list)
        for number, case in enumerate(cases):
            kinds[case.kind].append(number)
        found: dict[int, Reconstruction] = {}
        for done, numbers in enumerate(kinds.values()):
            own = context.budget.part(1 / (len(kinds) - done))  # one kind must not take the others' time
            answers = self._search([cases[number] for number in numbers], model, own, context.progress)
            found.update(zip(numbers, answers, strict=True))
        return [found[number] for number in range(len(updates))]

    def _case(self, update: Update, seed: int, model: TextModel) -> Case:
        gradient = as_gradient(update)
        return Case(
            update=update,
            gradient=gradient,
            seed=seed,
            seen=what_shows(update, model) if self.options.adapt else Seen(),
            unrolled=self.options.fedavg == "unrolled" and update.manifest.client.name == "fedavg",
            guesses=gather(gradient, model, self.name, self.options.guesses),
        )

    def _search(
        self, cases: Sequence[Case], model: TextModel, budget: Budget, progress: Progress
    ) -> list[Reconstruction]:
        """Attack updates of one kind side by side."""
        options = adapted(self.options, cases[0].seen)
        uses_prior = options.discrete_every > 0 and options.prior_weight > 0
        search = MatchingSearch(
            options=options,
            model=model,
            engine=_engine(options, cases, model),
            prior=load_prior(options.prior if uses_prior else "none", model, progress),
            seeds=[case.seed for case in cases],
            guesses=[case.guesses for case in cases],
            hints=[self._hints(case, model) for case in cases],
        )
        progress.begin(f"{self.name}: choosing a start", 1)
        search.start(budget, progress)
        progress.end()
        progress.begin(self.name, options.steps, "steps")
        finished = search.optimise(budget, progress)
        progress.end()
        if options.polish and options.discrete_every and options.discrete == "alternate" and finished:
            progress.begin(f"{self.name}: polishing", options.polish, "rounds")
            search.polish(budget, progress)
            progress.end()
            finished = not budget.over  # a polish that was cut short is said, like any other stop
        ended = {"status": "completed" if finished else budget.reason}
        return [search.answer(number).model_copy(update=ended) for number in range(len(cases))]

    def _hints(self, case: Case, model: TextModel) -> Hints | None:
        """Tokens to start from and to keep to; plain matching has none."""
        return None


def adapted(options: MatchingOptions, seen: Seen) -> MatchingOptions:
    """The options with a distance that is least at the truth although the gradient's sizes are lost.

    Its terms are shares, so what is weighed against them takes the values it has beside the cosine.
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
    """How much each parameter of each update counts. With signs or zeros no spectrum tells noise."""
    seen = cases[0].seen
    if seen.signs or seen.masked or seen.pruned:
        return None
    return [signal_shares(case.update, model) or {} for case in cases]


def _engine(options: MatchingOptions, cases: Sequence[Case], model: TextModel) -> Engine:
    distance = Distance(options.distance, options.l1_weight)
    if cases[0].unrolled:
        if any(case.update.manifest.clients > 1 for case in cases):
            raise GradleakError("fedavg=unrolled takes one client's steps again; this update is the mean of several")
        rules = [case.update.manifest.client for case in cases]
        return UnrolledEngine(model, [case.update.tensors for case in cases], distance, rules)
    tensors = [case.gradient.tensors for case in cases]
    masks = [surviving(case.update) for case in cases] if cases[0].seen.masked else None
    weights = _weights(cases, model) if options.adapt else None
    if options.engine == "naive":
        return NaiveEngine(model, tensors, distance, weights=weights, masks=masks)
    memory = None if options.memory is None else parse_memory(options.memory)
    tokens = max(sum(guess.lengths) for case in cases for guess in case.guesses)
    place = model.to_bfloat16() if options.precision == "bf16" else model
    return FactorEngine(place, tensors, distance, tokens=tokens, memory=memory, weights=weights, masks=masks)
