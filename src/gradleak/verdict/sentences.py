"""A verdict in sentences, the same in the terminal and on the page. None of them says that something is safe."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.core.text import counted, enumerated
from gradleak.scoring.pieces import Count
from gradleak.verdict.model import AttackVerdict, Level, ScenarioVerdict
from gradleak.verdict.rule import ENOUGH_TRIALS, clearly_leaks, names_tokens

CAVEAT = (
    "A verdict says what was tried and what it read back. Another attack, more steps or other data may read more: "
    "there is no level that says nothing can be read."
)

_NAMES = {
    "spacy": "names as spaCy finds them",
    "nothing": "the texts have no capitals",
    "capitals": "names are capitalised words inside a sentence, since spaCy is not installed",
}


def headline(level: Level, best: AttackVerdict, attacks: Sequence[AttackVerdict], missing: int = 0) -> str:
    """One sentence: the level and the numbers it rests on."""
    scale = best.scale
    score = f"{scale.labelled(best.leak)}, guessing without the update {scale.format(best.control)}"
    match level:
        case "critical":
            most = max(attacks, key=lambda attack: attack.whole.mean)
            by = "" if most == best else f" by {best.attack}"
            return f"Critical: {most.attack} read back {_whole(most)} ({score}{by})."
        case "high":
            return f"High: {best.attack} read back much of the {scale.content}, {_whole(best)} ({score})."
        case "moderate" if not any(map(clearly_leaks, attacks)):
            named = next(attack for attack in attacks if names_tokens(attack))
            assert named.tokens is not None
            return (
                f"Moderate: {named.attack} named {named.tokens} % of the batch's tokens, but no sentence was "
                f"read clearly better than by guessing ({score})."
            )
        case "moderate":
            return f"Moderate: {best.attack} clearly read more than guessing does, but {_whole(best)} ({score})."
        case "unfinished":
            return (
                f"Unfinished: {_cut(attacks, missing)}; what was read until then is not clearly above guessing "
                f"({score}). That shows nothing: give it more time."
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


def obstacle_words(attack: AttackVerdict) -> list[str]:
    """Why an attack did not read more, a line an obstacle."""
    return [
        f"{obstacle.text} ({obstacle.trials} of {counted(attack.trials, 'trial')})" for obstacle in attack.obstacles
    ]


def attack_words(attack: AttackVerdict) -> str:
    """One attack's score beside its control."""
    cut = f", {attack.unfinished} of them cut short" if attack.unfinished else ""
    named = f"{attack.tokens} % of the tokens, " if attack.tokens is not None else ""
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
