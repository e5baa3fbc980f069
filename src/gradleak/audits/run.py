"""An audit: private batches, their updates, an attack on each, and what it read back against the truth."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from gradleak.attacks import ATTACKS
from gradleak.attacks.base import Attack, Method, Reconstruction
from gradleak.attacks.control import Control
from gradleak.attacks.run import attack as run_attack
from gradleak.audits.results import AttackInfo, Results, Scenario, Trial, observed
from gradleak.audits.spec import AuditConfig
from gradleak.clients.sender import DEFAULT_GRANTS
from gradleak.clients.strength import strength
from gradleak.clients.text import Client, class_number
from gradleak.core.budget import Budget
from gradleak.core.environment import describe
from gradleak.core.errors import GradleakError
from gradleak.core.memory import free_memory
from gradleak.core.progress import SILENT, Progress
from gradleak.core.seeds import derive_seed
from gradleak.data.draws import draw_trials
from gradleak.data.texts import BUILT_IN, Row, read_data
from gradleak.models.base import Target
from gradleak.models.families import Task
from gradleak.models.load import load_model
from gradleak.models.selection import ALL, parse_selection
from gradleak.models.text import TextModel
from gradleak.scoring.inferred import inferred_accuracy
from gradleak.scoring.interval import Interval, bootstrap
from gradleak.scoring.metric import by_metric, mean_scores
from gradleak.scoring.metrics import prepare_metrics, range_of
from gradleak.scoring.pieces import Pieces, total
from gradleak.scoring.score import score
from gradleak.scoring.truth import truth_distance
from gradleak.updates.update import Known, Update

# Draws of the control a trial: its spread would otherwise hide what the attack adds.
CONTROL_DRAWS = 10
# The share of the free memory that updates may take while they wait to be attacked.
UPDATES_SHARE = 0.3
# Where texts come from that no file holds.
GIVEN = "given in Python"


def audit(
    model: str | Path | TextModel = "minilm",
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
    method = ATTACKS.get(attack).from_settings(options or {})  # refuse bad options before any work
    question = Question(
        rows=read_data(data, text_column, label_column) if isinstance(data, str | Path) else list(data),
        source=str(data) if isinstance(data, str | Path) else GIVEN,
        batch_size=batch_size,
        trials=trials,
        seed=seed,
        attack_seed=attack_seed,
        known=known,
        client=client,
        defenses=defenses,
        observe=observe,
        max_tokens=max_tokens,
        window=window,
        entities=entities,
    )
    if not isinstance(model, TextModel):
        model = load_model(model, task=task, num_labels=num_labels, device=device, progress=progress)
    (results,) = audit_together([question], model, method, budget=budget, progress=progress)
    return results


@dataclass(frozen=True, kw_only=True)
class Question:
    """What one audit asks: whose texts, in which batches, sent in which way, and what of it the attacker sees."""

    rows: Sequence[Row]
    source: str = GIVEN
    batch_size: int = 1
    trials: int = 4
    seed: int = 0
    attack_seed: int | None = None
    known: Sequence[str] = DEFAULT_GRANTS
    client: str = "fedsgd"
    defenses: Sequence[str] = ()
    observe: str = ALL
    max_tokens: int | None = None
    window: int | None = None
    entities: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.trials < 1:
            raise GradleakError("batch size and trials must be at least 1")
        parse_selection(self.observe)
        prepare_metrics("text", self.metrics)

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("nerr",) if self.entities else ()

    @classmethod
    def of(cls, config: AuditConfig, rows: Sequence[Row], **changes: Any) -> Self:
        """What a configuration asks of these rows, with some of it changed."""
        named = {field.name for field in fields(cls)} & set(AuditConfig.model_fields)
        return cls(**{"rows": rows, "source": config.data, **config.model_dump(include=named), **changes})


def audit_together(
    questions: Sequence[Question],
    model: TextModel,
    method: Attack,
    *,
    budget: Budget | None = None,
    progress: Progress = SILENT,
) -> list[Results]:
    """One audit for each question, as `audit` would answer it up to rounding.

    All updates go to the attack together: a pass over few tokens costs little more than one over fewer.
    """
    method = method.prepared(model)
    sides = [_Side(question, model) for question in questions]
    budget = budget or Budget()
    for portion in _portions([(side, i) for side in sides for i in range(side.asked.trials)], model):
        updates = [side.update(i, progress) for side, i in portion]
        for update in updates:
            update.check(model)
        seeds = [side.attack_seeds[i] for side, i in portion]
        found = method.run(updates, model, budget=budget, progress=progress, seeds=seeds)
        faced = [side.faced(i, u, answer) for (side, i), u, answer in zip(portion, updates, found, strict=True)]
        guesses = _control(method, faced, updates, model, progress)
        for (side, i), update, answer, guessed in zip(portion, updates, found, guesses, strict=True):
            side.measure(i, update, answer, guessed)
    return [side.results(method) for side in sides]


class _Side:
    """The honest side of one audit: its private batches, their updates, and what the attack made of each."""

    def __init__(self, asked: Question, model: TextModel) -> None:
        self.asked, self.model = asked, model
        self.sender = Client(model, asked.known, asked.client, asked.defenses, asked.observe)
        self.private = draw_trials(
            asked.rows,
            model,
            batch_size=asked.batch_size,
            trials=asked.trials,
            seed=asked.seed,
            max_tokens=asked.max_tokens,
            window=asked.window,
        )
        self.seeds = self._seeds(asked.seed)
        self.attack_seeds = self.seeds if asked.attack_seed is None else self._seeds(asked.attack_seed)
        self.trials: list[Trial] = []

    def _seeds(self, seed: int) -> list[int]:
        return [derive_seed(seed, "trial", i) for i in range(self.asked.trials)]

    def update(self, i: int, progress: Progress) -> Update:
        """What the client sends of a batch."""
        update = self.sender.update(self.private[i].texts, self.private[i].labels, self._client_seed(i))
        if i == 0:
            self.shown = observed(update, self.asked.observe, self.model)
            self.granted, self.told = update.known.granted, update.manifest.defenses
            progress.say(self.shown.sentence)
        return update

    def _client_seed(self, i: int) -> int:
        return derive_seed(self.seeds[i], "client")

    def faced(self, i: int, update: Update, found: Reconstruction) -> Faced:
        """What guessing is up against. It may name as many sentences as the attack did."""
        sentences = max(len(found.sentences), update.known.size or 1)
        return Faced(self.seeds[i], tuple(self.private[i].texts), self.asked.metrics, sentences, update.known)

    def measure(self, i: int, update: Update, found: Reconstruction, guessed: Guessed) -> None:
        """Compare what the attack made of a batch with the batch."""
        private, model = self.private[i], self.model
        scored = score(found, private.texts, model, metrics=self.asked.metrics)
        labels = None if private.labels is None else [class_number(model, label) for label in private.labels]
        batch = model.encode(private.texts)
        content = {token for sentence in batch.sentences() for token in model.content(sentence)}
        sent = strength(self.sender, update, private.texts, private.labels, self._client_seed(i))
        trial = Trial(
            index=i,
            seed=self.attack_seeds[i],
            status=found.status,
            truth=private.texts,
            labels=labels,
            reconstruction=found,
            pairs=scored.pairs,
            scores=scored.metrics,
            control_scores=guessed.scores,
            control_pieces=guessed.pieces,
            found=inferred_accuracy(
                found, labels, batch.lengths, model.tokenizer.convert_ids_to_tokens(list(content))
            ),
            truth_distance=truth_distance(update, private.texts, labels, model),
            tokens=sum(batch.lengths),
            signal=sent.signal,
            noise=sent.noise,
            seconds=found.seconds,
            peak_memory_mb=found.peak_memory_mb,
        )
        self.trials.append(trial)

    def results(self, method: Attack) -> Results:
        """All trials, once they are measured."""
        asked, model = self.asked, self.model
        scenario = Scenario(
            model=model.name,
            family=model.family,
            task=model.task,
            model_fingerprint=model.fingerprint,
            parameters=sum(p.numel() for p in model.parameters().values()),
            data=asked.source,
            data_rows=len(asked.rows),
            labels=_label_source(asked.rows, model),
            batch_size=asked.batch_size,
            trials=asked.trials,
            seed=asked.seed,
            client=self.sender.rule,
            defenses=list(self.told),
            known=list(self.granted),
            observed=self.shown,
        )
        return gathered(scenario, method, self.trials, model)


class Faced(NamedTuple):
    """What a trial's control depends on: the draws' seed, the truth, what is looked for, and what may be guessed."""

    seed: int
    texts: tuple[str, ...]
    metrics: tuple[str, ...]
    sentences: int
    known: Known


class Guessed(NamedTuple):
    """What the control's draws reach on a trial: mean scores, and the names and numbers that all of them hit."""

    scores: dict[str, float]
    pieces: Pieces | None


