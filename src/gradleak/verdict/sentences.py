"""A verdict in sentences, the same in the terminal and on the page. None of them says that something is safe."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.core.text import counted, enumerated
from gradleak.scoring.pieces import Count
from gradleak.verdict.candidates import candidate_lines, confirmed_words
from gradleak.verdict.ceilings import ceiling_lines
from gradleak.verdict.model import LEVELS, AttackVerdict, CandidatesVerdict, Level, ScenarioVerdict
from gradleak.verdict.rule import ENOUGH_TRIALS, LEAKS, confirms, read_level, sentence_level

CAVEAT = (
    "A verdict says what was tried and what it read back. Another attack, more steps or other data may read more: "
    "there is no level that says nothing can be read."
)

# What each level means, in one sentence.
LEVEL_WORDS: dict[Level, str] = {
    "critical": "Whole examples were read back from updates, far more often than by guessing.",
    "high": "Much of the private data was read back from updates, or nearly all of its tokens.",
    "moderate": "Clearly more was read back from updates, or confirmed, than by guessing.",
    "unfinished": "An attack was cut short or has no result: nothing is shown either way.",
    "unclear": "Too few trials, or too wide an interval: a leak worth knowing could hide in it.",
    "not shown": "The attacks ran to their end and read no more than guessing. Others may read more.",
}

_NAMES = {
    "spacy": "names as spaCy finds them",
    "nothing": "the texts have no capitals",
    "capitals": "names are capitalised words inside a sentence, since spaCy is not installed",
}


def headline(
    level: Level,
    best: AttackVerdict,
    attacks: Sequence[AttackVerdict],
    missing: int = 0,
    candidates: CandidatesVerdict | None = None,
) -> str:
    """One sentence: the level and the numbers it rests on."""
    scale = best.scale
    score = f"{scale.labelled(best.leak)}, guessing without the update {scale.format(best.control)}"
    named = most_tokens(attacks)
    if confirms(candidates) and read_level(attacks, missing) not in LEAKS:
        cut = _cut(attacks, missing)
        until = f", with {cut}" if cut else ""
        return (
            f"{level.capitalize()}: no sentence was read clearly better than by guessing{until} ({score}). But "
            f"{confirmed_words(candidates.confirmed)}."
        )
    if named is not None and LEVELS.index(level) < LEVELS.index(sentence_level(attacks, missing)):
        cut = _cut(attacks, missing)
        until = f", with {cut}: more time may read them" if cut else ""
        return (
            f"{level.capitalize()}: {_named(named)}; no sentence was read clearly better than by guessing{until} "
            f"({score})."
        )
    match level:
        case "critical":
            most = max(attacks, key=lambda attack: attack.whole.mean)
            by = "" if most == best else f" by {best.attack}"
            return f"Critical: {most.attack} read back {_whole(most)} ({score}{by})."
        case "high":
            return f"High: {best.attack} read back much of the {scale.content}, {_whole(best)} ({score})."
        case "moderate":
            return f"Moderate: {best.attack} clearly read more than guessing does, but {_whole(best)} ({score})."
        case "unfinished":
            return (
                f"Unfinished: {_cut(attacks, missing)}; what was read until then is not clearly above guessing "
                f"({score}). That shows no absence of a leak: give it more time."
            )
        case "unclear":
            return (
                f"Unclear: the strongest attack, {best.attack}, is not clearly above guessing ({score}), but "
                f"{_rough(attacks)}: more trials would tell."
            )
    tried = enumerated([f"{attack.attack} ({counted(attack.trials, 'trial')})" for attack in attacks])
    return f"No leak shown by {tried}: run to the end, none of it read clearly more than guessing ({score})."


def leaked_words(attack: AttackVerdict) -> list[str]:
    """What came back, counted in sentences, names and numbers, or in images."""
    leaked = attack.leaked
    proved = f", {leaked.certified} of them with a proof in the update itself" if leaked.certified else ""
    lines = [f"{_count(attack)} came back {attack.scale.came_back}{proved}."]
    if leaked.pieces is not None:
        guessed = leaked.guessed
        names = _share("name", leaked.pieces.names, None if guessed is None else guessed.names)
        if leaked.pieces.names_by == "nothing":
            names = "names could not be looked for"
        numbers = _share("number", leaked.pieces.numbers, None if guessed is None else guessed.numbers)
        lines.append(f"{names}; {numbers} ({_NAMES[leaked.pieces.names_by]}; numbers by pattern).")
    return [line[0].upper() + line[1:] for line in lines]


def token_words(attacks: Sequence[AttackVerdict]) -> list[str]:
    """What the tokens give away, of the attack that named them best; nothing if none looks for them."""
    attack = most_tokens(attacks)
    if attack is None or attack.tokens is None:
        return []
    named, guessed = attack.tokens.named, attack.tokens.guessed
    lines = [f"Tokens, {attack.tokens.level}: {_named(attack)}."]
    if named is not None:
        words, names, numbers = (
            _hit(noun, count, None if guessed is None else of(guessed))
            for noun, count, of in (
                ("word", named.words, lambda other: other.words),
                ("name", named.pieces.names, lambda other: other.pieces.names),
                ("number", named.pieces.numbers, lambda other: other.pieces.numbers),
            )
        )
        lines.append(f"Among the tokens it named are all of {words}, {names} and {numbers}; not their order.")
    return lines


def scenario_words(scenario: ScenarioVerdict) -> list[str]:
    """What came back of a scenario, the tokens of the attack that named them best, and what candidates add."""
    candidates = [] if scenario.candidates is None else candidate_lines(scenario.candidates.confirmed)
    return [
        *leaked_words(strongest_of(scenario)),
        *token_words(scenario.attacks),
        *candidates,
        *ceiling_lines(scenario.ceilings, strongest_of(scenario)),
        *scenario.not_tried,
    ]


def most_tokens(attacks: Sequence[AttackVerdict]) -> AttackVerdict | None:
    """The attack that named the tokens best."""
    named = [(attack.tokens, attack) for attack in attacks if attack.tokens is not None]
    order = {name: number for number, name in enumerate(LEVELS)}
    best = min(named, key=lambda each: (order[each[0].level], -each[0].recall.mean), default=None)
    return None if best is None else best[1]


def _named(attack: AttackVerdict) -> str:
    """How many of the tokens it named, how many of those were there, and what guessing would name."""
    tokens = attack.tokens
    assert tokens is not None
    common = tokens.control_recall
    guess = "" if common is None else f" (as many of the commonest tokens: {common.mean:.0f} %)"
    right = f"{tokens.precision.mean:.0f} % of those it named were there"
    return f"{attack.attack} named {tokens.recall} % of the batch's tokens{guess}, and {right}"


def _hit(noun: str, count: Count, guessed: Count | None) -> str:
    if not count.total:
        return f"no {noun}, as none was found in the texts"
    beside = "" if guessed is None else f" (guessing: {guessed.found})"
    return f"{count.found} of {counted(count.total, noun)}{beside}"


def obstacle_words(attack: AttackVerdict) -> list[str]:
    """Why an attack did not read more, a line an obstacle."""
    return [
        f"{obstacle.text} ({obstacle.trials} of {counted(attack.trials, 'trial')})" for obstacle in attack.obstacles
    ]


def attack_words(attack: AttackVerdict) -> str:
    """One attack's score beside its control."""
    cut = f", {attack.unfinished} of them cut short" if attack.unfinished else ""
    named = f"{attack.tokens.recall} % of the tokens, " if attack.tokens is not None else ""
    return (
        f"{attack.attack}: {attack.scale.labelled(attack.leak)} against {attack.scale.format(attack.control)} of "
        f"guessing, {named}{_whole(attack)}, {counted(attack.trials, 'trial')}{cut}"
    )


