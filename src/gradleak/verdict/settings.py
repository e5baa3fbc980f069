"""In which one setting of the client or its defences two scenarios differ."""

from __future__ import annotations

from typing import Literal

from gradleak.audits.results import Scenario
from gradleak.models.lora_text import LoraSettings
from gradleak.updates.client_rule import HALF, ClientRule
from gradleak.verdict.attempts import decisive

# What whoever runs the training chooses: defences, sentences of a batch, local steps, decay, precision of what is
# sent, rank of adapters, clients that are aggregated; and a client that differs in other or more settings.
Setting = Literal["defenses", "batch", "steps", "decay", "wire", "rank", "clients", "client"]

_OF_RULES: dict[str, Setting] = {"steps": "steps", "epochs": "steps", "wd": "decay", "wire": "wire"}
# Of other ranks the weights are others too.
_WITH_THE_RANK = {"model_fingerprint", "parameters"}


def changed_setting(ours: Scenario, theirs: Scenario) -> Setting | None:
    """The one setting that differs; None if more do, or one that nobody chooses."""
    first, second = decisive(ours), decisive(theirs)
    differ = {key for key in first if first[key] != second[key]}
    if "model_fingerprint" in differ and differ <= _WITH_THE_RANK and _other_rank(ours, theirs):
        return "rank"
    if differ == {"defenses"}:
        return "defenses"
    if differ == {"clients"}:
        return "clients"
    rules = _rule_settings(ours.client, theirs.client)
    if "batch_size" in differ and differ <= {"batch_size", "client"} and rules <= {"batch"}:
        return "batch"
    if differ != {"client"}:
        return None
    kinds = {_OF_RULES.get(name) for name in rules}
    return next(iter(kinds)) or "client" if len(kinds) == 1 else "client"


def strength(setting: Setting, scenario: Scenario) -> float:
    """How far a scenario goes in a setting of the client, in the direction in which attacks may read less."""
    rule = scenario.client
    match setting:
        case "batch":
            return scenario.batch_size or 0
        case "clients":
            return scenario.clients
        case "steps":
            return rule.count_steps(scenario.batch_size or 1)
        case "decay":
            return rule.wd
        case "wire":
            return rule.wire in HALF
        case "rank":
            return 0 if scenario.lora is None else -LoraSettings.parse(scenario.lora).r
    return 0


def setting_words(setting: Setting, scenario: Scenario) -> str:
    """What this scenario has there, in words."""
    rule = scenario.client
    match setting:
        case "defenses":
            return " + ".join(scenario.defenses)
        case "batch":
            return f"batches of {scenario.batch_size}"
        case "clients":
            return f"secure aggregation of {scenario.clients} clients"
        case "steps":
            return f"{rule.count_steps(scenario.batch_size or 1)} local steps (client {rule})"
        case "decay":
            return f"weight decay of {rule.wd:g}"
        case "wire":
            return f"{rule.wire} on the wire"
        case "rank":
            assert scenario.lora is not None
            return f"adapters of rank {LoraSettings.parse(scenario.lora).r}"
    return f"client {rule}"


def _rule_settings(ours: ClientRule, theirs: ClientRule) -> set[str]:
    first, second = ours.model_dump(), theirs.model_dump()
    return {name for name in first if first[name] != second[name]}


def _other_rank(ours: Scenario, theirs: Scenario) -> bool:
    """Whether both have fresh adapters that differ in rank, and in no more than what goes with it."""
    if ours.lora is None or theirs.lora is None:
        return False
    first, second = (LoraSettings.parse(text).model_dump() for text in (ours.lora, theirs.lora))
    differ = {name for name in first if first[name] != second[name]}
    return "r" in differ and differ <= {"r", "alpha"}
