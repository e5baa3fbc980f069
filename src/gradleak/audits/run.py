"""An audit: private batches, their updates, an attack on each, and what it read back against the truth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gradleak.attacks.base import Attack, AttackContext
from gradleak.attacks.run import run_attack
from gradleak.audits.modality import GIVEN, Attacked, ControlScores, completed, method_of, modality_of
from gradleak.audits.results import AttackInfo, Results, Scenario, Trial, observed
from gradleak.audits.spec import AuditSpec
from gradleak.core.budget import Budget, StopReason
from gradleak.core.environment import describe
from gradleak.core.errors import GradleakError
from gradleak.core.memory import free_memory
from gradleak.core.parameters import validated
from gradleak.core.progress import SILENT, Progress
from gradleak.core.seeds import derive_seed
from gradleak.models.base import Target
from gradleak.models.load import load_model, modality_of_source
from gradleak.scoring.interval import Interval, mean_interval
from gradleak.scoring.metric import by_metric
from gradleak.scoring.metrics import prepare_metrics, range_of
from gradleak.updates.update import Update

# The share of the free memory that updates may take while they wait to be attacked.
UPDATES_SHARE = 0.3
# The share of the time that making updates may take before it is the attack's turn.
MAKING_SHARE = 0.3


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
    >>> results = audit("minilm", trials=2)
    >>> len(results.trials), results.status, results.summary["exact_match"].mean
    (2, 'completed', 100.0)
    """
    if isinstance(model, AuditSpec):
        spec = model.with_(**settings) if settings else model
    else:
        named = {} if isinstance(model, Target) else {"model": str(model)}
        spec = validated(AuditSpec, {**settings, **named}, "audit")
    if isinstance(data, str | Path):
        spec, data = spec.with_(data=str(data)), None
    target = model if isinstance(model, Target) else None
    # Refuse bad settings before any work.
    modality = modality_of_source(spec.model) if target is None else target.modality
    spec = completed(spec, modality)
    prepare_metrics(modality, spec.metrics, progress)
    if target is None:
        target = load_target(spec, progress)
    offer = modality_of(target)
    case = AuditCase(spec, offer.read(spec) if data is None else offer.given(data), in_memory=data is not None)
    limit = spec.time_limit() if budget is None else Budget.of(budget)
    (results,) = audit_together([case], target, method_of(spec, target.modality), budget=limit, progress=progress)
    return results


def load_target(spec: AuditSpec, progress: Progress = SILENT) -> Target:
    """The model of a spec."""
    return load_model(spec.model, task=spec.task, num_labels=spec.num_labels, device=spec.device, progress=progress)


@dataclass(frozen=True)
class AuditCase:
    """One audit ready to run: its settings, and the data that they name."""

    spec: AuditSpec
    data: Any
    in_memory: bool = False


def audit_together(
    cases: Sequence[AuditCase],
    model: Target,
    method: Attack,
    *,
    budget: Budget | None = None,
    progress: Progress = SILENT,
) -> list[Results]:
    """Several audits of one model by one attack, each with the result it has alone up to rounding.

    All updates go to the attack together: a pass over few tokens costs little more than one over fewer.
    """
    method = method.prepared(model)
    sides = [ClientSide(case, model) for case in cases]
    budget = budget or Budget()
    closing = budget.closing()
    portions = list(_portions([(side, i) for side in sides for i in range(side.spec.trials)], model))
    for number, waiting in enumerate(portions):
        portion, updates = _begun(waiting, budget, progress)
        if not portion:
            continue
        context = AttackContext(
            [side.attack_seeds[i] for side, i in portion],
            budget.part(len(waiting) / sum(map(len, portions[number:]))) if len(portions) > 1 else budget,
            progress,
            _auxiliary({side for side, _ in portion}),
        )
        answers = run_attack(method, updates, model, context)
        trials = [
            side.attacked(i, update, answer)
            for (side, i), update, answer in zip(portion, updates, answers, strict=True)
        ]
        data = [side.case.data for side, _ in portion]
        controls = modality_of(model).control(method, trials, model, data, closing, progress)
        for (side, i), trial, control in zip(portion, trials, controls, strict=True):
            side.measure(i, trial, control, closing)
    return [side.results(method, budget.reason) for side in sides]


