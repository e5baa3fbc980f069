"""Trials compared with their truth, and the results that they make up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gradleak.attacks.base import Attack
from gradleak.audits.modality import Attacked, ControlScores, Truth, modality_of
from gradleak.audits.results import AttackInfo, Results, Scenario, Trial
from gradleak.core.budget import Budget, StopReason
from gradleak.core.environment import describe
from gradleak.models.base import Target
from gradleak.scoring.interval import Interval, mean_interval
from gradleak.scoring.membership import summarise
from gradleak.scoring.metric import by_metric
from gradleak.scoring.metrics import range_of


def measured(
    index: int, seed: int, trial: Attacked[Any], control: ControlScores, model: Target, budget: Budget
) -> Trial:
    """What the attack made of a batch, compared with the batch as well as the budget allows."""
    modality, answer = modality_of(model), trial.reconstruction
    truth: Truth = modality.truth(trial.batch, model)
    scored = modality.score(answer, truth, model, trial.spec.metrics)
    return Trial(
        index=index,
        seed=seed,
        status=answer.status,
        truth=truth.compared,
        labels=truth.labels,
        reconstruction=answer,
        pairs=scored.pairs,
        scores=scored.metrics,
        control_scores=control.scores,
        control_pieces=control.pieces,
        control_named=control.named,
        bag_size=len(answer.bag),
        seconds=answer.seconds,
        peak_memory_mb=answer.peak_memory_mb,
        **modality.facts(trial, model, budget),
    )


def as_results(
    scenario: Scenario,
    attack: str,
    method: Attack,
    model: Target,
    trials: list[Trial],
    *,
    reason: StopReason = "completed",
    secret: str | None = None,
    candidates: int | None = None,
) -> Results:
    """All trials, once they are measured, with the means over them; `reason` is why some were not begun.

    `secret` is what the clients drew from, `candidates` how many others a server's list was to have.
    """
    unfinished = [trial.status for trial in trials if trial.status != "completed"]
    if len(trials) < scenario.trials:
        unfinished.append("interrupted" if reason == "interrupted" else "budget-exhausted")
    return Results(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status=unfinished[0] if unfinished else "completed",
        environment=describe(model.device),
        scenario=scenario,
        attack=AttackInfo(name=attack, options=method.options.model_dump()),
        trials=trials,
        summary=intervals([trial.scores for trial in trials]),
        control=intervals([trial.control_scores for trial in trials]),
        found=intervals([trial.found for trial in trials]),
        confirmed=None if candidates is None else summarise([trial.candidates for trial in trials], candidates),
        secret=secret,
    )


def about_model(model: Target) -> dict[str, Any]:
    """What a scenario says of the model."""
    return {
        "model": model.name,
        "family": model.family,
        "task": model.task,
        "model_fingerprint": model.fingerprint,
        "parameters": sum(parameter.numel() for parameter in model.parameters().values()),
        "adapters": model.adapters,
        "lora": model.fresh_lora,
    }


def intervals(scores: Sequence[Mapping[str, float]]) -> dict[str, Interval]:
    """The mean of every metric over trials, with its interval."""
    return {name: mean_interval(values, *range_of(name)) for name, values in by_metric(scores).items()}
