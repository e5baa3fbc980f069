"""A result put into words: the threat model and the caveats, the same in the terminal and on the page."""

from __future__ import annotations

import re
from collections import Counter

from gradleak.audits.results import Results, Scenario
from gradleak.audits.threats import threat_words
from gradleak.core.text import counted, enumerated
from gradleak.defenses import known_defenses
from gradleak.models.tasks import TASKS, UNLABELLED, Modality, TargetTask
from gradleak.scoring.scale import SCALES
from gradleak.updates.client_words import half_precision, optimiser
from gradleak.verdict.clients import client_words
from gradleak.verdict.diagnosis import EXPLAINED

# A number in a note, but not one in the name of a tensor.
_NUMBER = re.compile(r"(?<![\w.])\d[\d.,e+-]*")

_GRANTED = {
    "batch_size": "how many sentences the batch has",
    "labels": "their labels",
    "lengths": "their lengths in tokens",
}
_UNLABELLED = {name: what for name, what in _GRANTED.items() if name != "labels"}
_GRANTED_OF: dict[TargetTask, dict[str, str]] = {
    **{task: _UNLABELLED if task in UNLABELLED else _GRANTED for task in TASKS},
    "image-classification": {"batch_size": "how many images the batch has", "labels": "their labels"},
}
# The metric that is 100 where an example came back without a mistake.
_EQUAL: dict[Modality, str] = {"text": "exact_match", "images": "psnr"}
_HELD: dict[Modality, str] = {"text": "its weights and its tokenizer", "images": "its weights"}


def threat_model(scenario: Scenario) -> list[str]:
    """What the attacker holds, in sentences, and what is to be known of the model."""
    granted = _GRANTED | _GRANTED_OF[scenario.task]
    given = [what for name, what in granted.items() if name in scenario.known]
    hidden = [what for name, what in _GRANTED_OF[scenario.task].items() if name not in scenario.known]
    sentences = [
        f"The attacker sees {_seen(scenario)} and knows the global model, {_held(scenario)} "
        "(an honest-but-curious server).",
        f"{client_words(scenario)}, {_defended(scenario.defenses)}.",
        f"The attacker is told {enumerated(given)}." if given else "The attacker is told nothing else.",
    ]
    if scenario.observed is not None and scenario.observed.parameters < scenario.parameters:
        sentences.insert(2, scenario.observed.sentence)
    sentences += [
        f"{defense.name} guarantees {guarantee}, if the whole training was done so."
        for defense in known_defenses(scenario.defenses)
        if defense is not None and (guarantee := defense.guarantee()) is not None
    ]
    if hidden:
        sentences.append(f"The attacker must find out {enumerated(hidden)}.")
    named = [] if scenario.threat is None else [threat_words(scenario.threat)]
    return [*named, *sentences, *scenario.notes]


def _seen(scenario: Scenario) -> str:
    if scenario.clients == 1:
        return "one client's update"
    return f"the mean of {scenario.clients} clients' updates, and none of them alone,"


def _held(scenario: Scenario) -> str:
    """What the attacker has beside the update."""
    more = f", and {scenario.auxiliary:,} images of the same kind" if scenario.auxiliary else ""
    return _HELD[scenario.modality] + more


def _defended(defenses: list[str]) -> str:
    return f"defended by {enumerated(defenses)}" if defenses else "with no defence"


# What rounding may leave unexplained.
ALL_BUT = 1e-4


def remarks(results: Results) -> list[str]:
    """What else was measured: labels and lengths that had to be found, and what even the truth does not explain."""
    if not results.scored:
        return _unchecked(results)
    inferred = [f"{name} {interval.mean:.0f} %" for name, interval in results.found.items()]
    lines = [f"The attack had to find, and found right: {enumerated(inferred)}."] if inferred else []
    lines += _certified(results) + _explained(results) + _notes(results)
    distances = [trial.truth_distance for trial in results.trials if trial.truth_distance is not None]
    apart = sum(distances) / max(1, len(distances))
    if apart > EXPLAINED:
        lines.append(
            f"Even the true batch explains these updates only up to a cosine distance of {apart:.3f} (0 for a plain "
            f"gradient): {enumerated(_obstacles(results.scenario, apart))} cost the attacker that much."
            f"{_other_causes(results.scenario, apart)}"
        )
    return lines


def _unchecked(results: Results) -> list[str]:
    """Labels and lengths that no truth confirms."""
    answers = [trial.reconstruction for trial in results.trials]
    found = [
        f"{name} {', '.join(map(str, values))}"
        for answer in answers
        for name, values in (("labels", answer.labels), ("lengths", answer.lengths))
        if name in answer.found and values
    ]
    unchecked = [f"Found by the attack, and not compared with a truth: {enumerated(found)}."] if found else []
    return unchecked + _explained(results)


