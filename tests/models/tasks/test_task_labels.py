"""Labels as users give them, the tokens that have them, what a client hides, and which task a checkpoint is of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import CLASSES, TASK_CASES, TEXTS, secret_of, tiny_model
from transformers import DataCollatorForLanguageModeling

from gradleak import Client, GradleakError, load_model
from gradleak.core.secret import generator
from gradleak.models.objective import objective
from gradleak.models.tasks import text_task
from gradleak.models.tasks.masked_lm import masked
from gradleak.updates.client_rule import ClientRule

MULTI, NUMBER, TAGS = (tiny_model("bert", task) for task in ("multi-label", "regression", "token-classification"))


@pytest.mark.parametrize(
    ("given_label", "classes"),
    [("0;2", (0, 2)), ([2, 0, 2], (0, 2)), ("label_1", (1,)), (1, (1,)), ([0.0, 1.0, 1.0], (1, 2)), ([], ())],
)
def test_several_classes(given_label: object, classes: tuple[int, ...]) -> None:
    assert MULTI.goal.label(MULTI, "a text", given_label) == classes  # type: ignore[arg-type]


@given(st.sets(st.integers(0, CLASSES["multi-label"] - 1)))
def test_targets_of_several_classes_are_theirs(classes: set[int]) -> None:
    label = MULTI.goal.label(MULTI, "a text", sorted(classes))
    targets = MULTI.goal.targets([label], torch.zeros(1, 3, dtype=torch.long), 3)
    assert set(targets[0].nonzero()[:, 0].tolist()) == classes


@pytest.mark.parametrize("wrong", ["nan", "inf", "much", (1, 2), float("nan")])
def test_a_number_is_a_number(wrong: object) -> None:
    with pytest.raises(GradleakError, match="is not a number"):
        NUMBER.goal.label(NUMBER, "a text", wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "label"),
    [(MULTI, "3"), (MULTI, "0;other"), (MULTI, [0.5, 1.0, 0.0]), (TAGS, "0 1"), (TAGS, [0, 1, 9, 0, 0]), (TAGS, 1)],
)
def test_wrong_labels_are_refused_in_a_line(model: object, label: object) -> None:
    with pytest.raises(GradleakError) as caught:
        Client(model).update(TEXTS[:1], [label])  # type: ignore[arg-type, list-item]
    assert "\n" not in str(caught.value)


def test_the_first_token_of_a_word_has_its_tag() -> None:
    """As the library's recipe has it, which is given the words and asks the tokenizer which token is of which."""
    text = "Rosa's biopsy  (ward-six) was unremarkable ."
    words = text.split()
    tags = [number % 3 for number in range(len(words))]
    encoded = TAGS.tokenizer(words, is_split_into_words=True)
    wanted, before = [], None
    for word in encoded.word_ids():
        wanted.append(-100 if word is None or word == before else tags[word])
        before = word
    assert encoded["input_ids"] == TAGS.encode([text]).sentences()[0]
    (known,) = TAGS.goal.known_labels(TAGS, [text], [tuple(tags)]) or ()
    assert list(known) == wanted  # type: ignore[arg-type]


def test_hidden_tokens_are_drawn_as_the_library_draws_them() -> None:
    """Shares of what is predicted, hidden, replaced and left, over many draws of ours and of its collator."""
    model = tiny_model("bert", "masked-lm")
    rows = model.encode(TEXTS * 200)
    ids, targets = masked(model, rows, 0.15, generator(secret_of(5)))
    torch.manual_seed(0)
    collator = DataCollatorForLanguageModeling(model.tokenizer, mlm_probability=0.15)
    theirs = collator([{"input_ids": row} for row in rows.sentences()])

    def shares(inputs: torch.Tensor, labels: torch.Tensor) -> list[float]:
        chosen = labels != -100
        hidden = inputs[chosen] == model.tokenizer.mask_token_id
        left = inputs[chosen] == labels[chosen]
        allowed = ~torch.isin(rows.ids, torch.tensor(model.tokenizer.all_special_ids)) & rows.mask
        return [float(each) for each in (chosen.sum() / allowed.sum(), hidden.double().mean(), left.double().mean())]

    assert shares(ids, targets) == pytest.approx(shares(theirs["input_ids"], theirs["labels"]), abs=0.03)
    special = torch.isin(rows.ids, torch.tensor(model.tokenizer.all_special_ids))
    assert not bool((special & (targets != -100)).any())
    assert torch.equal(torch.where(targets == -100, ids, targets), rows.ids)


