"""How bad it is: one level, by a fixed rule from the numbers. `docs/verdict.md` writes the rule down.

No level says that nothing can be read. The lowest says that these attacks, run to their end, read no more than
guessing does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from gradleak.core.errors import GradleakError
from gradleak.core.registry import suggest
from gradleak.scoring.interval import Interval
from gradleak.scoring.membership import Confirmed
from gradleak.verdict.model import LEVELS, AttackVerdict, CandidatesVerdict, Level, Verdict

# Percent of the sentences that must come back whole, beyond what guessing reads whole, for the worst level.
WHOLE = 10.0
# Fewer trials than this show no absence.
ENOUGH_TRIALS = 10
# Tokens are a leak if an attack names this percentage of them, and as many of those it names are right; a high one if
# it names nearly all.
NAMED, NEARLY_ALL = 50.0, 90.0
# Levels at which something was read.
LEAKS: tuple[Level, ...] = ("critical", "high", "moderate")
# What a pipeline can be made to fail on: every level but the last, which would fail always.
LIMITS = LEVELS[:-1]


def level(attacks: Sequence[AttackVerdict], missing: int = 0, candidates: CandidatesVerdict | None = None) -> Level:
    """The level of a scenario: of its sentences, of its tokens or of candidates, whichever is worst.

    Every attack counts, not only the strongest. `missing` is the number of attempts that were planned and have no
    result.
    """
    read = read_level(attacks, missing)
    return min(read, candidates.level, key=LEVELS.index) if confirms(candidates) else read


def confirms(candidates: CandidatesVerdict | None) -> TypeGuard[CandidatesVerdict]:
    """Whether a server that has candidates clearly confirms some."""
    return candidates is not None and candidates.level in LEAKS


def read_level(attacks: Sequence[AttackVerdict], missing: int = 0) -> Level:
    """The level by what was read, sentences or tokens."""
    named = [attack.tokens.level for attack in attacks if attack.tokens is not None]
    return min([sentence_level(attacks, missing), *(each for each in named if each in LEAKS)], key=LEVELS.index)


def sentence_level(attacks: Sequence[AttackVerdict], missing: int = 0) -> Level:
    """The level by what was read of whole texts or images."""
    if any(attack.whole.mean - attack.control_whole >= WHOLE for attack in attacks):
        return "critical"
    clear = [attack for attack in attacks if clearly_leaks(attack)]
    if any(reads_whole(attack) or attack.leak.mean - attack.control.mean >= attack.scale.far for attack in clear):
        return "high"
    if clear:
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


def token_level(
    recall: Interval, precision: Interval, guessing: tuple[Interval, Interval] | None, trials: int, unfinished: int
) -> Level:
    """The level of the tokens that one attack named, beside recall and precision of the commonest ones."""
    least = min(recall.mean, precision.mean)
    if guessing is not None and recall.mean <= guessing[0].mean:
        least = 0.0
    if least >= NAMED:
        return "high" if least >= NEARLY_ALL else "moderate"
    if guessing is not None and recall.low > guessing[0].high and precision.low > guessing[1].high:
        return "moderate"
    if unfinished:
        return "unfinished"
    return "unclear" if trials < ENOUGH_TRIALS else "not shown"


def candidates_level(confirmed: Confirmed, rate: float) -> Level:
    """The level of what a server that has candidates confirms; at most moderate: it has the sentences already."""
    recall = next((each for each in confirmed.recall if each.level == rate), None)
    if recall is not None and recall.share is not None and recall.false_alarms is not None:
        if recall.share.mean >= NAMED or recall.share.low > recall.false_alarms.high:
            return "moderate"
    elif confirmed.auc is not None and confirmed.auc.low > 0.5:
        return "moderate"
    if confirmed.without:
        return "unfinished"
    return "unclear" if confirmed.trials < ENOUGH_TRIALS else "not shown"


def too_rough(attack: AttackVerdict) -> bool:
    """Whether a leak worth knowing could hide in the interval."""
    return attack.trials < ENOUGH_TRIALS or attack.leak.high - attack.control.mean >= attack.scale.near


def strongest(attacks: Sequence[AttackVerdict]) -> AttackVerdict:
    """The attack that read most."""
    return max(attacks, key=lambda attack: (attack.leak.mean, attack.whole.mean))


def parse_limit(text: str) -> Level:
    """The level from which on a pipeline is to fail.

    >>> parse_limit("High")
    'high'
    """
    found = next((level for level in LIMITS if level == text.strip().lower()), None)
    if found is None:
        raise GradleakError(f"there is no level {text!r} to fail on; {suggest(text, LIMITS)}")
    return found


def reaches(level: Level, limit: Level) -> bool:
    """Whether a level is as bad as this one, or worse.

    >>> reaches("critical", "high"), reaches("unfinished", "high"), reaches("unfinished", "unclear")
    (True, False, True)
    """
    return LEVELS.index(level) <= LEVELS.index(limit)


def fails(verdict: Verdict, limit: Level) -> bool:
    """Whether some scenario is at this level or worse; an attempt without a result is as one that is unfinished."""
    return reaches(verdict.level, limit) or (bool(verdict.missing) and reaches("unfinished", limit))
