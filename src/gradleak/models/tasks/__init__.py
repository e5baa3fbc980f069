"""What models are trained for, and what they read; light, so that settings can be checked before torch is loaded.

A task is a file of this folder with one object, and a line below. What a task does differently is said there, by a
property or a method of `TextTask`; nobody else asks for its name. To add one, write its file, name it in `Task` and
`TASKS`, and name its head in the families that have one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal

from gradleak.core.registry import import_attribute

if TYPE_CHECKING:
    from gradleak.models.tasks.base import TextTask

Task = Literal[
    "classification", "causal-lm", "masked-lm", "token-classification", "multi-label", "regression", "seq2seq"
]
TargetTask = Literal[
    "classification",
    "causal-lm",
    "masked-lm",
    "token-classification",
    "multi-label",
    "regression",
    "seq2seq",
    "image-classification",
]
# What is known of an example beside itself: a class; a number; several classes, or those of its tokens; a target's
# tokens.
Label = int | float | tuple[int, ...]
# The two texts of an example that is a pair.
SideName = Literal["source", "target"]
# "text", "images", or what a package adds.
Modality = str
# Where each task of text models is; imported when it is asked for.
TASKS: dict[Task, str] = {
    "classification": "gradleak.models.tasks.classification:CLASSIFICATION",
    "causal-lm": "gradleak.models.tasks.causal_lm:CAUSAL_LM",
    "masked-lm": "gradleak.models.tasks.masked_lm:MASKED_LM",
    "token-classification": "gradleak.models.tasks.token_classification:TOKEN_CLASSIFICATION",
    "multi-label": "gradleak.models.tasks.multi_label:MULTI_LABEL",
    "regression": "gradleak.models.tasks.regression:REGRESSION",
    "seq2seq": "gradleak.models.tasks.seq2seq:SEQ2SEQ",
}
# Those whose texts have no labels, as the tasks say of themselves too.
UNLABELLED: frozenset[str] = frozenset({"causal-lm", "masked-lm"})
# Those whose sentences can be compared with an update one by one, since their labels are few or none.
WITH_CANDIDATES: frozenset[str] = frozenset({"classification", "causal-lm"})
MODALITY_OF: dict[TargetTask, Modality] = {**dict.fromkeys(TASKS, "text"), "image-classification": "images"}


@functools.cache
def text_task(name: Task) -> TextTask:
    """The task of a name, which loads torch.

    >>> text_task("causal-lm").autoregressive
    True
    """
    task: TextTask = import_attribute(TASKS[name])
    return task


def text_tasks() -> list[TextTask]:
    """All tasks of text models, in the order in which they are listed."""
    return [text_task(name) for name in TASKS]