def test_the_same_secret_hides_the_same_and_something_is_always_hidden() -> None:
    model = tiny_model("bert", "masked-lm")
    rule = ClientRule(mask=1e-6)
    drawn = [
        model.goal.examples(model, TEXTS[:1], None, rule, generator(secret_of(number)))[1]
        for number in (1, 1, 2, 3, 4)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert all(int((targets != -100).sum()) == 1 for targets in drawn)
    assert len(Counter(int((targets != -100).nonzero()[0, 1]) for targets in drawn)) > 1


def test_a_tokenizer_without_a_mask_is_refused() -> None:
    model = tiny_model("bert", "masked-lm")
    model.tokenizer = tiny_model("bert", "classification").tokenizer
    with pytest.raises(GradleakError, match="no mask token"):
        Client(model).update(TEXTS[:1])


@pytest.mark.parametrize("case", [case for case in TASK_CASES if case[0] in ("bert", "roberta", "gpt2")])
def test_a_folder_says_its_task(case: tuple[str, str], tmp_path: Path) -> None:
    model = tiny_model(*case)
    model.module.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert (again.task, again.fingerprint, again.notes) == (case[1], model.fingerprint, ())


@pytest.mark.parametrize("case", [case for case in TASK_CASES if case[0] != "gpt2"])
def test_a_checkpoint_without_the_head_gets_a_new_one(case: tuple[str, str], tmp_path: Path) -> None:
    model = tiny_model(*case)
    model.module.base_model.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    again = load_model(tmp_path, task=case[1])  # type: ignore[arg-type]
    assert again.notes[0].startswith("The head is new")
    labels = {"token-classification": ["0 1 1 0 1"], "masked-lm": None}.get(case[1], ["1"])
    update = Client(again).update(TEXTS[:1], labels)
    assert update.tensors[again.adapter.parts[0]["value"].weight_name].any()


def test_a_head_of_another_task_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    """Both are called `classifier`, and only one of them was trained to tag words."""
    TAGS.module.save_pretrained(tmp_path)
    TAGS.tokenizer.save_pretrained(tmp_path)
    model = load_model(tmp_path, task="classification")
    assert "classifier.weight" in model.notes[0]
    MULTI.module.save_pretrained(tmp_path)
    kept = load_model(tmp_path, task="classification")
    assert torch.equal(kept.module.classifier.weight, MULTI.module.classifier.weight)
    assert kept.notes == (
        "It was trained for multi-label; here it is trained for classification: one class a sentence.",
    )


@pytest.mark.parametrize(
    ("architecture", "problem", "outputs", "task"),
    [
        ("BertForMaskedLM", None, 2, "masked-lm"),
        ("DebertaV2ForTokenClassification", None, 9, "token-classification"),
        ("BertForSequenceClassification", "single_label_classification", 2, "classification"),
        ("BertForSequenceClassification", "multi_label_classification", 6, "multi-label"),
        ("BertForSequenceClassification", "regression", 1, "regression"),
        ("BertForSequenceClassification", None, 1, "regression"),
        ("LlamaForSequenceClassification", None, None, "classification"),
    ],
)
def test_the_task_of_a_configuration(architecture: str, problem: str | None, outputs: int | None, task: str) -> None:
    assert objective([architecture], problem, outputs=outputs) == (task, None)
    assert architecture.endswith(text_task(task).suffixes)  # type: ignore[arg-type]


@given(st.one_of(st.integers(), st.floats(), st.lists(st.integers(-200, 200)).map(tuple)))
def test_a_manifest_with_any_label_is_taken_or_refused_in_words(label: object) -> None:
    for model in (MULTI, NUMBER, TAGS):
        try:
            model.goal.check_label(model, label)  # type: ignore[arg-type]
        except GradleakError as error:
            assert "\n" not in str(error)
        else:
            ids = torch.zeros(1, 4, dtype=torch.long)
            model.goal.targets([label], ids, model.goal.outputs(model))  # type: ignore[list-item]
