"""An audit: private batches, their updates, an attack on each, and what it read back against the truth."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradleak.attacks.base import Attack, AttackContext
from gradleak.attacks.run import run_attack
from gradleak.audits.modality import (
    GIVEN,
    MODALITIES,
    Attacked,
    ControlScores,
    Truth,
    completed,
    method_of,
    modality_of,
)
from gradleak.audits.redact import redact
from gradleak.audits.results import Observed, Results, Scenario, Trial, observed
from gradleak.audits.spec import AuditSpec
from gradleak.audits.trials import about_model, as_results, measured
from gradleak.clients.sender import Sender
from gradleak.core.budget import Budget, StopReason
from gradleak.core.environment import git_state
from gradleak.core.errors import GradleakError
from gradleak.core.memory import free_memory, within
from gradleak.core.parameters import validated
from gradleak.core.privacy import redacting
from gradleak.core.progress import SILENT, Progress
from gradleak.core.secret import Secret, read_secret, user_secret
from gradleak.core.seeds import derive_seed
from gradleak.models.base import Target
from gradleak.models.load import load_model, modality_of_source
from gradleak.scoring.membership import TrialCandidates
from gradleak.scoring.metrics import prepare_metrics
from gradleak.updates.update import Update

# The share of the free memory that updates may take while they wait to be attacked.
UPDATES_SHARE = 0.3
# The share of the time that making updates may take before it is the attack's turn.
MAKING_SHARE = 0.3
# The share of an attack's time that is kept for candidates, where they are asked for.
CANDIDATES_SHARE = 0.3


def audit(
    model: AuditSpec | str | Path | Target = "minilm",
    *,
    data: Any = None,
    budget: Budget | str | float | None = None,
    progress: Progress = SILENT,
    **settings: Any,
) -> Results:
    """Measure how much of its training data a model's updates give away to an attack.

    Draws `trials` batches from the data, makes each one's update as a client would, attacks the updates, and scores
    what was read back, always beside a control that guesses without looking at the update.

    The settings are the fields of `AuditSpec`, which can be given instead of the model. `model` may also be a loaded
    model, and `data` may be rows: texts or `Row`s, or `Pictures` (with those that the attacker holds, as a pair).

    >>> from gradleak import audit
    >>> results = audit("minilm", trials=1)
    >>> len(results.trials), results.status, results.summary["exact_match"].mean
    (1, 'completed', 100.0)
    """
    if isinstance(model, AuditSpec):
        spec = model.with_(**settings) if settings else model
    else:
        named = {} if isinstance(model, Target) else {"model": str(model)}
        spec = validated(AuditSpec, {**settings, **named}, "audit")
    if isinstance(data, str | Path):
        spec, data = spec.with_(data=str(data)), None
    limit = spec.time_limit() if budget is None else Budget.of(budget)
    with redacting(spec.redact), within(spec.memory_limit):
        return _audit(spec, model if isinstance(model, Target) else None, data, limit, progress)


def _audit(spec: AuditSpec, target: Target | None, data: Any, budget: Budget, progress: Progress) -> Results:
    # Refuse bad settings before any work.
    modality = modality_of_source(spec.model) if target is None else target.modality
    spec = completed(spec, modality)
    prepare_metrics(modality, spec.metrics, progress)
    offer = MODALITIES.get(modality)
    progress.begin("reading data", 0)
    # Before the model: a file that is wrong is an error at once.
    held = offer.read(spec, progress) if data is None else offer.given(data)
    case = AuditCase(spec, held, in_memory=data is not None)
    if target is None:
        target = load_target(spec, progress)
    (results,) = audit_together([case], target, method_of(spec, target.modality), budget=budget, progress=progress)
    return results


def load_target(spec: AuditSpec, progress: Progress = SILENT) -> Target:
    """The model of a spec."""
    return load_model(
        spec.model,
        task=spec.task,
        num_labels=spec.num_labels,
        lora=spec.lora,
        family=spec.family,
        device=spec.device,
        progress=progress,
    )


@dataclass(frozen=True)
class AuditCase:
    """One audit ready to run: its settings, the data that they name, and trials that were measured before."""

    spec: AuditSpec
    data: Any
    in_memory: bool = False
    kept: Sequence[Trial] = ()

    @functools.cached_property
    def secret(self) -> Secret:
        """What the clients' chance comes from."""
        return run_secret(self.spec)


# Told of the trials of each audit, by its number, whenever some more are measured.
Measured = Callable[[Sequence[tuple[int, Trial]]], None]


