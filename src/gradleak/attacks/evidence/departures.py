"""What the manifest says the client did beyond sending the plain gradient of its batch: why spans may not show."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.attacks.reasons import HIDDEN, Reason
from gradleak.core.text import counted
from gradleak.defenses import known_defenses
from gradleak.updates.client_words import half_precision, optimiser
from gradleak.updates.update import Update


def departures(update: Update) -> tuple[str, ...]:
    """Everything of it that hides exact values, in words."""
    manifest, rule = update.manifest, update.manifest.client
    found = ["dropout (mode=train)"] if rule.mode == "train" else []
    if rule.adaptive:
        steps = counted(update.local_steps, "step")
        kept = "large entries keep their sign only" if update.local_steps == 1 else "they cannot be undone"
        found.append(f"{steps} of {optimiser(rule)} with step size {rule.lr:g} ({kept})")
    elif rule.local:
        steps = counted(update.local_steps, "local step")
        by = f" of {optimiser(rule)}" if rule.momentum else ""
        found.append(f"{steps}{by} with step size {rule.lr:g}, sent as rounded weights")
    found += [f"numbers {how}" for how in half_precision(rule)]
    found += [f"the defence {text}" for text in hiding_defenses(manifest.defenses)]
    return (*found, *(f"what the manifest notes ({note})" for note in manifest.notes))


def hiding_defenses(texts: Sequence[str]) -> list[str]:
    """Those of the defences that change values, or may: others only choose what is sent.

    >>> hiding_defenses(["frozen", "noise:sigma=0.1", "theirs:Own"])
    ['noise:sigma=0.1', 'theirs:Own']
    """
    both = zip(texts, known_defenses(texts), strict=True)
    return [text for text, known in both if known is None or known.random or known.lossy]


def with_causes(reasons: Sequence[Reason], update: Update) -> list[Reason]:
    """The reasons, the first that something hidden explains with what the manifest names of it."""
    causes = departures(update)
    first = next((number for number, reason in enumerate(reasons) if reason.kind in HIDDEN), None)
    return [
        reason.model_copy(update={"causes": causes}) if number == first else reason
        for number, reason in enumerate(reasons)
    ]