def strongest_of(verdict: ScenarioVerdict) -> AttackVerdict:
    return next(attack for attack in verdict.attacks if attack.attack == verdict.strongest)


def _whole(attack: AttackVerdict) -> str:
    return f"{_count(attack)} {attack.scale.came_back}"


def _count(attack: AttackVerdict) -> str:
    return f"{attack.leaked.whole} of {counted(attack.leaked.sentences, attack.scale.noun)}"


def _share(noun: str, count: Count, guessed: Count | None) -> str:
    """How many came back, and how many guessing would have hit of as many."""
    if not count.total:
        return f"no {noun} was found in the texts"
    came_back = f"{count.found} of {counted(count.total, noun)} came back"
    if guessed is None or not guessed.total:
        return came_back
    hits = f"{count.total * guessed.found / guessed.total:.1f}" if guessed.found else "none"
    return f"{came_back} where guessing hits {hits}"


def _cut(attacks: Sequence[AttackVerdict], missing: int) -> str:
    """What did not run to its end."""
    cut = sum(attack.unfinished for attack in attacks)
    parts = [f"{cut} of {counted(sum(attack.trials for attack in attacks), 'trial')} cut short"] if cut else []
    parts += [f"{counted(missing, 'planned attempt')} without a result"] if missing else []
    return enumerated(parts)


def _rough(attacks: Sequence[AttackVerdict]) -> str:
    few = min(attack.trials for attack in attacks)
    if few < ENOUGH_TRIALS:
        return (
            f"{counted(few, 'trial')} can hide much (at least {ENOUGH_TRIALS} are needed to say that none was shown)"
        )
    scale = attacks[0].scale
    return f"its interval still reaches a leak of {scale.near:.0f} {scale.unit} or more"
