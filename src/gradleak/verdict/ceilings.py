"""Beside what attacks read under differential privacy: what any attacker can read at most."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from gradleak.audits.results import Scenario
from gradleak.core.text import counted
from gradleak.defenses import known_defenses
from gradleak.defenses.base import Promise
from gradleak.defenses.ceiling import VACUOUS, one_round, whole_training
from gradleak.scoring.interval import share_interval
from gradleak.updates.client_rule import ClientRule
from gradleak.verdict.model import AttackVerdict, Ceiling

# The chance of a blind guess of somebody who does not have the data. Who has it guesses one row of all.
STRANGER = 1e-6


def judge_ceilings(scenario: Scenario) -> list[Ceiling]:
    """The ceilings of an update and of the whole training, for attackers who know more and less beforehand.

    Empty without differential privacy, and where the size of the batch is not known.
    """
    if scenario.batch_size is None:
        return []
    guesses = [1 / scenario.data_rows] if scenario.data_rows > 1 and not scenario.recorded else []
    client, sentences = scenario.client, scenario.batch_size
    return ceilings_of(scenario.defenses, client, sentences, scenario.clients, (*guesses, STRANGER))


def ceilings_of(
    defenses: Sequence[str], client: ClientRule, batch_size: int, clients: int, guesses: Sequence[float]
) -> list[Ceiling]:
    """What attackers with these chances of a blind guess can achieve at most; empty without differential privacy."""
    promises = [each.promise() for each in known_defenses(defenses) if each is not None]
    promise = next((each for each in promises if each is not None), None)
    if promise is None:
        return []
    times = 1 if promise.whole else client.times_seen(batch_size)
    # Every client adds noise of its own, and a sentence is with one of them.
    noise = promise.noise * math.sqrt(clients)
    return [each for guess in guesses for each in _of_guess(promise, guess, noise, times)]


def _of_guess(promise: Promise, guess: float, noise: float, times: int) -> list[Ceiling]:
    found = [Ceiling(scope="update", guess=guess, success=one_round(guess, noise, times), times=times)]
    if promise.training is not None:
        together, updates = promise.training
        found.append(Ceiling(scope="training", guess=guess, success=one_round(guess, together), times=updates))
    elif promise.sample_rate is not None and promise.steps is not None:
        success = whole_training(guess, promise.noise, promise.sample_rate, promise.steps)
        found.append(Ceiling(scope="training", guess=guess, success=success, times=promise.steps))
    return found


def ceiling_lines(ceilings: Sequence[Ceiling], attack: AttackVerdict) -> list[str]:
    """The ceilings in words, a line for each attacker, and whether what was measured keeps below them."""
    by_guess: dict[float, list[Ceiling]] = defaultdict(list)
    for each in ceilings:
        by_guess[each.guess].append(each)
    lines = [_words(guess, own, attack.scale.noun) for guess, own in by_guess.items()]
    highest = max((each.success for each in ceilings if each.scope == "update"), default=1.0)
    read = share_interval(attack.leaked.whole, max(1, attack.leaked.sentences))
    if ceilings and read.low > 100 * highest:
        lines.append(
            f"More came back whole ({read} %) than differential privacy allows ({100 * highest:.2g} %): its "
            "implementation is broken, unless texts occur more than once. `gradleak dp-check` looks closer."
        )
    return lines


def _words(guess: float, ceilings: Sequence[Ceiling], noun: str) -> str:
    rows = f"{round(1 / guess):,}"
    who = (
        f"whose blind guess is right once in {rows}" if guess == STRANGER else f"who has all {rows} rows of the data"
    )
    seen = ", and ".join(_chance(each) for each in ceilings)
    return f"Ceiling by differential privacy: whatever is tried, an attacker {who} names a {noun} right {seen}."


def _chance(ceiling: Ceiling) -> str:
    chance = f"{100 * ceiling.success:.2g} %" if ceiling.success < 0.995 else "more than 99 %"
    vacuous = ", which excludes next to nothing," if ceiling.success > VACUOUS else ""
    seen = (
        "from this update, if told that it was in"
        if ceiling.scope == "update"
        else f"from all {counted(ceiling.times, 'update')} of the training, if not told that"
    )
    return f"with a chance of {chance} at most{vacuous} {seen}"
