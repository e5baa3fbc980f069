"""An audit: private batches, their updates, an attack on each, and what it read back against the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from gradleak.attacks import ATTACKS
from gradleak.attacks.base import Attack, Method, Reconstruction
from gradleak.attacks.run import attack as run_attack
from gradleak.attacks.run import derive_seed
from gradleak.budget import Budget
from gradleak.environment import describe
from gradleak.errors import GradleakError
from gradleak.matching.memory import free_memory
from gradleak.models.base import Target
from gradleak.models.families import Task
from gradleak.models.load import load_model
from gradleak.models.selection import ALL, parse_selection
from gradleak.models.target import TargetModel
from gradleak.progress import SILENT, Progress
from gradleak.results import AttackInfo, Results, Scenario, Trial, observed
from gradleak.scenario.client import Client, class_number
from gradleak.scenario.data import BUILT_IN, Row, read_data
from gradleak.scenario.sender import DEFAULT_GRANTS
from gradleak.scenario.strength import Strength, strength
from gradleak.scenario.trials import TrialData, draw_trials
from gradleak.scoring.entities import recogniser
from gradleak.scoring.found import found_accuracy
from gradleak.scoring.interval import Interval, bootstrap
from gradleak.scoring.score import by_metric, mean_scores, score
from gradleak.scoring.truth import truth_distance
from gradleak.update import Update
from gradleak.words import seen

# Draws of the control a trial: its spread would otherwise hide what the attack adds.
CONTROL_DRAWS = 10
# The share of the free memory that updates may take while they wait to be attacked.
UPDATES_SHARE = 0.3


def audit(
    model: str | Path | TargetModel = "minilm",
    *,
    data: str | Path | Sequence[Row] = BUILT_IN,
    text_column: str | None = None,
    label_column: str | None = None,
    attack: str = "auto",
    options: Mapping[str, Any] | None = None,
    batch_size: int = 1,
    trials: int = 4,
    seed: int = 0,
    attack_seed: int | None = None,
    known: Sequence[str] = DEFAULT_GRANTS,
    client: str = "fedsgd",
    defenses: Sequence[str] = (),
    observe: str = ALL,
    task: Task | None = None,
    num_labels: int | None = None,
    max_tokens: int | None = None,
    window: int | None = None,
    entities: bool = False,
    device: str = "cpu",
    budget: Budget | None = None,
    progress: Progress = SILENT,
) -> Results:
    """Measure how much of its training text a model's updates give away to an attack.

    Draws `trials` batches from the data, makes each one's update as a client would, attacks the updates, and
    scores what was read back, always beside a control that guesses from the language prior alone.
    `entities` adds the share of the named entities that came back (NERR); `window` cuts the texts into pieces of
    exactly so many tokens. `attack_seed` gives the attack randomness of its own, so that `seed` fixes only what it
    faces: the texts, the clients' noise and the control.

    >>> from gradleak import audit
    >>> results = audit("minilm", trials=2)
    >>> len(results.trials), results.status, results.summary["exact_match"].mean
    (2, 'completed', 100.0)
    """
    (results,) = audit_parts(
        [observe],
        model,
        data=data,
        text_column=text_column,
        label_column=label_column,
        attack=attack,
        options=options,
        batch_size=batch_size,
        trials=trials,
        seed=seed,
        attack_seed=attack_seed,
        known=known,
        client=client,
        defenses=defenses,
        task=task,
        num_labels=num_labels,
        max_tokens=max_tokens,
        window=window,
        entities=entities,
        device=device,
        budget=budget,
        progress=progress,
    )
    return results


def audit_parts(
    parts: Sequence[str],
    model: str | Path | TargetModel,
    *,
    data: str | Path | Sequence[Row],
    text_column: str | None,
    label_column: str | None,
    attack: str,
    options: Mapping[str, Any] | None,
    batch_size: int,
    trials: int,
    seed: int,
    attack_seed: int | None = None,
    known: Sequence[str],
    client: str,
    defenses: Sequence[str],
    task: Task | None,
    num_labels: int | None,
    max_tokens: int | None,
    window: int | None,
    entities: bool,
    device: str,
    budget: Budget | None,
    progress: Progress,
) -> list[Results]:
    """One audit for each of several parts of the model, on the same batches and seeds, as `audit` would give them.

    All updates go to the attack together: a pass over few tokens costs little more than one over fewer.
    """
    if batch_size < 1 or trials < 1:
        raise GradleakError("batch size and trials must be at least 1")
    method = ATTACKS.get(attack).from_settings(options or {})  # refuse bad options before any work
    for part in parts:
        parse_selection(part)
    if entities:
        recogniser()  # what is missing for it should be said now, not after hours
    rows = read_data(data, text_column, label_column) if isinstance(data, str | Path) else list(data)
    if not isinstance(model, TargetModel):
        model = load_model(model, task=task, num_labels=num_labels, device=device, progress=progress)
    private = draw_trials(
        rows, model, batch_size=batch_size, trials=trials, seed=seed, max_tokens=max_tokens, window=window
    )
    method = method.prepared(model)
    senders = [Client(model, known, client, defenses, part) for part in parts]
    seeds = [derive_seed(seed, "trial", i) for i in range(trials)]
    attacking = seeds if attack_seed is None else [derive_seed(attack_seed, "trial", i) for i in range(trials)]
    budget = budget or Budget()
    measured: list[list[Trial]] = [[] for _ in parts]
    for first in range(0, trials, together := _together(model, senders)):
        # Only as many updates at once as fit into memory: each is as large as the model.
        some = range(first, min(trials, first + together))
        updates = [
            [sender.update(private[i].texts, private[i].labels, derive_seed(seeds[i], "client")) for i in some]
            for sender in senders
        ]
        if not first:
            shown = [observed(each[0], part, model) for each, part in zip(updates, parts, strict=True)]
            for one in shown:
                progress.say(seen(one))
        found = run_attack(
            [update for each in updates for update in each],
            model,
            attack,
            seed=[attacking[i] for i in some] * len(parts),
            budget=budget,
            progress=progress,
            **dict(options or {}),
        )
        # Guessing looks at no tensor, so it is the same for every part.
        own = [seeds[i] for i in some]
        guessed = _control(method, updates[0], [private[i] for i in some], model, own, entities, progress)
        for number, done in enumerate(measured):
            answers = found[number * len(some) : (number + 1) * len(some)]
            sizes = [
                strength(
                    senders[number], update, private[i].texts, private[i].labels, derive_seed(seeds[i], "client")
                )
                for i, update in zip(some, updates[number], strict=True)
            ]
            done += [
                _trial(i, attacking[i], private[i], update, answer, guess, model, entities, sent)
                for i, update, answer, guess, sent in zip(some, updates[number], answers, guessed, sizes, strict=True)
            ]
    scenario = Scenario(
        model=model.name,
        family=model.family,
        task=model.task,
        model_fingerprint=model.fingerprint,
        parameters=sum(p.numel() for p in model.parameters().values()),
        data=str(data) if isinstance(data, str | Path) else "given in Python",
        data_rows=len(rows),
        labels=_label_source(rows, model),
        batch_size=batch_size,
        trials=trials,
        seed=seed,
        client=senders[0].rule,
        defenses=list(updates[0][0].manifest.defenses),
        known=list(updates[0][0].known.granted),
    )
    return [
        gathered(scenario.model_copy(update={"observed": part}), method, done, model)
        for part, done in zip(shown, measured, strict=True)
    ]


def _together(model: TargetModel, senders: Sequence[Client]) -> int:
    """Of how many trials the updates of all senders may be held at once; one is made whole before it is cut."""
    sizes = {name: p.numel() * p.element_size() for name, p in model.parameters().items()}
    needed = max(sum(sizes.values()), sum(sizes[name] for sender in senders for name in sender.observed))
    return max(1, int(UPDATES_SHARE * free_memory(model.device) / needed))


def _control(
    method: Attack,
    updates: Sequence[Update],
    private: Sequence[TrialData],
    model: TargetModel,
    seeds: Sequence[int],
    entities: bool,
    progress: Progress,
) -> list[dict[str, float]]:
    """For every trial, the mean scores of draws from the attack's prior (n-gram if it has none), no gradient used."""
    prior = getattr(method.options, "prior", "none")
    draws = run_attack(
        [update for update in updates for _ in range(CONTROL_DRAWS)],
        model,
        "control",
        seed=[derive_seed(seed, "control", i) for seed in seeds for i in range(CONTROL_DRAWS)],
        progress=progress,
        prior="ngram" if prior == "none" else prior,
    )
    scores = []
    for number, trial in enumerate(private):
        own = draws[number * CONTROL_DRAWS : (number + 1) * CONTROL_DRAWS]
        scores.append(mean_scores([score(draw, trial.texts, model, entities=entities).metrics for draw in own]))
    return scores


