"""Results sorted into attempts: all trials of one attack on one scenario, from one audit or from several seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradleak.audits.results import AttackInfo, Results, Scenario, Trial
from gradleak.core.errors import GradleakError
from gradleak.models.selection_text import ALL
from gradleak.scoring.interval import Interval, mean_interval
from gradleak.scoring.metrics import range_of
from gradleak.scoring.named import Named

# What may differ between two audits of one scenario: which texts were drawn, and how many. How much of the update is
# seen follows from the defences and from which part is shown; what is noted of the model, and its adapters, from its
# weights; a threat model is a name for settings.
_ASIDE = {"seed", "trials", "observed", "notes", "adapters", "lora", "threat", "taken_as"}

NO_DEFENSE = "none"


@dataclass(frozen=True)
class Cell:
    """One audit among others, under the names that tell it from them."""

    scenario: str
    defense: str
    attack: str
    results: Results

    @property
    def key(self) -> tuple[str, str]:
        """What makes it an attempt of its own: the scenario, and the attack with its options."""
        return _key(self.results.scenario), _attack_key(self.results)


@dataclass(frozen=True)
class Attempt:
    """One attack on one scenario, under the names of its cells."""

    place: str
    attack: str
    audits: list[Results]
    trials: list[Trial]

    @property
    def scenario(self) -> Scenario:
        return self.audits[0].scenario

    @property
    def info(self) -> AttackInfo:
        return self.audits[0].attack

    @property
    def defense(self) -> str:
        return defense_name(self.scenario)

    def interval(self, metric: str) -> Interval:
        """Over all trials; that of a single audit was computed when it ran."""
        if any(metric not in audit.summary for audit in self.audits):
            raise GradleakError(
                f"an audit of {self.scenario.model} has no {metric}: an older gradleak wrote it; run it again"
            )
        if len(self.audits) == 1:
            return self.audits[0].summary[metric]
        return mean_interval([trial.scores[metric] for trial in self.trials], *range_of(metric))

    def control(self, metric: str) -> Interval:
        if len(self.audits) == 1:
            return self.audits[0].control[metric]
        return mean_interval([trial.control_scores[metric] for trial in self.trials], *range_of(metric))

    def inferred(self, name: str) -> Interval | None:
        """How right it was about what it had to infer; None if it did not look for it."""
        values = [trial.found[name] for trial in self.trials if name in trial.found]
        return mean_interval(values) if values else None

    def guessed(self, share: Callable[[Named], float]) -> Interval | None:
        """How much of the tokens guessing names; None where that was not kept."""
        kept = [share(trial.control_named) for trial in self.trials if trial.control_named is not None]
        return mean_interval(kept) if kept else None

    @property
    def unfinished(self) -> int:
        return sum(trial.status != "completed" for trial in self.trials)


@dataclass(frozen=True)
class Missing:
    """An attempt that was planned and has no result: it failed, a limit killed it, or it was not run."""

    name: str
    on: Callable[[Scenario], bool]


@dataclass(frozen=True)
class Group:
    """A scenario with all attempts on it, under a name that tells it from the others of the folder."""

    name: str
    scenario: Scenario
    attempts: list[Attempt]

    @property
    def defense(self) -> str:
        return defense_name(self.scenario)


def group_attempts(results: Sequence[Results]) -> list[Group]:
    """The scenarios of these results in the order in which they come, each with its attempts."""
    by_scenario: dict[str, list[Attempt]] = {}
    for (scenario, _), attempt in attempts_of(cells_of(results)).items():
        by_scenario.setdefault(scenario, []).append(attempt)
    return [Group(attempts[0].place, attempts[0].scenario, attempts) for attempts in by_scenario.values()]


def cells_of(results: Sequence[Results]) -> list[Cell]:
    """Every audit with its names, in order."""
    different = {_key(audit.scenario): audit.scenario for audit in results}
    names = dict(zip(different, scenario_names(list(different.values())), strict=True))
    attacks = attack_names(results)
    return [
        Cell(names[_key(audit.scenario)], defense_name(audit.scenario), attacks[_attack_key(audit)], audit)
        for audit in results
    ]


def attempts_of(cells: Sequence[Cell]) -> dict[tuple[str, str], Attempt]:
    """The cells of one attack on one scenario together, by what makes them one."""
    alike: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        alike.setdefault(cell.key, []).append(cell)
    return {
        key: Attempt(
            together[0].scenario,
            together[0].attack,
            [cell.results for cell in together],
            _different([trial for cell in together for trial in cell.results.trials]),
        )
        for key, together in alike.items()
    }


def attack_names(results: Sequence[Results]) -> dict[str, str]:
    """A name for every attack: its own, and those of its options that differ between the ones that share it."""
    options: dict[str, dict[str, dict[str, object]]] = {}
    for audit in results:
        options.setdefault(audit.attack.name, {})[_attack_key(audit)] = audit.attack.options
    names = {}
    for attack, variants in options.items():
        keys = dict.fromkeys(key for variant in variants.values() for key in variant)
        differing = [key for key in keys if len({json.dumps(v.get(key), default=str) for v in variants.values()}) > 1]
        for attack_key, variant in variants.items():
            settings = ", ".join(f"{key}={variant[key]}" for key in differing if variant.get(key) is not None)
            names[attack_key] = f"{attack} ({settings})" if settings else attack
    return names


def scenario_names(scenarios: Sequence[Scenario]) -> list[str]:
    """A name for each: what differs between them but for the defence, or the whole setting where nothing does.

    The defence has a place of its own wherever scenarios are listed.
    """
    settings = [_settings(scenario) for scenario in scenarios]
    differing = [key for key in settings[0] if len({each[key] for each in settings}) > 1] if settings else []
    return [", ".join(each[key] for key in differing or ("model", "data", "batch", "client")) for each in settings]


def defense_name(scenario: Scenario) -> str:
    return " + ".join(scenario.defenses) or NO_DEFENSE


def decisive(scenario: Scenario) -> dict[str, object]:
    """Everything that tells a scenario from another."""
    return {**scenario.model_dump(mode="json", exclude=_ASIDE), "selection": selection(scenario)}


def _settings(scenario: Scenario) -> dict[str, str]:
    """A scenario in short words, without its defences."""
    return {
        "model": Path(scenario.model).name,
        "weights": f"weights {scenario.model_fingerprint[:8]}",
        "data": Path(scenario.data).name,
        "batch": batch_words(scenario),
        "client": str(scenario.client),
        "observed": f"sees {selection(scenario)}",
        "known": f"told {', '.join(scenario.known) or 'nothing'}",
    }


def batch_words(scenario: Scenario) -> str:
    """How many examples an update holds, and of how many clients."""
    size = "batch of unknown size" if scenario.batch_size is None else f"batch {scenario.batch_size}"
    return size if scenario.clients == 1 else f"{size} of each of {scenario.clients} clients"


def selection(scenario: Scenario) -> str:
    return ALL if scenario.observed is None else scenario.observed.selection


def _key(scenario: Scenario) -> str:
    return json.dumps(decisive(scenario), sort_keys=True)


def _attack_key(results: Results) -> str:
    return json.dumps([results.attack.name, results.attack.options], sort_keys=True, default=str)


def _different(trials: Sequence[Trial]) -> list[Trial]:
    """The same trial twice, as when a folder was copied, is one trial."""
    return list({(trial.seed, *trial.truth): trial for trial in trials}.values())