def audit_together(
    cases: Sequence[AuditCase],
    model: Target,
    method: Attack,
    *,
    one_by_one: bool = False,
    measured: Measured = lambda _: None,
    budget: Budget | None = None,
    progress: Progress = SILENT,
) -> list[Results]:
    """Several audits of one model by one attack, each with the result it has alone up to rounding.

    All updates go to the attack together: a pass over few tokens costs little more than one over fewer. With
    `one_by_one` the first trial of every audit is measured before the second, each with its share of the time, so
    that there is something to keep whenever it is stopped.
    """
    git_state()  # asked before the work: by its end the checkout may hold other code than what is running
    budget = budget or Budget()
    progress.begin("preparing", 0)
    method = method.prepared(model)
    sides = [ClientSide(case, model) for case in cases]
    attacking, closing = budget.before_closing(), budget.closing()
    portions = _portions(_open(sides), model, one_by_one)
    for number, waiting in enumerate(portions):
        portion, updates = _begun(waiting, budget, progress)
        if not portion:
            continue
        own = attacking.part(len(waiting) / sum(map(len, portions[number:]))) if len(portions) > 1 else attacking
        context = AttackContext(
            [side.attack_seeds[i] for side, i in portion],
            _before_candidates(own, portion),
            progress,
            _auxiliary({side for side, _ in portion}),
        )
        answers = run_attack(method, updates, model, context)
        trials = [
            side.attacked(i, update, answer)
            for (side, i), update, answer in zip(portion, updates, answers, strict=True)
        ]
        candidates = _candidates(portion, updates, own, progress)
        data = [side.case.data for side, _ in portion]
        controls = modality_of(model).control(method, trials, model, data, closing, progress)
        progress.begin("scoring", len(trials), "trials")
        scored = zip(portion, trials, controls, candidates, strict=True)
        for done, ((side, i), trial, control, listed) in enumerate(scored, start=1):
            side.measure(i, trial, control, listed, closing)
            progress.advance(done)
        progress.end()
        measured([(sides.index(side), side.trials[i]) for side, i in portion])
    return [side.results(method, budget.reason) for side in sides]


def _before_candidates(budget: Budget, portion: Waiting) -> Budget:
    """The attack's time without what candidates may take; its steps are its own."""
    if budget.left is None or all(side.lists is None for side, _ in portion):
        return budget
    return budget.limited((1 - CANDIDATES_SHARE) * budget.left, None)


def _candidates(
    portion: Waiting, updates: Sequence[Update], budget: Budget, progress: Progress
) -> list[TrialCandidates | None]:
    """What a server that has candidates makes of every trial, each with its share of the time that is left."""
    shares = range(len(portion), 0, -1)
    return [
        side.candidates(i, update, budget.part(1 / left), progress)
        for (side, i), update, left in zip(portion, updates, shares, strict=True)
    ]


def _begun(waiting: Waiting, budget: Budget, progress: Progress) -> tuple[Waiting, list[Update]]:
    """The trials that there is time for, with their updates: at least one of every audit."""
    portion: list[tuple[ClientSide, int]] = []
    updates: list[Update] = []
    making = budget.part(MAKING_SHARE)
    progress.begin("making updates", len(waiting), "updates")
    for side, i in waiting:
        first = not side.trials and all(side is not other for other, _ in portion)
        if first or not making.late:
            portion.append((side, i))
            updates.append(side.update(i, progress))
            progress.advance(len(updates))
    progress.end()
    return portion, updates


def run_secret(spec: AuditSpec) -> Secret:
    """What the clients of a spec draw from: the file that it names, or this user's key and the seed.

    The same seed repeats an audit on this machine; whoever knows the seed alone can compute nothing.
    """
    return user_secret().child("run", spec.seed) if spec.secret is None else read_secret(spec.secret)


def call_secret(secret: Secret, seed: int, trial: int, client: Sender, truth: Truth) -> Secret:
    """What one update draws from: another one for every model, client, batch and trial, the same for every attack."""
    batch = truth.model_dump_json(include={"texts", "images", "labels"})
    return secret.child("trial", seed, trial, client.model.fingerprint, client.rule, batch)


