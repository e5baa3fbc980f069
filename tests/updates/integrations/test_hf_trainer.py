"""Update folders from real runs of Hugging Face's Trainer."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("accelerate")

from tiny import tiny_model
from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

from gradleak import Client, GradleakError, attack, load_model, load_update
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.integrations.hf_trainer import RecordUpdates

TEXTS = ["Rosa moved to ward six.", "The loan was refused.", "Your flight leaves at noon on Friday.", "He owes."]
LABELS = [0, 1, 1, 0]


def rows(model):
    return [
        {"input_ids": tokens, "labels": label}
        for tokens, label in zip(model.encode(TEXTS).sentences(), LABELS, strict=True)
    ]


@pytest.fixture
def model():
    """No dropout, so that the run can be compared with our own client's."""
    made = tiny_model("bert", "classification", layers=3, width=64)
    for part in made.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return made


def train(model, tmp_path, callback, tokenizer=True, **settings):
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "trainer"), report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
        num_train_epochs=1, **{"optim": "sgd", "max_grad_norm": 0.0, "lr_scheduler_type": "constant", **settings},
    )  # fmt: skip
    trainer = Trainer(
        model.copied().module,
        arguments,
        train_dataset=rows(model),
        data_collator=DataCollatorWithPadding(model.tokenizer),
        processing_class=model.tokenizer if tokenizer else None,
        callbacks=[callback],
    )
    trainer.get_train_dataloader().batch_sampler  # noqa: B018 - the loader must exist before it is in order
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(trainer.train_dataset)
    trainer.train()
    return tmp_path / "updates"


def test_a_step_is_the_gradient_of_its_batch(model, tmp_path):
    out = train(model, tmp_path, RecordUpdates(tmp_path / "updates", at=(1, 2)), per_device_train_batch_size=2)
    start = load_model(out / "step-000001" / "model")
    assert start.fingerprint == model.fingerprint
    first = load_update(out / "step-000001" / "update", start)
    assert first.manifest.client == ClientRule()
    assert first.manifest.notes == ()
    ours = Client(model).update(TEXTS[:2], LABELS[:2])
    assert first.known == ours.known
    assert all(torch.allclose(first.tensors[name], tensor, atol=1e-5) for name, tensor in ours.tensors.items())
    later = load_model(out / "step-000002" / "model")
    assert later.fingerprint != model.fingerprint
    second = load_update(out / "step-000002" / "update", later)
    ours = Client(later).update(TEXTS[2:], LABELS[2:])
    assert all(torch.allclose(second.tensors[name], tensor, atol=1e-5) for name, tensor in ours.tensors.items())


def test_auto_reads_what_the_trainer_would_have_sent(model, tmp_path):
    out = train(model, tmp_path, RecordUpdates(tmp_path / "updates"), per_device_train_batch_size=2)
    start = load_model(out / "step-000001" / "model")
    (found,) = attack(load_update(out / "step-000001" / "update", start), start)
    wanted = {model.decode(model.content(row)) for row in model.encode(TEXTS[:2]).sentences()}
    assert {sentence.text for sentence in found.sentences} == wanted


def test_steps_of_sgd_are_a_fedavg_update(model, tmp_path):
    out = train(
        model, tmp_path, RecordUpdates(tmp_path / "updates", steps=2), per_device_train_batch_size=2,
        learning_rate=0.05,
    )  # fmt: skip
    update = load_update(out / "step-000001" / "update", load_model(out / "step-000001" / "model"))
    rule = ClientRule(name="fedavg", epochs=1, batch=2, lr=0.05)
    assert update.manifest.client == rule
    assert update.manifest.notes == ()
    assert update.known.batch_size == 4
    ours = Client(model, client=rule).update(TEXTS, LABELS)
    assert all(torch.allclose(tensor, ours.tensors[name], atol=1e-5) for name, tensor in update.tensors.items())


def test_what_is_only_rough_is_noted(model, tmp_path):
    for part in model.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.1
    out = train(
        model, tmp_path, RecordUpdates(tmp_path / "updates", steps=2), per_device_train_batch_size=1,
        optim="adamw_torch", weight_decay=0.01, max_grad_norm=0.01, lr_scheduler_type="linear",
        gradient_accumulation_steps=2,
    )  # fmt: skip
    manifest = load_update(out / "step-000001" / "update").manifest
    assert manifest.client.mode == "train"
    assert manifest.client.batch == 2
    assert manifest.known.batch_size == 4
    told = " ".join(manifest.notes)
    for word in ("clipped to norm 0.01", "AdamW and weight decay 0.01", "the step size went from"):
        assert word in told


def test_a_tokenizer_and_some_steps_are_needed(model, tmp_path):
    with pytest.raises(GradleakError, match="processing_class"):
        train(model, tmp_path, RecordUpdates(tmp_path / "updates"), tokenizer=False)
    with pytest.raises(GradleakError, match="at least one step"):
        RecordUpdates(tmp_path, steps=0)
