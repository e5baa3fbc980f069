"""Running an attack: updates are checked, and what the attack costs is measured, here for all of them."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gradleak.attacks import DEFAULT_ATTACK, attacks_for
from gradleak.attacks.base import Attack, AttackContext, Reconstruction
from gradleak.attacks.explained import explained_share
from gradleak.attacks.reasons import Reason, reason_fields
from gradleak.core.budget import Budget, Stopped, StopReason
from gradleak.core.errors import GradleakError
from gradleak.core.memory import require
from gradleak.core.peak import peak_memory
from gradleak.core.progress import SILENT, Progress, redacted
from gradleak.core.seeds import derive_seed
from gradleak.core.supervision import supervised
from gradleak.data.pictures import Pictures
from gradleak.models.base import Target
from gradleak.models.image import ImageModel
from gradleak.updates.rule_notes import rule_notes
from gradleak.updates.update import Update

# Seconds that may go by after an attack to see what its answers explain, and the most of them as a share of its time.
CLOSING, CLOSING_SHARE = 60.0, 0.02
# Seconds after that until it is ended, and until a call that cannot be ended is left to itself.
GRACE, PATIENCE = 0.2, 0.5


def attack(
    updates: Update | Sequence[Update],
    model: Target,
    attack: str | None = None,
    *,
    seed: int | Sequence[int] = 0,
    budget: Budget | str | float | None = None,
    progress: Progress = SILENT,
    auxiliary: Pictures | None = None,
    **options: Any,
) -> list[Reconstruction]:
    """Read texts or images back from one update, or from several of the same model at once.

    Nothing but the updates, the model and the auxiliary images is looked at. The same seed gives the same answer.

    Args:
        updates: One update or several, of this model.
        model: The model they were made with.
        attack: One of `gradleak attacks`, or `module:Class` of your own; "auto" if the model reads text, "lti" if it
            reads images.
        seed: Fixes all randomness; or one number per update.
        budget: A duration such as "60s", a number of seconds, or a `Budget`.
        progress: Who watches.
        auxiliary: Images of the attacker's own, for attacks on image models.
        options: Options of the attack.

    >>> from gradleak import Client, attack, load_model
    >>> model = load_model("minilm")
    >>> update = Client(model).update(["Her biopsy came back clear."], labels=[0])
    >>> (found,) = attack(update, model)
    >>> found.sentences[0].text, found.sentences[0].certified, found.labels
    ('her biopsy came back clear.', True, [0])
    """
    several = [updates] if isinstance(updates, Update) else list(updates)
    method = attacks_for(model.modality).get(attack or DEFAULT_ATTACK[model.modality]).from_settings(options)
    seeds = [derive_seed(seed, i) for i in range(len(several))] if isinstance(seed, int) else list(seed)
    return run_attack(method, several, model, AttackContext(seeds, Budget.of(budget), progress, auxiliary))


def run_attack(
    method: Attack, updates: Sequence[Update], model: Target, context: AttackContext
) -> list[Reconstruction]:
    """One reconstruction per update, each with the seconds and the peak memory of the portion it was attacked in.

    An attack that does not end with its budget is ended, and what it has kept by then is its answer.
    """
    method, context = method.prepared(model), replace(context, progress=redacted(context.progress))
    _check(method, updates, model, context)
    reconstructions: list[Reconstruction] = []
    for portion, own in context.portions(updates, method.at_once):
        started = time.monotonic()
        kept = _Kept(len(portion))
        own = replace(own, keep=kept)
        own.progress.begin(method.name, 0)
        with peak_memory(model.device) as memory:
            try:
                answers = supervised(functools.partial(method.run, portion, model, own), own.budget)
            except Stopped:
                answers = kept.answers(own.budget.reason)
        own.progress.end()
        if not isinstance(answers, list) or not all(isinstance(answer, Reconstruction) for answer in answers):
            raise GradleakError(f"attack {method.name!r} gave no list of Reconstruction")
        if len(answers) != len(portion):
            raise GradleakError(f"attack {method.name!r} gave {len(answers)} answers to {len(portion)} updates")
        cost = {"seconds": (time.monotonic() - started) / len(portion), "peak_memory_mb": memory.megabytes}
        closing = _closing(own.budget) if method.reads else Budget(0.0)
        for update, answer in zip(portion, answers, strict=True):
            told = {"undone": rule_notes(update, model), "explained": _explained(update, model, answer, closing)}
            reconstructions.append(answer.model_copy(update={**cost, **told}))
    return reconstructions


def _closing(budget: Budget) -> Budget:
    """The time to see what the answers explain: a little, also when the attack has used up its own."""
    return Budget(0.0) if budget.interrupted else Budget(min(CLOSING, CLOSING_SHARE * (budget.seconds or math.inf)))


def _explained(update: Update, model: Target, answer: Reconstruction, budget: Budget) -> float | None:
    try:
        budget.check()
        work = functools.partial(explained_share, update, model, answer, budget)
        return supervised(work, budget, grace=GRACE, patience=PATIENCE)
    except Stopped:
        return None


class _Kept:
    """The best so far of every update, should the attack not come to its end."""

    def __init__(self, updates: int) -> None:
        self._best: list[Reconstruction | None] = [None] * updates
        self._final = [False] * updates

    def __call__(self, number: int, answer: Reconstruction, final: bool = False) -> None:
        self._best[number], self._final[number] = answer, final

    def answers(self, reason: StopReason) -> list[Reconstruction]:
        """An answer to each; those that are not final say why the attack ended."""
        answers = []
        for best, final in zip(self._best, self._final, strict=True):
            if best is None:
                best = Reconstruction(**reason_fields([Reason(kind="nothing-yet")]))
            answers.append(best if final else best.model_copy(update={"status": reason}))
        return answers


def _check(method: Attack, updates: Sequence[Update], model: Target, context: AttackContext) -> None:
    """Refuse what the attack cannot be run on."""
    if method.modality != model.modality:
        raise GradleakError(f"{method.name} attacks models of {method.modality}; {model.name} reads {model.examples}")
    if len(context.seeds) != len(updates):
        raise GradleakError(f"there must be as many seeds as updates: {len(updates)}, not {len(context.seeds)}")
    if method.needs_auxiliary and not context.auxiliary:
        raise GradleakError(f"{method.name} needs auxiliary images: x_train and y_train in the data file")
    if context.auxiliary is not None and isinstance(model, ImageModel):
        model.check_shape(context.auxiliary.shape)
        model.check_labels(context.auxiliary.labels)
    for update in {id(each): each for each in updates}.values():  # the control guesses at each several times
        update.check(model)
        require(
            method.memory_needed(update, model),
            model.device,
            f"{method.name} on {model.name}",
            "let the attacker see less of the model (--observe), or take a machine with more",
        )
