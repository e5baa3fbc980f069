"""What every task of a text model says of itself."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from gradleak.core.errors import GradleakError
from gradleak.models.tasks import Label, Task

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gradleak.models.batch import Batch
    from gradleak.models.text import TextModel
    from gradleak.updates.client_rule import ClientRule

# The target of a position that is not trained on, which torch's cross-entropy passes over.
NOT_PREDICTED = -100

# A label as users give it: a class by number or name, a number, or several classes.
GivenLabel = int | float | str | Sequence[int | float | str]
# Where answers stand in a text: from which character to before which.
Places = Sequence[tuple[int, int]]


class TextTask(ABC):
    """What a text model predicts, from what, and by which loss it is trained.

    `name` is what users call it, `meaning` says in a few words what is predicted. `auto_class` is the class of the
    transformers library that makes the model with its head, `suffixes` are how names of such model classes end, and
    `problem_type` is the entry of a config.json that tells tasks of the same class apart. `head` is the task under
    which families say where the head is; tasks that share a head share that. `adapter_type` is peft's name of it.
    """

    name: ClassVar[Task]
    meaning: ClassVar[str]
    auto_class: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    problem_type: ClassVar[str | None] = None
    head: ClassVar[Task]
    adapter_type: ClassVar[str | None] = None

    quality: ClassVar[Literal["classes", "perplexity"] | None] = None
    """How good a model is: by the classes that it predicts, by its perplexity; None where that is not measured."""
    least_classes: ClassVar[int] = 1
    """The fewest classes that its head can be asked to have."""
    labelled: ClassVar[bool] = True
    """Whether texts come with labels, which an attacker may know or must find."""
    one_per_text: ClassVar[bool] = False
    """Whether there is one prediction a sentence, read at a single token; else predictions are those of tokens."""
    predicts_tokens: ClassVar[bool] = False
    """Whether tokens are what is predicted, so that the output layer has a row for every token."""
    draws_targets: ClassVar[bool] = False
    """Whether the client draws what is predicted: nobody else knows the targets, nor all of the inputs."""
    autoregressive: ClassVar[bool] = False
    """Whether every token is predicted from those before it: the inputs are the targets, and the last is not read."""

    paired: ClassVar[bool] = False
    """Whether an example is a pair of texts, of which the second is the label of the first."""

    # --- labels and targets -----------------------------------------------------------------------

    def labels(
        self, model: TextModel, texts: Sequence[str], given: Sequence[GivenLabel] | None
    ) -> list[Label] | None:
        """The labels of texts in the form that a manifest keeps them in; None where the task has none."""
        if not self.labelled:
            return None
        if given is None or len(given) != len(texts):
            raise GradleakError(
                f"{self.name} needs one label per text: {len(texts)} texts, {len(given or ())} labels"
            )
        return [self.label(model, text, each) for text, each in zip(texts, given, strict=True)]

    def label(self, model: TextModel, text: str, given: GivenLabel) -> Label:
        """What a label that a user gave means, or an error; of a task with labels."""
        raise NotImplementedError

    def takes(self, given: GivenLabel | None) -> bool:
        """Whether data with such a label is data of this task; the labels of other data are drawn."""
        return given is not None

    def drawn_label(self, model: TextModel, text: str, rng: random.Random) -> Label:
        """A label for a text that has none; of a task with labels."""
        raise NotImplementedError

    def known_labels(
        self, model: TextModel, texts: Sequence[str], labels: Sequence[Label] | None
    ) -> Sequence[Label] | None:
        """What an attacker knows who knows the labels, and what targets are made of."""
        return labels

    def check_label(self, model: TextModel, label: Label) -> None:
        """Refuse a label that a manifest cannot rightly give; where a task has none, it may hold what it likes."""
        if self.labelled:
            raise NotImplementedError

    @abstractmethod
    def targets(self, labels: Sequence[Label] | None, ids: Tensor, outputs: int) -> Tensor:
        """What the loss compares predictions with: from labels as they are known, and ids (sentences, positions)."""

    @abstractmethod
    def no_targets(self, shape: Sequence[int], outputs: int) -> Tensor:
        """Targets of the right form for sentences of a shape (..., sentences, positions), whatever they say."""

    def examples(
        self,
        model: TextModel,
        texts: Sequence[str],
        labels: Sequence[Label] | None,
        rule: ClientRule,
        generator: torch.Generator | None = None,
        completions: Sequence[Places | None] | None = None,
    ) -> tuple[Batch, Tensor]:
        """What a client trains on: token ids, and what is to be predicted from them.

        `generator` is what a client draws from if the task leaves something to chance, `completions` is where the
        answers stand in each text, for a rule by which only they are predicted.
        """
        for name, given in (("loss=completion", rule.loss == "completion"), ("pack", rule.pack is not None)):
            if given:
                raise GradleakError(f"{name} is for language models; {model.name} is loaded for {self.name}")
        batch = model.encode(texts)
        return batch, self.targets(self.known_labels(model, texts, labels), batch.ids, self.outputs(model))

    def inputs(self, model: TextModel, targets: Tensor | None, sentences: int) -> dict[str, Tensor]:
        """What the model is given beside the tokens of so many sentences, if its inputs depend on the targets."""
        return {}

    def label_choices(self, model: TextModel) -> Sequence[Label | None]:
        """The labels that a sentence can have, to be tried one by one; one None if it has none, empty if unknown."""
        return () if self.labelled or self.draws_targets else (None,)

    # --- what an attacker can solve for ------------------------------------------------------------

    def slopes(
        self, model: TextModel, logits: Tensor, tokens: Sequence[int], predicted: Sequence[int]
    ) -> list[Tensor]:
        """What the derivative of a sentence's loss by its logits is a combination of, each (combined, *logits.shape).

        Needed where labels cannot be tried one by one. There may be several, the fewest combined first; `predicted`
        are tokens that the output layer shows to have been predicted somewhere in the batch.
        """
        return []

    def read_slope(
        self, slope: Tensor, logits: Tensor, tokens: Sequence[int], sentences: int | None
    ) -> tuple[Label | None, float | None]:
        """The label that such a derivative means, and the share of the batch's mean that is the sentence's."""
        return None, None

    def as_written(self, tokens: Sequence[int], label: Label | None) -> list[int] | None:
        """The tokens of the text itself, of those that the model read; None if they may differ and nobody knows."""
        return list(tokens)

    # --- loss -------------------------------------------------------------------------------------

    def configured_classes(self, asked: int | None) -> int | None:
        """The number of classes that a model's configuration is given; None leaves it as it is."""
        return None if self.predicts_tokens else asked

    @abstractmethod
    def outputs(self, model: TextModel) -> int:
        """How many logits a prediction has."""

    @abstractmethod
    def losses(self, logits: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of every prediction, (sentences, predictions), and as zeros and ones which of them count."""

    def loss(self, logits: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """The mean over all predictions of a batch: what the library's model gives for the same labels."""
        return self.row_losses(logits, targets, mask, 1)[0]

    def row_losses(self, logits: Tensor, targets: Tensor, mask: Tensor, rows: int) -> Tensor:
        """The mean loss of each of so many batches of equal size that lie one after the other, (rows,)."""
        losses, counted = self.losses(logits, targets, mask)
        counts = counted.reshape(rows, -1).sum(dim=1)
        return (losses * counted).reshape(rows, -1).sum(dim=1) / counts.clamp_min(1)

    def example_losses(self, logits: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """The mean loss of every sentence, (sentences,)."""
        return self.row_losses(logits, targets, mask, len(mask))

    @abstractmethod
    def predictions(self, targets: Tensor, mask: Tensor) -> int:
        """Over how many predictions the loss of a batch is the mean."""


def whole_numbers(task: str, label: Label) -> tuple[int, ...]:
    """A label that must be several whole numbers; a manifest can hold others."""
    if not isinstance(label, tuple):
        raise GradleakError(f"the labels of {task} are lists of whole numbers, not {label!r}")
    return label