def _begun(
    waiting: Sequence[tuple[ClientSide, int]], budget: Budget, progress: Progress
) -> tuple[list[tuple[ClientSide, int]], list[Update]]:
    """The trials that there is time for, with their updates: at least the first of every audit."""
    portion, updates = [], []
    making = budget.part(MAKING_SHARE)
    for side, i in waiting:
        if i == 0 or not making.late:
            portion.append((side, i))
            updates.append(side.update(i, progress))
    return portion, updates


class ClientSide:
    """The honest side of one audit: its private batches, their updates, and what the attack made of each."""

    def __init__(self, case: AuditCase, model: Target) -> None:
        self.case, self.spec, self.model, self.modality = case, case.spec, model, modality_of(model)
        self.client = self.modality.client(self.spec, model)
        self.batches = self.modality.draw(self.spec, case.data, model)
        self.seeds = self._seeds(self.spec.seed)
        own = self.spec.attack_seed
        self.attack_seeds = self.seeds if own is None else self._seeds(own)
        self.trials: list[Trial] = []

    def _seeds(self, seed: int) -> list[int]:
        return [derive_seed(seed, "trial", i) for i in range(self.spec.trials)]

    def _client_seed(self, i: int) -> int:
        return derive_seed(self.seeds[i], "client")

    def update(self, i: int, progress: Progress) -> Update:
        """What the client sends of a batch."""
        update = self.modality.update(self.client, self.batches[i], self._client_seed(i))
        if i == 0:
            self.observed = observed(update, self.spec.observe, self.model)
            self.known, self.defenses = update.known.names, update.manifest.defenses
            progress.message(self.observed.sentence)
        return update

    def attacked(self, i: int, update: Update, answer: Any) -> Attacked[Any]:
        return Attacked(self.spec, self.client, self.batches[i], update, answer, self.seeds[i], self._client_seed(i))

    def measure(self, i: int, trial: Attacked[Any], control: ControlScores, budget: Budget) -> None:
        """Compare what the attack made of a batch with the batch."""
        answer, truth = trial.reconstruction, self.modality.truth(trial.batch, self.model)
        scored = self.modality.score(answer, truth, self.model, self.spec.metrics)
        self.trials.append(
            Trial(
                index=i,
                seed=self.attack_seeds[i],
                status=answer.status,
                truth=truth.examples,
                labels=truth.labels,
                reconstruction=answer,
                pairs=scored.pairs,
                scores=scored.metrics,
                control_scores=control.scores,
                control_pieces=control.pieces,
                seconds=answer.seconds,
                peak_memory_mb=answer.peak_memory_mb,
                **self.modality.facts(trial, self.model, budget),
            )
        )

    def results(self, method: Attack, reason: StopReason) -> Results:
        """All trials, once they are measured, with the means over them; `reason` is why some were not begun."""
        spec, model, trials = self.spec, self.model, self.trials
        scenario = Scenario(
            model=model.name,
            family=model.family,
            task=model.task,
            model_fingerprint=model.fingerprint,
            parameters=sum(p.numel() for p in model.parameters().values()),
            data=GIVEN if self.case.in_memory else spec.data,
            **self.modality.about(self.case.data, model),
            batch_size=spec.batch_size,
            trials=spec.trials,
            seed=spec.seed,
            client=self.client.rule,
            defenses=list(self.defenses),
            known=list(self.known),
            observed=self.observed,
        )
        unfinished = [trial.status for trial in trials if trial.status != "completed"]
        if len(trials) < spec.trials:
            unfinished.append("interrupted" if reason == "interrupted" else "budget-exhausted")
        return Results(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            status=unfinished[0] if unfinished else "completed",
            environment=describe(model.device),
            scenario=scenario,
            attack=AttackInfo(name=spec.attack or method.name, options=method.options.model_dump()),
            trials=trials,
            summary=_intervals([trial.scores for trial in trials]),
            control=_intervals([trial.control_scores for trial in trials]),
            found=_intervals([trial.found for trial in trials]),
        )


def _auxiliary(sides: Iterable[ClientSide]) -> Any:
    """What the attacker of all these audits holds; they run together only if it is the same."""
    first, *others = [side.modality.auxiliary(side.case.data) for side in sides]
    if any((other and other.digest) != (first and first.digest) for other in others):
        raise GradleakError("audits that run together must have the same auxiliary data")
    return first


def _portions(waiting: Sequence[tuple[ClientSide, int]], model: Target) -> Iterator[list[tuple[ClientSide, int]]]:
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
    yield portion


def _intervals(scores: Sequence[Mapping[str, float]]) -> dict[str, Interval]:
    return {name: mean_interval(values, *range_of(name)) for name, values in by_metric(scores).items()}
