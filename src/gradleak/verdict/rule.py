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
    if any(attack.whole.mean - attack.control_whole >= WHOLE for attack in attacks):
        return "critical"
    clear = [attack for attack in attacks if clearly_leaks(attack)]
    if any(reads_whole(attack) or attack.leak.mean - attack.control.mean >= attack.scale.far for attack in clear):
        return "high"
    if clear or any(names_tokens(attack) for attack in attacks):
        return "moderate"
    if not attacks or missing or any(attack.unfinished for attack in attacks):
        return "unfinished"
    if any(too_rough(attack) for attack in attacks):
        return "unclear"
    return "not shown"


def clearly_leaks(attack: AttackVerdict) -> bool:
    """Whether the intervals of attack and control do not touch, the attack's above."""
    return attack.leak.low > attack.control.high


def reads_whole(attack: AttackVerdict) -> bool:
    """Whether it read some sentence whole, and more of them than guessing does."""
    return attack.leaked.whole > 0 and attack.whole.mean > attack.control_whole


def names_tokens(attack: AttackVerdict) -> bool:
    """Whether an attack on tokens named most of them, and mostly right ones; guessing names next to none."""
    return (
        attack.tokens is not None
        and attack.precision is not None
        and min(attack.tokens.mean, attack.precision.mean) >= NAMED
    )


def too_rough(attack: AttackVerdict) -> bool:
    """Whether a leak worth knowing could hide in the interval."""
    return attack.trials < ENOUGH_TRIALS or attack.leak.high - attack.control.mean >= attack.scale.near


def strongest(attacks: Sequence[AttackVerdict]) -> AttackVerdict:
    """The attack that read most."""
    return max(attacks, key=lambda attack: (attack.leak.mean, attack.whole.mean))
