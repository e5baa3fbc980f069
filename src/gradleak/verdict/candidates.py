"""What a server that has candidates confirms: the floor under what can be read, of all attempts on a scenario."""

from __future__ import annotations

from gradleak.attacks.contains.result import LEVELS
from gradleak.models.tasks import WITH_CANDIDATES
from gradleak.scoring.membership import Confirmed, TrialCandidates, needed, summarise
from gradleak.verdict.attempts import Group
from gradleak.verdict.model import CandidatesVerdict
from gradleak.verdict.rule import candidates_level

# The rate of false alarms that is judged by.
JUDGED_BY = LEVELS[0]


def judge_candidates(group: Group) -> CandidatesVerdict | None:
    """The lists of all trials; None if no audit asked. Which attack ran beside it makes no difference to a list."""
    asking = [audit for attempt in group.attempts for audit in attempt.audits if audit.confirmed is not None]
    lists: dict[tuple[object, ...], TrialCandidates | None] = {}
    for audit in asking:
        for trial in audit.trials:
            batch = (audit.scenario.seed, trial.index, *trial.truth)
            lists[batch] = trial.candidates or lists.get(batch)
    if not asking:
        return None
    asked = max(audit.confirmed.asked for audit in asking if audit.confirmed is not None)
    confirmed = summarise(list(lists.values()), asked)
    return CandidatesVerdict(level=candidates_level(confirmed, JUDGED_BY), confirmed=confirmed)


def not_tried(group: Group) -> list[str]:
    """What nothing among these results tried, and how to try it."""
    tried = any(audit.confirmed for attempt in group.attempts for audit in attempt.audits)
    if tried or group.scenario.task not in WITH_CANDIDATES:
        return []
    how = "`gradleak contains`" if group.scenario.recorded else "`gradleak audit --candidates 100`"
    return [f"Not tried: whether a server that has candidates confirms which of them were in; {how} tries it."]


def confirmed_words(confirmed: Confirmed) -> str:
    """How many of the sentences a server confirms, as part of a sentence.

    >>> from gradleak.scoring.interval import share_interval
    >>> from gradleak.scoring.membership import Recall
    >>> told = Recall(level=0.01, share=share_interval(84, 100), false_alarms=share_interval(3, 400))
    >>> some = Confirmed(asked=100, trials=4, without=0, members=100, others=400, public=[], auc=None, recall=[told])
    >>> confirmed_words(some)
    'a server that has a list of candidates confirms 84 % [75, 91] of the sentences at 1 % false alarms'
    """
    start, share = "a server that has a list of candidates", confirmed.at(JUDGED_BY)
    if share is not None:
        return f"{start} confirms {_percent(share)} of the sentences at {100 * JUDGED_BY:g} % false alarms"
    if confirmed.auc is not None:
        return f"{start} ranks a true sentence above another one in {_percent_of_one(confirmed)} of all cases"
    return f"{start} was to be asked, and there is no answer"


def candidate_lines(confirmed: Confirmed) -> list[str]:
    """All that was measured of candidates, the same after an audit, in the verdict and on the page."""
    words = confirmed_words(confirmed)
    lines = [f"{words[0].upper()}{words[1:]}{_beside(confirmed)}."]
    if confirmed.own_recall is not None and confirmed.own_false_alarms is not None:
        lines.append(
            f"By its own rates from public text it would confirm {_percent(confirmed.own_recall)} of them at "
            f"{100 * JUDGED_BY:g} %, and {confirmed.own_false_alarms:.1f} % of the others."
        )
    return lines + confirmed.notes


def short_share(candidates: CandidatesVerdict | None) -> str:
    """For tables: how many of the sentences are confirmed at the rate that is judged by."""
    share = None if candidates is None else candidates.confirmed.at(JUDGED_BY)
    return "–" if share is None else f"{share.mean:.0f} %"


def _beside(confirmed: Confirmed) -> str:
    """The area and the other rates, in brackets."""
    if confirmed.auc is None:
        return ""
    parts = [f"AUC {confirmed.auc:.3f}"]
    for each in confirmed.recall:
        if each.share is None:
            parts.append(f"{needed(each.level):,} others are needed to show {100 * each.level:g} % false alarms")
        elif each.level != JUDGED_BY:
            parts.append(f"{_percent(each.share)} at {100 * each.level:g} %")
    counts = f"{confirmed.members:,} true sentences among {confirmed.others:,} others"
    return f" ({'; '.join([*parts, counts])})"


def _percent(share: object) -> str:
    mean, bounds = str(share).split(" ", 1)
    return f"{mean} % {bounds}"


def _percent_of_one(confirmed: Confirmed) -> str:
    area = confirmed.auc
    assert area is not None
    return f"{100 * area.mean:.0f} % [{100 * area.low:.0f}, {100 * area.high:.0f}]"
