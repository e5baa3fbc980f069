"""What a checkpoint was trained for, and whether it can be audited as that."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from gradleak.core.errors import GradleakError
from gradleak.core.text import enumerated
from gradleak.models.families import Family, Task

_PROBLEMS = {
    "multi_label_classification": "multi-label classification",
    "regression": "regression",
}
# A model without a head. What else ends in "Model" has one.
_BARE = re.compile(r"^(?!.*Heads?Model$)\w*Model$")


class Objective(NamedTuple):
    """The task whose head a checkpoint holds, and what it was trained for if that is no task."""

    task: Task | None = None
    other: str | None = None

    def choose(self, name: str, family: Family, asked: Task | None) -> Task:
        """The task to audit: the one asked for, or the checkpoint's own, or that of its family."""
        ways = enumerated([f"--task {task}" for task in family.tasks]).replace(" and ", " or ")
        if asked is None and self.other is not None:
            how = "a new head" if self.task is None else "one class a sentence"
            raise GradleakError(
                f"{name} is trained for {self.other}, which is not audited; {ways} audits it with {how}"
            )
        task = asked or self.task or ("classification" if family.kind == "encoder" else "causal-lm")
        if task not in family.tasks:
            raise GradleakError(
                f"{family.name} models are supported for {', '.join(family.tasks)}, not {task}"
                + ("" if asked else f"; {ways} audits it with a new head")
            )
        return task


def objective(
    architectures: Sequence[str] | None, problem_type: str | None = None, sequence_to_sequence: bool = False
) -> Objective:
    """The objective of what a configuration names.

    >>> objective(["BertModel"])
    Objective(task=None, other=None)
    >>> objective(["GPT2LMHeadModel"])
    Objective(task='causal-lm', other=None)
    >>> objective(["BertForMaskedLM"])
    Objective(task=None, other='another objective (BertForMaskedLM)')
    >>> objective(["BertForSequenceClassification"], "regression")
    Objective(task='classification', other='regression')
    """
    if sequence_to_sequence:
        return Objective(None, "sequence to sequence")
    for architecture in architectures or ():
        task = _task_of(architecture)
        if task is None and not _BARE.match(architecture):
            return Objective(None, f"another objective ({architecture[:80]})")
        if task is not None:
            return Objective(task, _PROBLEMS.get(problem_type or "") if task == "classification" else None)
    return Objective(None, _PROBLEMS.get(problem_type or ""))


def objective_of(module: Any) -> Objective:
    """The objective of a model object, by its class or one that it is made from."""
    names = [kind.__name__ for kind in type(module).__mro__]
    known = [name for name in names if _task_of(name) is not None]
    return objective([*known, names[0]], getattr(module.config, "problem_type", None))


def task_of(module: Any, family: Family) -> Task:
    """The task of a Hugging Face model object that can be audited."""
    kind = type(module).__name__
    found = objective_of(module)
    if found.other is not None or found.task not in family.tasks:
        trained = found.other or found.task or "nothing: it has no head"
        raise GradleakError(
            f"a {kind} is trained for {trained}; {family.name} models are audited for {enumerated(family.tasks)}"
        )
    return found.task


def _task_of(architecture: str) -> Task | None:
    if architecture.endswith("ForSequenceClassification"):
        return "classification"
    if architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return "causal-lm"
    return None
