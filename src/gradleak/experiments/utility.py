"""What a defence costs: how good a model gets when every client defends its updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.audits.modality import GIVEN, modality_of
from gradleak.audits.spec import AuditSpec
from gradleak.core.budget import Budget
from gradleak.core.environment import Environment, describe
from gradleak.core.files import write_text
from gradleak.core.parameters import validated
from gradleak.core.progress import SILENT, Progress
from gradleak.defenses.chains import Chain, canonical, label, parse_chains
from gradleak.experiments.experiment import (
    Experiment,
    ExperimentStatus,
    Finished,
    RunOptions,
    raise_if_all_failed,
    run_experiment,
)
from gradleak.experiments.runner.cell import Cell
from gradleak.experiments.runner.jobs import Learned, TrainingJob
from gradleak.experiments.runner.plan import Planned
from gradleak.experiments.runner.subjects import Subjects
from gradleak.experiments.specs import ExperimentSpec
from gradleak.models.base import Target
from gradleak.models.tasks import TargetTask
from gradleak.scoring.interval import Interval, mean_interval
from gradleak.training.perplexity import WORST
from gradleak.training.rounds import RoundSettings, split
from gradleak.updates.client_rule import ClientRule

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


# Settings of rounds that audits have too; here they are the rounds'.
_BOTH = {"batch_size", "max_tokens"}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


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
    status: ExperimentStatus
    environment: Environment
    model: str
    model_fingerprint: str
    task: TargetTask
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


class UtilitySpec(ExperimentSpec):
    """Trainings under several chains of defences; of the audit, model, data, client and the first seed count."""

    rounds: RoundSettings = RoundSettings()
    defenses: tuple[Chain, ...] = ((),)


class Utility(Experiment[UtilitySpec, UtilityResults]):
    """A spec × chains of defences × seeds, each a training; and the untrained model, once per seed."""

    kind = "utility"

    @property
    def seeds_used(self) -> list[int]:
        return [self.spec.audit.seed + i for i in range(self.spec.rounds.seeds)]

    def jobs(self, subjects: Subjects) -> list[Planned]:
        """The floors of all seeds, then every chain with all seeds."""
        audit, rounds = self.spec.audit, self.spec.rounds
        learner = subjects.learner(audit)
        pool = learner.pool(rounds.max_tokens)
        split(pool, rounds, audit.seed)  # too few rows, or no labels, is an error now and not after hours
        for chain in filter(None, self.spec.defenses):  # and so is a defence that does not fit the model
            learner.update(learner.client(subjects.model(audit), audit.rule, chain), pool[:1])
        planned = [TrainingJob(spec=audit.with_(seed=s), rounds=rounds, trained=False) for s in self.seeds_used]
        planned += [
            TrainingJob(spec=audit.with_(seed=seed, defenses=chain), rounds=rounds)
            for chain in self.spec.defenses
            for seed in self.seeds_used
        ]
        return [Planned(job) for job in planned]

    def summarise(self, finished: Finished) -> UtilityResults:
        raise_if_all_failed(finished)
        spec, subjects, seeds = self.spec.audit, finished.subjects, self.seeds_used
        model = subjects.model(spec)
        rows = [finished.cells[i : i + len(seeds)] for i in range(0, len(finished.cells), len(seeds))]
        floors = [learned for cell in rows[0] if (learned := _learned(cell, finished)) is not None]
        return UtilityResults(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            status=finished.status,
            environment=describe(model.device),
            model=model.name,
            model_fingerprint=model.fingerprint,
            task=model.task,
            data=GIVEN if subjects.data_in_memory else spec.data,
            data_rows=modality_of(model).about(subjects.data(spec), model)["data_rows"],
            client=spec.rule,
            rounds=self.spec.rounds,
            seed=spec.seed,
            untrained=summary([floor.metrics for floor in floors]),
            majority=summary([floor.majority for floor in floors if floor.majority]),
            settings=[self._setting(*pair, finished) for pair in zip(self.spec.defenses, rows[1:], strict=True)],
        )

    def _setting(self, chain: Chain, cells: Sequence[Cell], finished: Finished) -> SettingUtility:
        ends = zip(self.seeds_used, (_learned(cell, finished) for cell in cells), strict=True)
        done = {seed: learned.metrics for seed, learned in ends if learned is not None}
        return SettingUtility(
            setting=label(chain),
            defenses=canonical(chain),
            status="completed" if len(done) == len(cells) else "unfinished",
            by_seed=done,
            metrics=summary(list(done.values())),
        )


def _learned(cell: Cell, finished: Finished) -> Learned | None:
    end = finished.completed(cell)
    return None if end is None else end.learned


def summary(values: Sequence[Mapping[str, float]]) -> dict[str, Interval]:
    """The mean and interval of every metric over seeds.

    >>> summary([{"mcc": 40.0}])
    {'mcc': Interval(40 [-100, 100])}
    """
    names = values[0] if values else ()
    return {name: mean_interval([value[name] for value in values], *RANGES[name]) for name in names}


def utility(
    model: str | Path | Target = "minilm",
    *,
    data: Any = None,
    defenses: Sequence[str | Sequence[str]] = (),
    out: str | Path | None = None,
    options: RunOptions | None = None,
    budget: Budget | str | float | None = None,
    progress: Progress = SILENT,
    **settings: Any,
) -> UtilityResults:
    """Measure how good a model gets in simulated federated rounds under each defence, and with none.

    Each of `defenses` is one setting to compare: a text such as "frozen+noise:sigma=0.001", or a list of texts.
    Further keywords are the fields of `RoundSettings` (rounds, clients, batch_size, lr, seeds, test_rows, max_tokens)
    and those of `AuditSpec` that say what is trained (client, seed, task, device, ...). With a folder `out`, finished
    trainings are kept there and not run again. The model itself is not trained.

    >>> from gradleak import load_model, utility
    >>> results = utility(load_model("minilm"), rounds=1, clients=1, batch_size=2, seeds=2, test_rows=10)
    >>> [setting.setting for setting in results.settings], sorted(results.untrained)
    (['none'], ['accuracy', 'f1', 'mcc'])
    """
    own = {name: settings.pop(name) for name in list(settings) if name not in AuditSpec.model_fields or name in _BOTH}
    named = {} if isinstance(model, Target) else {"model": str(model)}
    source = {"data": str(data)} if isinstance(data, str | Path) else {}
    spec = UtilitySpec(
        audit=validated(AuditSpec, {**settings, **named, **source}, "utility"),
        rounds=validated(RoundSettings, own, "utility"),
        defenses=tuple(parse_chains(defenses)),
    )
    given = {"model": model if isinstance(model, Target) else None, "data": None if source else data}
    with TemporaryDirectory() if out is None else nullcontext(out) as folder:
        return run_experiment(Utility(spec), folder, **given, options=options, budget=budget, progress=progress)