def explained_words(share: float) -> str:
    """How much of an update its answer explains. What is nearly all is not called all.

    >>> explained_words(0.999999), explained_words(0.996), explained_words(0.5), explained_words(0.0)
    ('all', 'more than 99 %', '50 %', 'nothing')
    """
    if share > 1 - ALL_BUT:
        return "all"
    if share > 0.99:
        return "more than 99 %"
    return f"{100 * share:.0f} %" if share >= 0.005 else "nothing"


def _explained(results: Results) -> list[str]:
    """How much of the updates is accounted for by what was read back, right or wrong."""
    shares = [trial.reconstruction.explained for trial in results.trials]
    known = [share for share in shares if share is not None]
    if not known:
        return []
    mean, worst = sum(known) / len(known), min(known)
    least = f" (the least of {counted(len(known), 'update')}: {explained_words(worst)})" if len(known) > 1 else ""
    if worst > 1 - ALL_BUT:
        return [f"What was read back explains all of the {'updates' if len(known) > 1 else 'update'}, to rounding."]
    return [
        f"What was read back explains {explained_words(mean)} of the update{least}, beyond what random words "
        "do. The rest is other sentences, wrong words, noise, or local steps that were not followed."
    ]


def _certified(results: Results) -> list[str]:
    """How many sentences or images the updates prove, and whether the proofs were right."""
    modality, pairs = results.scenario.modality, [pair for trial in results.trials for pair in trial.pairs]
    answers = [trial.reconstruction for trial in results.trials]
    proved = sum(len(a.certified_images) + sum(s.certified for s in a.sentences) for a in answers)
    if not proved:
        return []
    right = sum(pair.certified and pair.scores[_EQUAL[modality]] == 100 for pair in pairs)
    lost = sum(pair.certified and pair.lost > 0 for pair in pairs)
    held = f"; {lost} {'holds' if lost == 1 else 'hold'} tokens that the tokenizer does not know"
    uncovered = f"{held}, and what was written there is not covered" if lost else ""
    return [
        f"{proved} of {counted(len(pairs), SCALES[modality].noun)} carry a certificate: the update itself proves "
        f"that they were in the batch. Compared with the truth, {right} of these {proved} are exactly "
        f"right{uncovered}."
    ]


def certified_mark(lost: int) -> str:
    """What a certificate is shown as: it covers all but the tokens that the tokenizer does not know.

    >>> certified_mark(0), certified_mark(2)
    ('certified', 'certified but for 2 unknown tokens')
    """
    return f"certified but for {counted(lost, 'unknown token')}" if lost else "certified"


def _notes(results: Results) -> list[str]:
    """What the attack could not do, each reason once with how often it was met; numbers are those of the first."""
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for trial in results.trials:
        alike = {_NUMBER.sub("#", note): note for note in reversed(trial.reconstruction.notes)}
        first = alike | first
        counts.update(reversed(alike))
    return [
        f"{first[key][0].upper()}{first[key][1:]} ({counted(times, 'trial')})."
        for key, times in counts.most_common(5)
    ]


# Above it neither rounding nor a few local steps are likely to be all.
FAR_APART = 0.05


def _other_causes(scenario: Scenario, apart: float) -> str:
    """What a manifest written elsewhere may have left out, where even the truth is far from its update."""
    if not scenario.recorded or apart < FAR_APART:
        return ""
    unsaid = ["the model has to be the one before that training"]
    if scenario.client.mode == "eval":
        unsaid.append("dropout, if the training had it on (model.train()), belongs into the manifest as mode=train")
    return f" If that is more than you expect: {enumerated(unsaid)}."


def _obstacles(scenario: Scenario, apart: float) -> list[str]:
    causes = ["dropout"] if scenario.client.mode == "train" else []
    rule = scenario.client
    steps = f"{optimiser(rule)}'s steps" if rule.adaptive else "local steps"
    causes += [f"{steps} and the rounding of weights"] if rule.local else []
    causes += [f"numbers {how}" for how in half_precision(rule)]
    causes += scenario.defenses
    return causes or ["rounding" if apart < FAR_APART else "something that is not declared"]


def status_note(results: Results) -> str | None:
    """What to say when the attack did not run to its end."""
    begun, asked = len(results.trials), results.scenario.trials
    left = f" {begun} of {asked} trials were begun." if begun < asked else ""
    if results.status == "interrupted":
        return f"The attack was interrupted: these are its best answers so far.{left}"
    if results.status == "budget-exhausted":
        return f"The attack ran out of its time budget: these are its best answers so far.{left}"
    return None
