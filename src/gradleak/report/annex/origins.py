"""Where every kind of figure comes from: measured here, declared by somebody, or computed from the two."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.audits.results import Results, Scenario, Trial
from gradleak.core.text import counted, enumerated
from gradleak.defenses import known_defenses
from gradleak.report.annex.document import Table

HEADINGS = ("what", "origin", "how")


def origins(results: Sequence[Results]) -> Table:
    """Each kind of statement once, with who vouches for it."""
    rows = [*_measured(results), *_declared([each.scenario for each in results]), *_computed(results)]
    return Table(HEADINGS, list(dict.fromkeys(rows)))


Row = tuple[str, str, str]


def _measured(results: Sequence[Results]) -> list[Row]:
    trials = sum(len(each.trials) for each in results)
    scored = sum(len(each.trials) for each in results if each.scored)
    rows = [("what was read back", "measured", f"{counted(trials, 'update')} attacked; the answers are kept")]
    if scored:
        rows += [
            ("scores", "measured", f"answers of {counted(scored, 'trial')} compared with the true examples"),
            ("guessing (the control)", "measured", "the same scores of examples drawn without looking at the update"),
        ]
    if any(each.confirmed is not None for each in results):
        rows.append(("candidates confirmed", "measured", "true examples and others scored by a server that has both"))
    if any(trial.signal is not None for each in results for trial in each.trials):
        rows.append(("signal", "measured", "norm of the update, made once more without the noise of defences"))
    rows.append(("weights of the model", "measured", "a hash of them is under Versions and hashes"))
    return rows


def _declared(scenarios: Sequence[Scenario]) -> list[Row]:
    made = [each for each in scenarios if not each.recorded]
    given = [each for each in scenarios if each.recorded]
    rows = []
    if made:
        rows += [
            (
                "client rule, defences, batch size",
                "declared",
                "settings of the audit, which then made the updates so",
            ),
            ("data", "declared", f"the rows of {enumerated(list(dict.fromkeys(each.data for each in made)))}"),
        ]
    if given:
        rows.append(
            ("client rule, defences, batch size", "declared", "manifest of the recorded update; not verified")
        )
    rows.append(("what the attacker knows", "declared", "the threat model above; chosen, not found"))
    if any(each.labels == "drawn" for each in made):
        rows.append(("labels", "declared", "the data have none: they were drawn at random"))
    return rows


def _computed(results: Sequence[Results]) -> list[Row]:
    rows = [("intervals", "computed", "95 %, over trials: Clopper and Pearson for all or nothing, else Student")]
    if any(trial.reconstruction.certified_images or _certified(trial) for each in results for trial in each.trials):
        rows.append(
            ("certificates", "computed", "from update and model alone: proof that an example was in the batch")
        )
    known = [defense for each in results for defense in known_defenses(each.scenario.defenses) if defense is not None]
    rows += [
        (f"guarantee of {defense.name}", "computed", f"{guarantee}, from declared settings; holds if all was done so")
        for defense in known
        if (guarantee := defense.guarantee()) is not None
    ]
    if any(defense.promise() is not None for defense in known):
        rows.append(
            (
                "ceilings",
                "computed",
                "what no attacker exceeds, if the implementation keeps what its settings promise",
            )
        )
    return [*rows, ("levels", "computed", "by a fixed rule from scores, guessing and intervals: docs/verdict.md")]


def _certified(trial: Trial) -> bool:
    return any(sentence.certified for sentence in trial.reconstruction.sentences)
