"""Changes of the client that were not measured: each with the command that would, and no word on its effect."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from gradleak.attacks import ATTACKS
from gradleak.audits.modality import GIVEN
from gradleak.audits.results import Scenario
from gradleak.audits.spec import AuditSpec
from gradleak.models.lora_text import LoraSettings
from gradleak.updates.client_rule import ADAMW_DECAY, HALF, ClientRule
from gradleak.verdict.attempts import Attempt, Group, selection
from gradleak.verdict.model import ScenarioVerdict
from gradleak.verdict.rule import ENOUGH_TRIALS, LEAKS
from gradleak.verdict.settings import Setting, changed_setting, setting_words, strength

# How many times more of it a change takes; of a rank so many times less.
MORE, MORE_DECAY, MOST_DECAY = 4, 10, 1.0


def untried_changes(
    group: Group, verdict: ScenarioVerdict, others: Sequence[tuple[Group, ScenarioVerdict]]
) -> list[str]:
    """One line per change that no other scenario of the folder has, if this one leaks and can be run again."""
    scenario = group.scenario
    if verdict.level not in LEAKS or not _can_be_run(scenario):
        return []
    attempt = next(each for each in group.attempts if each.attack == verdict.strongest)
    measured = [
        other.scenario for other, tried in others if verdict.strongest in {each.attack for each in tried.attacks}
    ]
    lines = [
        f"Not measured: {setting_words(setting, changed)}. Try: {_command(changed, attempt)}"
        for setting, changed in _changes(scenario)
        if not any(_goes_further(setting, scenario, other) for other in measured)
    ]
    if lines and scenario.recorded:
        lines.insert(0, f"To compare with, the client as it is on built-in texts: {_command(scenario, attempt)}")
    return lines


def _can_be_run(scenario: Scenario) -> bool:
    """Whether a command can name the model, the data and the size of the batch."""
    return scenario.modality == "text" and scenario.data != GIVEN and scenario.batch_size is not None


def _goes_further(setting: Setting, ours: Scenario, theirs: Scenario) -> bool:
    return changed_setting(ours, theirs) == setting and strength(setting, theirs) > strength(setting, ours)


def _changes(scenario: Scenario) -> Iterator[tuple[Setting, Scenario]]:
    """The scenario with more steps, larger batches, more clients, more decay, a lower rank, or bf16 on the wire."""
    rule, size = scenario.client, scenario.batch_size or 1

    def changed(**settings: Any) -> Scenario:
        return scenario.model_copy(update=settings)

    def with_rule(**settings: Any) -> ClientRule:
        return ClientRule.model_validate({**rule.model_dump(), **settings})

    if rule.local:
        longer = {"epochs": MORE * rule.epochs} if rule.steps is None else {"steps": MORE * rule.steps}
        yield "steps", changed(client=with_rule(**longer))
        yield "batch", changed(client=with_rule(batch=MORE * rule.batch), batch_size=MORE * size)
        if (decay := MORE_DECAY * (rule.wd or ADAMW_DECAY)) <= MOST_DECAY:
            yield "decay", changed(client=with_rule(wd=decay))
    else:
        yield "batch", changed(batch_size=MORE * size)
    if not scenario.recorded:
        yield "clients", changed(clients=MORE * scenario.clients)
    if scenario.lora is not None and (lora := LoraSettings.parse(scenario.lora)).r > 1:
        rank = max(1, lora.r // MORE)
        # Alpha goes with the rank, so that the adapters count as much as before.
        smaller = lora.model_copy(update={"r": rank, "alpha": lora.strength * rank / lora.r})
        yield "rank", changed(lora=str(smaller))
    if rule.wire not in HALF:
        yield "wire", changed(client=with_rule(wire="bf16"))


def _command(scenario: Scenario, attempt: Attempt) -> str:
    """The audit of a scenario by the same attack; a recorded update's texts are replaced by built-in ones."""
    settings = {
        "model": scenario.model,
        "task": scenario.task,
        "lora": scenario.lora,
        "data": None if scenario.recorded else scenario.data,
        **scenario.taken_as,
        "batch_size": scenario.batch_size,
        "aggregate": scenario.clients if scenario.clients > 1 else None,
        "client": str(scenario.client),
        "observe": None if scenario.recorded else selection(scenario),
        "known": tuple(scenario.known),
        "attack": attempt.info.name,
        "trials": max(ENOUGH_TRIALS, scenario.trials),
        "seed": scenario.seed,
    }
    words = ["gradleak", "audit"]
    for name, value in settings.items():
        if value is not None and value != AuditSpec.model_fields[name].default:
            words += [f"--{name.replace('_', '-')}", ",".join(value) if isinstance(value, tuple) else str(value)]
    words += [word for defense in scenario.defenses for word in ("--defense", defense)]
    words += [word for name, value in _options(attempt).items() for word in ("-o", f"{name}={value}")]
    return shlex.join(words)


def _options(attempt: Attempt) -> dict[str, str]:
    """The options that are not the attack's own defaults, as the command line takes them."""
    name, given = attempt.info.name, attempt.info.options
    # A class of the user's own is not imported for this; its options are all given.
    usual = ATTACKS.get(name).Options().model_dump() if name in ATTACKS.names() else {}
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in given.items()
        if value != usual.get(key) and isinstance(value, str | int | float)
    }
