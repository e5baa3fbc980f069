"""How bad it is: one level, by a fixed rule from the numbers. `docs/verdict.md` writes the rule down.

No level says that nothing can be read. The lowest says that these attacks, run to their end, read no more than
guessing does.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.verdict.model import AttackVerdict, Level

# Percent of the sentences that must come back whole, beyond what guessing reads whole, for the worst level.
WHOLE = 10.0
# Fewer trials than this show no absence.
ENOUGH_TRIALS = 10
# An attack on tokens alone leaks if it names this percentage of them, and as many of those it names are right.
NAMED = 50.0


def level(attacks: Sequence[AttackVerdict], missing: int = 0) -> Level:
    """The level of a scenario; every attack counts, not only the strongest.

    `missing` is the number of attempts that were planned and have no result.
    """
    if any(one.whole.mean - one.control_whole >= WHOLE for one in attacks):
        return "critical"
    clear = [one for one in attacks if clearly_leaks(one)]
    if any(reads_whole(one) or one.leak.mean - one.control.mean >= one.scale.far for one in clear):
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


def reads_whole(one: AttackVerdict) -> bool:
    """Whether it read some sentence whole, and more of them than guessing does."""
    return one.leaked.whole > 0 and one.whole.mean > one.control_whole


def names_tokens(one: AttackVerdict) -> bool:
    """Whether an attack on tokens named most of them, and mostly right ones; guessing names next to none."""
    return one.tokens is not None and one.precision is not None and min(one.tokens.mean, one.precision.mean) >= NAMED


def too_rough(one: AttackVerdict) -> bool:
    """Whether a leak worth knowing could hide in the interval."""
    return one.trials < ENOUGH_TRIALS or one.leak.high - one.control.mean >= one.scale.near


def strongest(attacks: Sequence[AttackVerdict]) -> AttackVerdict:
    """The attack that read most."""
    return max(attacks, key=lambda one: (one.leak.mean, one.whole.mean))