class ClientSide:
    """The honest side of one audit: its private batches, their updates, and what the attack made of each."""

    def __init__(self, case: AuditCase, model: Target) -> None:
        self.case, self.spec, self.model, self.modality = case, case.spec, model, modality_of(model)
        self.client = self.modality.client(self.spec, model)
        self.batches = self.modality.draw(self.spec, case.data, model)
        self.lists = self.modality.candidate_lists(self.spec, case.data, model)
        self.seeds = self._seeds(self.spec.seed)
        own = self.spec.attack_seed
        self.attack_seeds = self.seeds if own is None else self._seeds(own)
        self.trials: dict[int, Trial] = {trial.index: trial for trial in case.kept}
        self.observed: Observed | None = None

    def _seeds(self, seed: int) -> list[int]:
        return [derive_seed(seed, "trial", i) for i in range(self.spec.trials)]

    def secret(self, i: int) -> Secret:
        """What the client draws from for a batch."""
        truth = self.modality.truth(self.batches[i], self.model)
        return call_secret(self.case.secret, self.spec.seed, i, self.client, truth)

    def update(self, i: int, progress: Progress) -> Update:
        """What the client sends of a batch."""
        update = self.modality.update(self.client, self.batches[i], self.secret(i))
        if self.observed is None:
            self.observed = observed(update, self.spec.observe, self.model)
            self.known, self.defenses = update.known.names, update.manifest.defenses
            self.model.announce(progress)
            progress.message(self.observed.sentence)
        return update

    def attacked(self, i: int, update: Update, answer: Any) -> Attacked[Any]:
        return Attacked(self.spec, self.batches[i], update, answer, self.seeds[i], self.client, self.secret(i))

    def candidates(self, i: int, update: Update, budget: Budget, progress: Progress) -> TrialCandidates | None:
        """What a server makes of a list with the true texts of a batch in it; None if it was not asked."""
        if self.lists is None:
            return None
        truth = self.modality.truth(self.batches[i], self.model)
        return self.lists.ask(update, truth.examples, self.seeds[i], budget, progress)

    def measure(
        self,
        i: int,
        trial: Attacked[Any],
        control: ControlScores,
        candidates: TrialCandidates | None,
        budget: Budget,
    ) -> None:
        """Compare what the attack made of a batch with the batch."""
        scored = measured(i, self.attack_seeds[i], trial, control, self.model, budget)
        self.trials[i] = scored.model_copy(update={"candidates": candidates})

    def results(self, method: Attack, reason: StopReason) -> Results:
        """All trials, once they are measured, with the means over them; `reason` is why some were not begun."""
        spec, model, trials = self.spec, self.model, [self.trials[i] for i in sorted(self.trials)]
        if self.observed is None:  # every trial was kept from before
            self.update(0, SILENT)
        scenario = Scenario(
            **about_model(model),
            data=GIVEN if self.case.in_memory else spec.data,
            **self.modality.about(self.case.data, model),
            batch_size=spec.batch_size,
            clients=spec.aggregate or 1,
            trials=spec.trials,
            seed=spec.seed,
            client=self.client.rule,
            defenses=list(self.defenses),
            known=list(self.known),
            observed=self.observed,
            threat=spec.threat_label,
            notes=list(model.notes),
            taken_as=spec.taken_as,
        )
        name, secret = spec.attack or method.name, self.case.secret.hex
        results = as_results(
            scenario, name, method, model, trials, reason=reason, secret=secret, candidates=spec.candidates
        )
        return redact(results) if spec.redact else results


def _auxiliary(sides: Iterable[ClientSide]) -> Any:
    """What the attacker of all these audits holds; they run together only if it is the same."""
    first, *others = [side.modality.auxiliary(side.case.data) for side in sides]
    if any((other and other.digest) != (first and first.digest) for other in others):
        raise GradleakError("audits that run together must have the same auxiliary data")
    return first


Waiting = Sequence[tuple[ClientSide, int]]


def _open(sides: Sequence[ClientSide]) -> Waiting:
    """The trials to run. Audits that run together are rounded together, so none of them leaves out one alone."""
    kept = set[int].intersection(*(set(side.trials) for side in sides))
    return [(side, i) for side in sides for i in range(side.spec.trials) if i not in kept]


def _portions(waiting: Waiting, model: Target, one_by_one: bool) -> list[Waiting]:
    """Which trials are measured at the same time."""
    if not one_by_one:
        return list(_fitting(waiting, model))
    numbers = sorted({i for _, i in waiting})
    return [part for n in numbers for part in _fitting([(side, i) for side, i in waiting if i == n], model)]


def _fitting(waiting: Waiting, model: Target) -> Iterator[Waiting]:
    """As many updates at a time as fit into memory; each is made whole before it is cut to what is observed."""
    sizes = {name: p.numel() * p.element_size() for name, p in model.parameters().items()}
    room = UPDATES_SHARE * free_memory(model.device) - sum(sizes.values())
    portion: list[tuple[ClientSide, int]] = []
    held = 0
    for side, i in waiting:
        needed = sum(sizes[name] for name in side.client.observed)
        if portion and held + needed > room:
            yield portion
            portion, held = [], 0
        portion.append((side, i))
        held += needed
    if portion:
        yield portion
