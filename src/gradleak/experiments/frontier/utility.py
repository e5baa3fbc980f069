"""What a defence costs: how good a model gets when every client defends its updates."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.clients.check import check_chains
from gradleak.core.budget import Budget, StopReason
from gradleak.core.environment import Environment, describe
from gradleak.core.files import output_folder, write_text
from gradleak.core.parameters import validated
from gradleak.core.progress import SILENT, Progress
from gradleak.data.texts import BUILT_IN, Row, read_data
from gradleak.defenses.chains import Chain, canonical, label, parse_chains
from gradleak.experiments.kept import Cells, digest_rows, identity
from gradleak.models.families import Task
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel
from gradleak.scoring.interval import Interval, bootstrap
from gradleak.training.classes import classification_metrics
from gradleak.training.finetune import evaluate
from gradleak.training.perplexity import WORST, perplexity
from gradleak.training.rounds import Example, RoundSettings, examples, federate, split
from gradleak.updates.update import ClientRule

FILE = "utility.json"
UNTRAINED = "untrained"

Metric = Literal["accuracy", "f1", "mcc", "perplexity"]
# The range of each metric: what one seed alone can say. All but perplexity run up to 100.
RANGES: dict[str, tuple[float, float]] = {
    "accuracy": (0.0, 100.0),
    "f1": (0.0, 100.0),
    "mcc": (-100.0, 100.0),
    "perplexity": (1.0, WORST),
}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class UtilityCell(_Model):
    """One training to its end: one setting, one seed."""

    setting: str
    seed: int
    metrics: dict[str, float]
    seconds: float


class SettingUtility(_Model):
    """How good the model gets under one chain of defences."""

    setting: str
    defenses: list[str] = Field(description="the chain, in the order in which it acts")
    status: Literal["completed", "unfinished"] = Field(description="unfinished: some seeds are still to be run")
    by_seed: dict[int, dict[str, float]] = Field(description="the metrics of every finished seed")
    metrics: dict[str, Interval] = Field(description="means over the finished seeds; empty if there are none")


class UtilityResults(_Model):
    """Every setting beside the floors: the model before training, and always guessing the commonest class."""

    schema_version: Literal[1] = 1
    created: str
    status: StopReason
    environment: Environment
    model: str
    model_fingerprint: str
    task: Literal["classification", "causal-lm"]
    data: str
    data_rows: int
    client: ClientRule
    rounds: RoundSettings
    seed: int
    untrained: dict[str, Interval]
    majority: dict[str, Interval] = Field(description="empty for language models")
    settings: list[SettingUtility]

    def save(self, folder: Path) -> Path:
        """Write `utility.json`, readable by its owner only."""
        return write_text(folder / FILE, self.model_dump_json(indent=2) + "\n")


def utility(
    model: str | Path | TextModel = "minilm",
    *,
    data: str | Path | Sequence[Row] = BUILT_IN,
    text_column: str | None = None,
    label_column: str | None = None,
    defenses: Sequence[str | Sequence[str]] = (),
    client: str = "fedsgd",
    seed: int = 0,
    task: Task | None = None,
    num_labels: int | None = None,
    device: str = "cpu",
    out: str | Path | None = None,
    budget: Budget | None = None,
    progress: Progress = SILENT,
    **rounds: Any,
) -> UtilityResults:
    """Measure how good a model gets in simulated federated rounds under each defence, and with none.

    Each of `defenses` is one setting to compare: a text such as "frozen+noise:sigma=0.001", or a list of texts.
    Further keywords are the fields of `RoundSettings`: rounds, clients, batch_size, lr, seeds, test_rows, max_tokens.
    With a folder `out`, finished trainings are kept there and not run again. The model itself is not trained.

    >>> from gradleak import utility
    >>> results = utility("minilm", rounds=1, clients=1, batch_size=2, seeds=2, test_rows=10)
    >>> [setting.setting for setting in results.settings], sorted(results.untrained)
    (['none'], ['accuracy', 'f1', 'mcc'])
    """
    settings = validated(RoundSettings, rounds, "utility")
    chains, rule = parse_chains(defenses), ClientRule.parse(client)
    rows = read_data(data, text_column, label_column) if isinstance(data, str | Path) else list(data)
    if not isinstance(model, TextModel):
        model = load_text_model(model, task=task, num_labels=num_labels, device=device, progress=progress)
    check_chains(chains, model)
    limit = budget or Budget()
    with nullcontext() if out is None else output_folder(out) as folder:
        run = _Run(model, rows, settings, rule, seed, folder, limit, progress)
        untrained = summary(run.untrained())
        measured = [run.setting(number, chain, len(chains)) for number, chain in enumerate(chains)]
    complete = all(one.status == "completed" for one in measured)
    return UtilityResults(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status="completed" if complete else limit.reason,
        environment=describe(model.device),
        model=model.name,
        model_fingerprint=model.fingerprint,
        task=model.task,
        data=str(data) if isinstance(data, str | Path) else "given in Python",
        data_rows=len(rows),
        client=rule,
        rounds=settings,
        seed=seed,
        untrained=untrained,
        majority=summary(run.majority()),
        settings=measured,
    )


def summary(values: Sequence[Mapping[str, float]]) -> dict[str, Interval]:
    """The mean and interval of every metric over seeds.

    >>> summary([{"mcc": 40.0}])
    {'mcc': Interval(mean=40.0, low=-100.0, high=100.0)}
    """
    names = values[0] if values else ()
    return {name: bootstrap([value[name] for value in values], *RANGES[name]) for name in names}


def held_out_metrics(model: TextModel, test: Sequence[Example]) -> dict[str, float]:
    """Accuracy, F1 and MCC in percent, or the perplexity of a language model."""
    if model.task == "causal-lm":
        return {"perplexity": perplexity(model, [e.tokens for e in test])}
    return _percent(evaluate(model, [(e.tokens, e.label) for e in test], 32))


def majority_metrics(model: TextModel, test: Sequence[Example]) -> dict[str, float]:
    """The same for one who always says the commonest class."""
    labels = [e.label for e in test]
    common = Counter(labels).most_common(1)[0][0]
    return _percent(classification_metrics(labels, [common] * len(labels), model.num_labels))


def _percent(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: round(100 * value, 2) for name, value in metrics.items()}


class _Run:
    """What all trainings of one call share."""

    def __init__(
        self,
        model: TextModel,
        rows: Sequence[Row],
        settings: RoundSettings,
        rule: ClientRule,
        seed: int,
        folder: Path | None,
        budget: Budget,
        progress: Progress,
    ) -> None:
        self.model, self.settings, self.rule = model, settings, rule
        self.budget, self.progress, self.cells = budget, progress, Cells(folder)
        pool = examples(rows, model, settings.max_tokens)
        self.splits = {seed + i: split(pool, settings, seed + i) for i in range(settings.seeds)}
        self.decides = {
            **settings.model_dump(exclude={"seeds"}),
            "client": str(rule),
            "model": model.fingerprint,
            "task": model.task,
            "rows": digest_rows(rows),
        }

    def majority(self) -> list[dict[str, float]]:
        if self.model.task == "causal-lm":
            return []
        return [majority_metrics(self.model, test) for _, test in self.splits.values()]

    def untrained(self) -> list[dict[str, float]]:
        found = (self._kept(UNTRAINED, None, seed, "") for seed in self.splits)
        return [cell.metrics for cell in found if cell is not None]

    def setting(self, number: int, chain: Chain, count: int) -> SettingUtility:
        name = label(chain)
        done = dict(self._finished(name, chain, f"utility {number + 1}/{count}: {name}"))
        return SettingUtility(
            setting=name,
            defenses=canonical(chain),
            status="completed" if len(done) == len(self.splits) else "unfinished",
            by_seed=done,
            metrics=summary(list(done.values())),
        )

    def _finished(self, name: str, chain: Chain, what: str) -> Iterator[tuple[int, dict[str, float]]]:
        for seed in self.splits:
            if (cell := self._kept(name, chain, seed, f"{what}, seed {seed}")) is not None:
                yield seed, cell.metrics

    def _kept(self, name: str, chain: Chain | None, seed: int, what: str) -> UtilityCell | None:
        """The cell as it lies in the folder, or run now; None if the budget is spent."""
        chosen = None if chain is None else canonical(chain)
        place = identity(f"{name} seed {seed}", {**self.decides, "defenses": chosen, "seed": seed})
        cell = self.cells.read(place, UtilityCell)
        if cell is None and (cell := self._train(name, chain, seed, what)) is not None:
            self.cells.write(place, cell)
        return cell

    def _train(self, name: str, chain: Chain | None, seed: int, what: str) -> UtilityCell | None:
        started, (train, test) = time.monotonic(), self.splits[seed]
        trained: TextModel | None = self.model
        if chain is not None:
            trained = federate(
                self.model, train, self.settings, chain=chain, client=self.rule, seed=seed,
                budget=self.budget, progress=self.progress, what=what,
            )  # fmt: skip
        if trained is None:
            return None
        seconds = round(time.monotonic() - started, 2)
        return UtilityCell(setting=name, seed=seed, metrics=held_out_metrics(trained, test), seconds=seconds)
