"""Attacks × defences, joined with what each defence costs: the frontier a practitioner chooses on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gradleak.audits.results import Results
from gradleak.audits.run import audit
from gradleak.clients.check import check_chains
from gradleak.core.budget import Budget, StopReason
from gradleak.core.environment import Environment, describe
from gradleak.core.files import output_folder, write_text
from gradleak.core.progress import SILENT, Progress
from gradleak.data.texts import read_data
from gradleak.defenses.chains import NONE, Chain, canonical, label
from gradleak.experiments.frontier.advice import advise
from gradleak.experiments.frontier.config import AttackSpec, FrontierConfig
from gradleak.experiments.frontier.points import Point, make_point, mark_front
from gradleak.experiments.frontier.utility import Metric, UtilityResults, utility
from gradleak.experiments.kept import digest_rows, identity, kept_audit
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel
from gradleak.scoring.interval import Interval

FILE = "frontier.json"


class Frontier(BaseModel):
    """Every defence setting with its leak, its cost and the advice that follows."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    schema_version: Literal[1] = 1
    created: str
    status: StopReason
    environment: Environment
    config: FrontierConfig
    model_fingerprint: str
    metric: Metric
    points: list[Point]
    control: Interval | None = Field(description="ROUGE-L of guessing without the update, beside the undefended leak")
    untrained: Interval | None = Field(description="the metric before any training")
    majority: Interval | None = Field(description="the metric of always saying the commonest class")
    advice: str

    def save(self, folder: Path) -> Path:
        """Write `frontier.json`, readable by its owner only."""
        return write_text(folder / FILE, self.model_dump_json(indent=2) + "\n")


def frontier(
    config: FrontierConfig,
    out: str | Path,
    *,
    model: TextModel | None = None,
    budget: Budget | None = None,
    progress: Progress = SILENT,
) -> Frontier:
    """Attack every defence with every attack, train under every defence, and join the two.

    Finished audits lie in `out/attacks`, finished trainings in `out/utility`; they are not run again. What the budget
    cut short is not kept, is marked unfinished, and never counts as protection.
    """
    limit = budget or Budget()
    with output_folder(out) as folder:
        target = model or load_text_model(
            config.model, task=config.task, num_labels=config.num_labels, device=config.device, progress=progress
        )
        check_chains(config.defenses, target)
        privacy = _Privacy(config, target, folder / "attacks", limit, progress)
        found = [
            {attack.label: privacy.cell(attack, chain) for attack in config.attacks} for chain in config.defenses
        ]
        cost = utility(
            target,
            data=config.data,
            text_column=config.text_column,
            label_column=config.label_column,
            defenses=config.defenses,
            client=config.client,
            seed=config.seed,
            out=folder / "utility",
            budget=limit,
            progress=progress,
            **config.utility.model_dump(),
        )
        return _joined(config, target, found, cost, limit)


def _joined(
    config: FrontierConfig,
    model: TextModel,
    found: Sequence[dict[str, Results | None]],
    cost: UtilityResults,
    budget: Budget,
) -> Frontier:
    metric: Metric = "perplexity" if model.task == "causal-lm" else config.metric
    plain = cost.settings[0]
    points = mark_front(
        [make_point(attacks, one, plain, metric) for attacks, one in zip(found, cost.settings, strict=True)], metric
    )
    floors = [floor[metric] for floor in (cost.untrained, cost.majority) if metric in floor]
    return Frontier(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        status="completed" if all(point.status == "completed" for point in points) else budget.reason,
        environment=describe(model.device),
        config=config,
        model_fingerprint=model.fingerprint,
        metric=metric,
        points=points,
        control=next((p.score.control for p in points if p.label == NONE and p.score is not None), None),
        untrained=cost.untrained.get(metric),
        majority=cost.majority.get(metric),
        advice=advise(points, metric, max((floor.mean for floor in floors), default=None), config.tolerance),
    )


class _Privacy:
    """The audits, each in a folder of its own so that `gradleak report` can show it."""

    def __init__(
        self, config: FrontierConfig, model: TextModel, folder: Path, budget: Budget, progress: Progress
    ) -> None:
        self.config, self.model, self.folder = config, model, folder
        self.budget, self.progress = budget, progress
        rows = read_data(config.data, config.text_column, config.label_column)
        self.shared: dict[str, Any] = {
            name: getattr(config, name) for name in ("batch_size", "trials", "seed", "known", "client", "max_tokens")
        }
        self.decides = {**self.shared, "model": model.fingerprint, "task": model.task, "rows": digest_rows(rows)}

    def cell(self, attack: AttackSpec, chain: Chain) -> Results | None:
        """The audit as it lies in the folder, or run now; None if the budget ended it."""
        chosen = {"attack": attack.name, "options": attack.options, "defenses": canonical(chain)}
        place = self.folder / identity(f"{label(chain)} {attack.label}", {**self.decides, **chosen})
        return kept_audit(place, self.budget, lambda: self._audit(attack, chain))

    def _audit(self, attack: AttackSpec, chain: Chain) -> Results:
        return audit(
            self.model,
            data=self.config.data,
            text_column=self.config.text_column,
            label_column=self.config.label_column,
            attack=attack.name,
            options=attack.options,
            defenses=chain,
            budget=self.budget,
            progress=self.progress,
            **self.shared,
        )
