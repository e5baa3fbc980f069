"""How bad it is: one level, by a fixed rule from the numbers. `docs/verdict.md` writes the rule down.

No level says that nothing can be read. The lowest says that these attacks, run to their end, read no more than
guessing does.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.verdict.model import AttackVerdict, Level

# Percent of the sentences that must come back whole for the worst level, and what guessing may reach at most.
WHOLE, GUESSED_WHOLE = 10.0, 1.0
# Points of ROUGE-L above guessing from which a leak is high; the least leak that "not shown" must be able to see.
FAR, NEAR = 25.0, 10.0
# Fewer trials than this show no absence.
ENOUGH_TRIALS = 10
# An attack on tokens alone leaks if it names this percentage of them, and as many of those it names are right.
NAMED = 50.0


def level(attacks: Sequence[AttackVerdict], missing: int = 0) -> Level:
    """The level of a scenario; every attack counts, not only the strongest.

    `missing` is the number of attempts that were planned and have no result.
    """
    if any(one.whole.mean >= WHOLE and one.control_whole < GUESSED_WHOLE for one in attacks):
        return "critical"
    clear = [one for one in attacks if clearly_leaks(one)]
    if any(one.leaked.whole or one.leak.mean - one.control.mean >= FAR for one in clear):
        return "high"
    if clear or any(names_tokens(one) for one in attacks):
        return "moderate"
    if not attacks or missing or any(one.unfinished for one in attacks):
        return "unfinished"
    if any(too_rough(one) for one in attacks):
        return "unclear"
    return "not shown"


def clearly_leaks(one: AttackVerdict) -> bool:
    """Whether the intervals of attack and control do not touch, the attack's above."""
    return one.leak.low > one.control.high


def names_tokens(one: AttackVerdict) -> bool:
    """Whether an attack on tokens named most of them, and mostly right ones; guessing names next to none."""
    return one.tokens is not None and one.precision is not None and min(one.tokens.mean, one.precision.mean) >= NAMED


def too_rough(one: AttackVerdict) -> bool:
    """Whether a leak worth knowing could hide in the interval."""
    return one.trials < ENOUGH_TRIALS or one.leak.high - one.control.mean >= NEAR


def strongest(attacks: Sequence[AttackVerdict]) -> AttackVerdict:
    """The attack that read most."""
    return max(attacks, key=lambda one: (one.leak.mean, one.whole.mean))
