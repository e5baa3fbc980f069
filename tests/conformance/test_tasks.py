"""Every attack on every task ends in a reconstruction or in one line that says why not; so does every defence."""

from __future__ import annotations

from random import Random

import pytest
import torch
from defence_settings import SETTINGS
from tiny import ALL_KNOWN, TEXTS, secret_of, tiny_model

from gradleak import Client, GradleakError, TextModel, attack
from gradleak.attacks import ATTACKS
from gradleak.attacks.contains.run import contains
from gradleak.core.budget import Budget
from gradleak.data.texts import read_data
from gradleak.defenses import DEFENSES
from gradleak.models.tasks import TASKS, text_task

QUICK = {"steps": 2, "init_draws": 2, "init_orders": 0, "discrete_every": 0, "prior": "none", "polish": 0}
# Attacks that search by steps; those that do not, and what they need.
MATCHING = ("dlg", "tag", "lamp-cos", "lamp-l2", "lamp-l2l1", "subspace")
OTHERS = ("auto", "bag", "control", "exact", "film", "lti", "soft")

# Pairs of texts have tests of their own.
SINGLE = [task for task in TASKS if not text_task(task).paired]
every_task = pytest.mark.parametrize("task", SINGLE)


def model_of(task: str) -> TextModel:
    return tiny_model("gpt2" if task == "causal-lm" else "bert", task)


def labels_of(model: TextModel, texts: list[str]) -> list[object] | None:
    rng = Random(1)
    return [model.goal.drawn_label(model, text, rng) for text in texts] if model.goal.labelled else None


def test_all_attacks_are_tried() -> None:
    assert set(MATCHING) | set(OTHERS) == set(ATTACKS.names())


@every_task
@pytest.mark.parametrize("known", [(), ("batch_size",), ALL_KNOWN], ids=["blind", "size", "all"])
def test_every_attack_answers_or_says_why_not(task: str, known: tuple[str, ...]) -> None:
    model = model_of(task)
    sizes = (2,) if known else (1, 2)  # one sentence of which the number is known is nearly blind
    updates = {n: Client(model, known).update(TEXTS[:n], labels_of(model, TEXTS[:n]), secret_of(n)) for n in sizes}
    for name in ATTACKS.names():
        for size, update in updates.items():
            options = QUICK if name in MATCHING else {}
            try:
                limit = Budget() if name in MATCHING else Budget(seconds=0.1)
                (found,) = attack(update, model, name, budget=limit, **options)
            except GradleakError as error:
                assert "\n" not in str(error)
                assert name in OTHERS or not set(ALL_KNOWN) <= set(known) or model.goal.draws_targets, (name, size)
                continue
            assert found.status in ("completed", "budget-exhausted")
            assert found.sentences or found.bag or found.reasons, (name, size)


@every_task
@pytest.mark.parametrize("name", ["lamp-cos", "subspace"])
def test_matching_uses_what_is_known_or_shows(task: str, name: str) -> None:
    """At one sentence, a label that is not known shows in the head's bias, but for those of tokens."""
    model = model_of(task)
    labels = labels_of(model, TEXTS[:1])
    update = Client(model, ("batch_size",)).update(TEXTS[:1], labels)
    refused = model.goal.draws_targets or (model.goal.labelled and not model.goal.one_per_text)
    if refused:
        with pytest.raises(GradleakError, match="client's secret" if model.goal.draws_targets else "not known"):
            attack(update, model, name, **QUICK)
        return
    (found,) = attack(update, model, name, **QUICK)
    assert found.status == "completed"
    if task in ("classification", "multi-label"):
        assert found.labels == labels


@every_task
def test_every_defence_runs(task: str) -> None:
    assert set(SETTINGS) == set(DEFENSES.names())
    model = model_of(task)
    labels = labels_of(model, TEXTS[:2])
    plain = Client(model).update(TEXTS[:2], labels, secret_of(1)).tensors
    for setting in SETTINGS.values():
        tensors = Client(model, defenses=[setting]).update(TEXTS[:2], labels, secret_of(1)).tensors
        assert set(tensors) <= set(plain)
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


@every_task
def test_contains_answers_or_says_why_not(task: str) -> None:
    model = model_of(task)
    update = Client(model).update(TEXTS[:1], labels_of(model, TEXTS[:1]))
    public = [row.text for row in read_data() if len(model.tokenizer(row.text)["input_ids"]) < 60][:30]
    if not model.goal.label_choices(model):
        with pytest.raises(GradleakError, match="cannot be tried"):
            contains(update, model, TEXTS[:2], public=public, references=12)
        return
    assert len(contains(update, model, TEXTS[:2], public=public, references=12).candidates) == 2


def test_every_task_that_labels_texts_can_draw_a_label() -> None:
    for task in map(text_task, SINGLE):
        model = model_of(task.name)
        if task.labelled:
            for text, label in zip(TEXTS, labels_of(model, TEXTS) or (), strict=True):
                assert task.label(model, text, label) == label  # as a truth file gives it back
                task.check_label(model, (task.known_labels(model, [text], [label]) or [])[0])
