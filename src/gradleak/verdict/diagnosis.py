"""Why an attack did not read more: from facts that the audit recorded, never from the wording of a note.

The attack says what it met (a spectrum without a gap); the audit knows what lies behind it (how many tokens there
were, how much noise was added). Only both together tell the cause.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain

from gradleak.attacks.evidence.departures import hiding_defenses
from gradleak.attacks.reasons import Reason
from gradleak.audits.results import Scenario, Trial
from gradleak.defenses import known_defenses
from gradleak.updates.client_words import half_precision, optimiser
from gradleak.verdict.attempts import Attempt
from gradleak.verdict.model import Obstacle, ObstacleKind

# Below this distance the true batch explains an update up to rounding.
EXPLAINED = 1e-4
MISSING = {
    "matrix-missing", "words-missing", "upper-missing", "last-missing", "first-missing", "nothing-to-match",
    "too-little-seen",
}  # fmt: skip
# An attack that says one of these met a spectrum or rows in which it could tell nothing.
DROWNED = {"no-gap", "rows-drowned", "first-drowned", "prefixes-overflow", "zero"}

Fact = tuple[ObstacleKind, dict[str, float]]


def diagnose(attempt: Attempt) -> list[Obstacle]:
    """The obstacles of all trials that were not read whole, the most frequent first."""
    met: dict[ObstacleKind, list[dict[str, float]]] = defaultdict(list)
    for trial in attempt.trials:
        if not read_whole(trial, attempt.scenario):
            for kind, numbers in dict(_facts(trial, attempt.scenario)).items():
                met[kind].append(numbers)
    obstacles = [_obstacle(kind, each, attempt) for kind, each in met.items()]
    return sorted(obstacles, key=lambda obstacle: -obstacle.trials)


def read_whole(trial: Trial, scenario: Scenario) -> bool:
    """Whether every sentence came back token by token, or every image close."""
    return trial.scores[scenario.scale.whole] == 100


def noise_ratio(trial: Trial) -> float | None:
    """How large the noise of the defences is against the signal; None where there is none or it was not measured."""
    return trial.noise / trial.signal if trial.noise and trial.signal else None


def _facts(trial: Trial, scenario: Scenario) -> list[Fact]:
    """Everything that stood in the way of one trial."""
    reasons = trial.reconstruction.reasons
    if not scenario.scale.causes_recorded:
        return list(_of_the_run(trial, reasons))
    unknown: list[Fact] = [("tokens-unknown", {"tokens": trial.lost})] if trial.lost else []
    if unknown and sum(pair.lost for pair in trial.pairs) == trial.lost:
        return unknown  # the rest was read
    facts = [*_of_the_run(trial, reasons), *_of_the_update(trial, scenario, reasons)]
    if not facts and "bag" in trial.reconstruction.found and not trial.reconstruction.sentences:
        facts = [("tokens-only", {})]
    return [*(facts or _of_the_search(trial, reasons)), *unknown]


def _of_the_search(trial: Trial, reasons: list[Reason]) -> list[Fact]:
    """Where nothing of the run and of the update stood in the way."""
    limits = [reason.numbers["limit"] for reason in reasons if reason.kind == "no-gap"]
    if not limits:
        return [("search", {})]
    return [("no-gap", {} if trial.tokens is None else {"tokens": trial.tokens, "limit": min(limits)})]


def _of_the_run(trial: Trial, reasons: list[Reason]) -> Iterator[Fact]:
    """The budget, and what the threat model did not show or tell."""
    kinds = {reason.kind for reason in reasons}
    if trial.status != "completed":
        yield "budget", {}
    if kinds & MISSING:
        yield "tensors-missing", {}
    if "size-unknown" in kinds:
        yield "not-told", {}


def _of_the_update(trial: Trial, scenario: Scenario, reasons: list[Reason]) -> Iterator[Fact]:
    """What the batch, the client and the defences made of the gradient."""
    limits = [reason.numbers["limit"] for reason in reasons if reason.kind == "no-gap"]
    beyond = bool(limits) and trial.tokens is not None and trial.tokens >= min(limits)
    if beyond:
        yield "rank-limit", {"tokens": trial.tokens or 0, "limit": min(limits)}
    drowned = any(reason.kind in DROWNED for reason in reasons)
    unexplained = trial.truth_distance is not None and trial.truth_distance > EXPLAINED
    covered = unexplained or (drowned and not beyond)
    ratio = noise_ratio(trial)
    if ratio is not None and (drowned or ratio > 1):
        yield "noise", {"ratio": ratio}
    hiding = hiding_defenses(scenario.defenses)
    coarse = any(defense is not None and defense.lossy for defense in known_defenses(hiding))
    coarse = coarse or bool(half_precision(scenario.client))
    if coarse and (drowned or unexplained):
        yield "coarse-values", {}
    elif hiding and covered and ratio is None:
        yield "defended", {}
    # Nobody knows it where the labels of a truth are not told.
    distance = {} if trial.truth_distance is None else {"distance": trial.truth_distance}
    if covered and scenario.client.mode == "train":
        yield "dropout", distance
    if covered and scenario.client.local:
        # With dropout, noise or rounding on top, the distance does not say how much of it local steps make.
        alone = scenario.client.mode == "eval" and not hiding
        steps = scenario.client.count_steps(scenario.batch_size or 1)
        yield "local-steps", {"steps": steps, **(distance if alone else {})}


def _obstacle(kind: ObstacleKind, each: list[dict[str, float]], attempt: Attempt) -> Obstacle:
    told = {name: [met[name] for met in each if name in met] for name in dict.fromkeys(chain.from_iterable(each))}
    numbers = {name: sum(values) / len(values) for name, values in told.items()}
    return Obstacle(kind=kind, trials=len(each), numbers=numbers, text=_words(kind, numbers, attempt))


def _words(kind: ObstacleKind, numbers: dict[str, float], attempt: Attempt) -> str:
    match kind:
        case "budget":
            return "the time limit or an interruption ended it: what it would have read with more time is not known"
        case "tensors-missing":
            return f"tensors are missing: {_missing(attempt)}"
        case "not-told":
            return "matching needs the batch size, and this threat model does not give it"
        case "rank-limit":
            return (
                f"the rank limit is passed: the batch has {numbers['tokens']:.0f} tokens, and the matrices that "
                f"exact recovery reads have a rank of {numbers['limit']:.0f} at most"
            )
        case "noise":
            against = "above" if numbers["ratio"] > 1 else "below, but large enough to hide what is exact"
            return f"noise of {_rounded(numbers['ratio'])} times the signal's norm, {against}" + (
                " the signal" if numbers["ratio"] > 1 else ""
            )
        case "coarse-values":
            causes = [*half_precision(attempt.scenario.client), *attempt.scenario.defenses]
            return f"values were rounded or set to zero ({' + '.join(causes)})"
        case "dropout":
            if "distance" not in numbers:
                return "dropout, of which the attacker does not see what it set to zero"
            return (
                "dropout: even the true batch explains the update only up to a cosine distance of "
                f"{numbers['distance']:.2g}"
            )
        case "local-steps":
            rule = attempt.scenario.client
            one = f"step of {optimiser(rule)}" if rule.adaptive or rule.momentum else "local step"
            several = one.replace("step", "steps", 1)
            many = f"too many {several}" if numbers["steps"] > 1 else f"a {one} sent as rounded weights"
            steps = f"{many} ({numbers['steps']:.0f})"
            if "distance" not in numbers:
                return f"{steps}, beside what else changed the update"
            return (
                f"{steps}: as one gradient, even the true batch explains the update only up to a cosine distance of "
                f"{numbers['distance']:.2g}"
            )
        case "tokens-unknown":
            return (
                f"the tokenizer does not know all tokens of the texts (about {numbers['tokens']:.2g} of a trial): "
                "what was written there is in no update"
            )
        case "tokens-only":
            return "it looks for tokens, not for sentences, or had too few of them to write any"
        case "defended":
            return f"defences changed the update ({' + '.join(hiding_defenses(attempt.scenario.defenses))})"
        case "no-gap" if numbers:
            return (
                f"the spectra show no rank, though {numbers['tokens']:.0f} tokens are below their limit of "
                f"{numbers['limit']:.0f}: something that was not recorded covers them"
            )
        case "no-gap":
            return "the spectra show no rank: the batch is too large for them, or noise covers them"
    return "nothing known stood in the way: the search did not find them, and a longer or better one may"


def _rounded(ratio: float) -> str:
    """Two digits, written out.

    >>> _rounded(512.3), _rounded(2.51), _rounded(0.0123)
    ('510', '2.5', '0.012')
    """
    return f"{float(f'{ratio:.2g}'):,.10g}"


def _missing(attempt: Attempt) -> str:
    """What was not sent, or that too little was."""
    reasons = [reason for trial in attempt.trials for reason in trial.reconstruction.reasons]
    names = list(dict.fromkeys(reason.about for reason in reasons if reason.kind == "matrix-missing"))
    if names:
        return f"the gradient of {names[0]} was not seen"
    little = next((reason for reason in reasons if reason.kind == "too-little-seen"), None)
    if little is not None:
        return (
            f"about {little.numbers['told']:,.0f} independent numbers for {little.numbers['unknown']:,.0f} unknowns"
        )
    return next(reason.text for reason in reasons if reason.kind in MISSING)
