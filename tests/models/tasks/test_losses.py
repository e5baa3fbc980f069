"""Every task's loss is the library's own, for whole batches, single sentences and rows of the matching engine."""

from __future__ import annotations

from random import Random

import pytest
import torch
from tiny import OLD_TASKS, TASK_CASES, TEXTS, secret_of, tiny_model

from gradleak import TextModel
from gradleak.core.secret import generator
from gradleak.models.batch import Batch
from gradleak.models.families import FAMILIES
from gradleak.models.tasks import TASKS, UNLABELLED, text_task, text_tasks
from gradleak.updates.client_rule import ClientRule

# A family of each kind, and every family that has a head of its own for the task.
CASES = [(family, task) for task in OLD_TASKS for family in ("bert", "gpt2") if task in FAMILIES.get(family).tasks]
every_task = pytest.mark.parametrize(("family", "task"), [*CASES, *TASK_CASES])


def examples_of(model: TextModel) -> tuple[Batch, torch.Tensor]:
    """What a client trains on, with labels that differ from sentence to sentence."""
    task, rng = model.goal, Random(3)
    given = [task.drawn_label(model, text, rng) for text in TEXTS] if task.labelled else None
    labels = task.labels(model, TEXTS, given)
    return task.examples(model, TEXTS, labels, ClientRule(), generator(secret_of(1)))


def library_loss(model: TextModel, batch: Batch, targets: torch.Tensor) -> torch.Tensor:
    """The loss of the transformers model itself, which takes no loss of padding but that it is told."""
    model.module.config.pad_token_id = model.tokenizer.pad_token_id or 0  # by which decoders find the last token
    labels = targets.masked_fill(~batch.mask, -100) if targets.shape == batch.mask.shape else targets
    loss: torch.Tensor = model.module(input_ids=batch.ids, attention_mask=batch.mask.long(), labels=labels).loss
    return loss


@every_task
def test_loss_and_gradients_are_the_librarys(family: str, task: str) -> None:
    model = tiny_model(family, task)
    batch, targets = examples_of(model)
    parameters = list(model.parameters().values())
    ours, theirs = model.batch_loss(batch, targets), library_loss(model, batch, targets)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-5)
    for own, other in zip(
        torch.autograd.grad(ours, parameters, allow_unused=True),
        torch.autograd.grad(theirs, parameters, allow_unused=True),
        strict=True,
    ):
        assert (own is None) == (other is None)
        if own is not None:
            assert torch.allclose(own, other, rtol=1e-4, atol=1e-6)


@every_task
def test_losses_of_sentences_are_those_of_batches_of_one(family: str, task: str) -> None:
    model = tiny_model(family, task)
    batch, targets = examples_of(model)
    together = model.example_losses(batch, targets)
    alone = [model.batch_loss(batch.part(slice(i, i + 1)), targets[i : i + 1]) for i in range(len(batch))]
    assert torch.allclose(together, torch.stack(alone), rtol=1e-4, atol=1e-6)
    counts = [model.predictions(batch.part(slice(i, i + 1)), targets[i : i + 1]) for i in range(len(batch))]
    assert sum(counts) == model.predictions(batch, targets)
    mean = sum(n * float(loss) for n, loss in zip(counts, together, strict=True)) / sum(counts)
    assert mean == pytest.approx(float(model.batch_loss(batch, targets)), rel=1e-4)


@every_task
def test_rows_are_batches_of_their_own(family: str, task: str) -> None:
    model = tiny_model(family, task)
    batch, targets = examples_of(model)
    logits = model.logits(ids=batch.ids, mask=batch.mask)
    twice = model.goal.row_losses(
        torch.cat([logits, logits]), torch.cat([targets, targets]), torch.cat([batch.mask, batch.mask]), 2
    )
    assert torch.allclose(twice, model.batch_loss(batch, targets).expand(2), rtol=1e-5)


@every_task
def test_empty_targets_have_the_form_of_real_ones(family: str, task: str) -> None:
    model = tiny_model(family, task)
    batch, targets = examples_of(model)
    empty = model.goal.no_targets(batch.ids.shape, model.goal.outputs(model))
    assert (empty.shape, empty.dtype) == (targets.shape, targets.dtype)


def test_what_is_said_without_torch_is_what_tasks_say() -> None:
    assert [task.name for task in text_tasks()] == list(TASKS)
    assert {task.name for task in text_tasks() if not task.labelled} == UNLABELLED
    assert all(text_task(task.head).head == task.head for task in text_tasks())