Job = tuple[_Side, int]


def _portions(waiting: Sequence[Job], model: TextModel) -> Iterator[list[Job]]:
    """As many updates at a time as fit into memory; each is made whole before it is cut to what is observed."""
    sizes = {name: p.numel() * p.element_size() for name, p in model.parameters().items()}
    room = UPDATES_SHARE * free_memory(model.device) - sum(sizes.values())
    portion: list[Job] = []
    held = 0
    for side, i in waiting:
        needed = sum(sizes[name] for name in side.sender.observed)
        if portion and held + needed > room:
            yield portion
            portion, held = [], 0
        portion.append((side, i))
        held += needed
    yield portion


def _control(
    method: Attack, faced: Sequence[Faced], updates: Sequence[Update], model: TextModel, progress: Progress
) -> list[Guessed]:
    """For every trial, what becomes of draws from the attack's prior (n-gram if it has none), no gradient used.

    Guessing looks at no tensor, so trials that differ in nothing else share it.
    """
    different = dict(zip(faced, updates, strict=True))
    prior = getattr(method.options, "prior", "none")
    # A draw has as many sentences as the update tells; where the attack named more, several make one guess.
    draws = {one: CONTROL_DRAWS * -(-one.sentences // (one.known.size or 1)) for one in different}
    drawn = run_attack(
        [update for one, update in different.items() for _ in range(draws[one])],
        model,
        Control.name,
        seed=[derive_seed(one.seed, "control", i) for one in different for i in range(draws[one])],
        progress=progress,
        prior="ngram" if prior == "none" else prior,
    )
    waiting = iter(drawn)
    guessed = {one: _guessed(one, list(itertools.islice(waiting, draws[one])), model) for one in different}
    return [guessed[one] for one in faced]


def _guessed(faced: Faced, draws: Sequence[Reconstruction], model: TextModel) -> Guessed:
    together = len(draws) // CONTROL_DRAWS
    scored = []
    for first in range(0, len(draws), together):
        sentences = [sentence for draw in draws[first : first + together] for sentence in draw.sentences]
        guess = Reconstruction(sentences=sentences[: faced.sentences])
        scored.append(score(guess, faced.texts, model, metrics=faced.metrics))
    pieces = total([pair.pieces for one in scored for pair in one.pairs])
    return Guessed(mean_scores([one.metrics for one in scored]), pieces)


def gathered(scenario: Scenario, method: Method, trials: list[Trial], model: Target) -> Results:
    """All trials with the means over them."""
    unfinished = [trial.status for trial in trials if trial.status != "completed"]
    return Results(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status=unfinished[0] if unfinished else "completed",
        environment=describe(model.device),
        scenario=scenario,
        attack=AttackInfo(name=method.name, options=method.options.model_dump()),
        trials=trials,
        summary=_intervals([trial.scores for trial in trials]),
        control=_intervals([trial.control_scores for trial in trials]),
        found=_intervals([trial.found for trial in trials]),
    )


def _intervals(scores: Sequence[Mapping[str, float]]) -> dict[str, Interval]:
    return {name: bootstrap(values, *range_of(name)) for name, values in by_metric(scores).items()}


def _label_source(rows: Sequence[Row], model: TextModel) -> Literal["given", "drawn", "none"]:
    if model.task == "causal-lm":
        return "none"
    return "drawn" if any(row.label is None for row in rows) else "given"