def _trial(
    index: int,
    seed: int,
    private: TrialData,
    update: Update,
    found: Reconstruction,
    guessed: dict[str, float],
    model: TargetModel,
    entities: bool,
    sent: Strength,
) -> Trial:
    scored = score(found, private.texts, model, entities=entities)
    labels = None if private.labels is None else [class_number(model, label) for label in private.labels]
    batch = model.encode(private.texts)
    content = {token for sentence in batch.sentences() for token in model.content(sentence)}
    return Trial(
        index=index,
        seed=seed,
        status=found.status,
        truth=private.texts,
        labels=labels,
        reconstruction=found,
        pairs=scored.pairs,
        scores=scored.metrics,
        control_scores=guessed,
        found=found_accuracy(found, labels, batch.lengths, model.tokenizer.convert_ids_to_tokens(list(content))),
        truth_distance=truth_distance(update, private.texts, labels, model),
        tokens=sum(batch.lengths),
        signal=sent.signal,
        noise=sent.noise,
        seconds=found.seconds,
        peak_memory_mb=found.peak_memory_mb,
    )


def gathered(
    scenario: Scenario,
    method: Method,
    trials: list[Trial],
    model: Target,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> Results:
    """All trials with the means over them; `ranges` are for metrics that do not run from 0 to 100."""
    unfinished = [trial.status for trial in trials if trial.status != "completed"]
    return Results(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status=unfinished[0] if unfinished else "completed",
        environment=describe(model.device),
        scenario=scenario,
        attack=AttackInfo(name=method.name, options=method.options.model_dump()),
        trials=trials,
        summary=_intervals([trial.scores for trial in trials], ranges or {}),
        control=_intervals([trial.control_scores for trial in trials], ranges or {}),
        found=_intervals([trial.found for trial in trials], {}),
    )


def _intervals(
    scores: Sequence[Mapping[str, float]], ranges: Mapping[str, tuple[float, float]]
) -> dict[str, Interval]:
    return {name: bootstrap(values, *ranges.get(name, (0.0, 100.0))) for name, values in by_metric(scores).items()}


def _label_source(rows: Sequence[Row], model: TargetModel) -> Literal["given", "drawn", "none"]:
    if model.task == "causal-lm":
        return "none"
    return "drawn" if any(row.label is None for row in rows) else "given"
