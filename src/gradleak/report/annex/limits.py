"""What a record cannot show, and what people must add to it."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.audits.results import Results
from gradleak.core.text import counted
from gradleak.verdict.model import Verdict
from gradleak.verdict.rule import ENOUGH_TRIALS

OUTSIDE = (
    "A malicious server that changes the model it sends, so that updates leak more. The figures are a lower bound "
    "for such an attacker.",
    "Several rounds together: every update is attacked alone. A text that is trained on in many rounds is seen many "
    "times.",
    "Someone who has the final model only: membership inference and extraction from trained models are other "
    "questions.",
    "Attacks that are not known yet, or known and not among those listed under Attacks.",
)
TO_ADD = (
    "Purpose, legal basis, categories of data subjects and of data, and how many people are concerned.",
    "Who receives updates, over which channels, how long they are kept, and who else could see them.",
    "Whether the audited data are like those that clients hold; a pilot corpus may leak more or less.",
    "Measures that no update shows, such as access control, contracts, secure aggregation, and whether they hold.",
    "Why the remaining risk is accepted or not, by whom, and when this is measured again.",
)


def general_limits(results: Sequence[Results], verdict: Verdict) -> list[str]:
    """What follows from how these audits were made."""
    lines = [verdict.caveat]
    if any(each.scored for each in results):
        lines.append(
            "Intervals are 95 % intervals over trials: what other batches of the same data would have given. They "
            "say nothing of other data, other models or other attacks."
        )
    lines += _few(verdict) + _cut(results)
    if verdict.missing:
        lines.append(f"{counted(len(verdict.missing), 'planned attempt')} without a result, which count for nothing.")
    if any(not each.scenario.recorded for each in results):
        lines.append(
            "Updates were made by gradleak from the data by the rule that was given. A real client's code may "
            "differ: record its updates to measure these."
        )
    if any(each.scenario.recorded for each in results):
        lines.append(
            "Recorded updates were handed over. That they were made as their manifests say was not verified."
        )
    if any(not each.scored for each in results):
        lines.append("Where no truth was given, only what the update itself proves is known to be right.")
    return lines


def _few(verdict: Verdict) -> list[str]:
    few = [attack.attack for each in verdict.scenarios for attack in each.attacks if attack.trials < ENOUGH_TRIALS]
    if not few:
        return []
    names = ", ".join(dict.fromkeys(few))
    return [f"Fewer than {ENOUGH_TRIALS} trials ({names}) can show a leak, and cannot show that there is none."]


def _cut(results: Sequence[Results]) -> list[str]:
    cut = sum(trial.status != "completed" for each in results for trial in each.trials)
    return [f"{counted(cut, 'trial')} cut short: more time may have read more."] if cut else []
