"""What a checkpoint was trained for, and whether it can be audited as that."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from gradleak.core.errors import GradleakError
from gradleak.core.text import enumerated
from gradleak.models.discovery.choose import chosen_family
from gradleak.models.families import Family, Kind, Task
from gradleak.models.tasks import text_task, text_tasks
from gradleak.models.tasks.base import TextTask

# What the library calls one class a sentence, beside saying nothing, and what it takes a single output for.
_ONE_CLASS, _ONE_OUTPUT = "single_label_classification", "regression"
# A model without a head. What else ends in "Model" has one.
_BARE = re.compile(r"^(?!.*Heads?Model$)\w*Model$")


# What a model without a head is audited for.
_USUAL: dict[Kind, Task] = {"encoder": "classification", "decoder": "causal-lm", "encoder-decoder": "seq2seq"}


class Objective(NamedTuple):
    """The task whose head a checkpoint holds, and what it was trained for if that is no task."""

    task: Task | None = None
    other: str | None = None

    def choose(self, name: str, family: Family, asked: Task | None) -> Task:
        """The task to audit: the one asked for, or the checkpoint's own, or that of its family."""
        ways = enumerated([f"--task {task}" for task in family.tasks]).replace(" and ", " or ")
        if asked is None and self.other is not None:
            raise GradleakError(
                f"{name} is trained for {self.other}, which is not audited; {ways} audits it with a new head"
            )
        task = asked or self.task or _USUAL[family.kind]
        if task not in family.tasks:
            raise GradleakError(
                f"{family.name} models are supported for {', '.join(family.tasks)}, not {task}"
                + ("" if asked else f"; {ways} audits it with a new head")
            )
        return task

    def has_head_of(self, task: Task) -> bool:
        """Whether the checkpoint holds the head that a task needs, though it may have been trained for another."""
        return self.task is not None and text_task(self.task).head == text_task(task).head

    def remark(self, task: Task) -> str | None:
        """What is said of a head that was trained for something else."""
        if self.task in (None, task) or not self.has_head_of(task):
            return None
        return f"It was trained for {self.task}; here it is trained for {task}: {text_task(task).meaning}."


def objective(
    architectures: Sequence[str] | None,
    problem_type: str | None = None,
    sequence_to_sequence: bool = False,
    outputs: int | None = None,
) -> Objective:
    """The objective of what a configuration names; `outputs` is how many classes it says there are.

    >>> objective(["BertModel"])
    Objective(task=None, other=None)
    >>> objective(["GPT2LMHeadModel"])
    Objective(task='causal-lm', other=None)
    >>> objective(["BertForQuestionAnswering"])
    Objective(task=None, other='another objective (BertForQuestionAnswering)')
    """
    if sequence_to_sequence:
        return Objective(None, "sequence to sequence")
    for architecture in architectures or ():
        tasks = _tasks_of(architecture)
        if not tasks and not _BARE.match(architecture):
            return Objective(None, f"another objective ({architecture[:80]})")
        if tasks:
            return _of_problem(tasks, problem_type, outputs)
    return Objective()


def objective_of(module: Any) -> Objective:
    """The objective of a model object, by its class or one that it is made from."""
    names = [kind.__name__ for kind in type(module).__mro__]
    known = [name for name in names if _tasks_of(name)]
    config = module.config
    return objective(
        [*known, names[0]], getattr(config, "problem_type", None), outputs=getattr(config, "num_labels", None)
    )


def task_of(module: Any, own: Family | None = None) -> Task:
    """The task of a Hugging Face model object that can be audited."""
    kind = type(module).__name__
    found, family = objective_of(module), own or chosen_family(module.config)
    if found.other is not None or found.task not in family.tasks:
        trained = found.other or found.task or "nothing: it has no head"
        raise GradleakError(
            f"a {kind} is trained for {trained}; {family.name} models are audited for {enumerated(family.tasks)}"
        )
    return found.task


def _tasks_of(architecture: str) -> list[TextTask]:
    """The tasks that models of a class are trained for, the usual one first."""
    return [task for task in text_tasks() if architecture.endswith(task.suffixes)]


def _of_problem(tasks: Sequence[TextTask], problem_type: str | None, outputs: int | None) -> Objective:
    """The one of several tasks with the same model class that a configuration means."""
    if len(tasks) == 1:
        return Objective(tasks[0].name)
    problem = None if problem_type == _ONE_CLASS else problem_type or (_ONE_OUTPUT if outputs == 1 else None)
    if problem == _ONE_OUTPUT and outputs not in (None, 1):
        return Objective(None, f"regression of {outputs:,} numbers")
    named = next((task.name for task in tasks if task.problem_type == problem), None)
    return Objective(named, None if named else f"another objective ({str(problem)[:80]})")
