"""The client of a scenario in words: the rule it followed, and what attacks could undo of its optimiser."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.audits.results import Scenario, Trial
from gradleak.core.text import counted
from gradleak.updates.client_words import changes, optimiser, training


def client_words(scenario: Scenario) -> str:
    """How the client came to its update, without the end of the sentence."""
    rule, size = scenario.client, scenario.batch_size
    dropout = "with dropout on, which the attacker does not see" if rule.mode == "train" else "model in eval mode"
    if not rule.local:
        batch = "batch of a size that is not told" if size is None else f"batch of {size}"
        how = ", ".join(["FedSGD", batch, *changes(rule), dropout])
        return f"{_who(scenario)} shares the gradient of the mean loss over its batch ({how}){_of_adapters(scenario)}"
    example = scenario.scale.noun
    how = ", ".join([*training(rule, example), dropout])
    shared = f"{'its adapters' if scenario.adapters else 'its weights'} (FedAvg){_of_adapters(scenario)}"
    if size is None:
        trained = f"{_who(scenario)} trains by {optimiser(rule)} ({how}) and shares {shared}"
        return f"{trained}; on how many {example}s is not told"
    steps = counted(rule.count_steps(size), "step")
    trained = f"{_who(scenario)} trains on {counted(size, example)} by {steps} of {optimiser(rule)} ({how})"
    return f"{trained} and shares {shared}"


def client_lines(scenario: Scenario, trials: Sequence[Trial]) -> list[str]:
    """The same as a sentence, and a line for each thing that was undone or could not be; of the first trial."""
    undone = next((trial.reconstruction.undone for trial in trials if trial.reconstruction.undone), [])
    return [f"{client_words(scenario)}.", *(f"{line[0].upper()}{line[1:]}." for line in undone)]


def _who(scenario: Scenario) -> str:
    if scenario.clients == 1:
        return "The client"
    return f"Only the mean of {scenario.clients} clients' updates is seen (secure aggregation); each of them"


def _of_adapters(scenario: Scenario) -> str:
    return f", LoRA with {scenario.adapters}" if scenario.adapters else ""
