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
from gradleak.updates.integrations.optimizers import USED

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


def train(model, tmp_path, callback, tokenizer=True, module=None, **settings):
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "trainer"), report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
        num_train_epochs=1, **{"optim": "sgd", "max_grad_norm": 0.0, "lr_scheduler_type": "constant", **settings},
    )  # fmt: skip
    trainer = Trainer(
        module or model.copied().module,
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


def with_dropout(model):
    for part in model.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.1


def test_the_rule_of_the_run_is_in_the_manifest(model, tmp_path):
    with_dropout(model)
    out = train(
        model, tmp_path, RecordUpdates(tmp_path / "updates", steps=2), per_device_train_batch_size=1,
        optim="adamw_torch", weight_decay=0.1, max_grad_norm=0.5, lr_scheduler_type="linear", adam_beta2=0.99,
        gradient_accumulation_steps=2, learning_rate=1e-3,
    )  # fmt: skip
    update = load_update(out / "step-000001" / "update", load_model(out / "step-000001" / "model"))
    rule = "adamw:epochs=1,batch=1,accumulate=2,lr=1e-3,betas=0.9/0.99,wd=0.1,decay=matrices,clip=0.5,schedule=linear"
    assert update.manifest.client == ClientRule.parse(f"{rule},mode=train")
    assert update.manifest.known.batch_size == 4
    assert update.manifest.notes == ()


def test_what_a_rule_cannot_say_is_noted(model, tmp_path):
    out = train(
        model, tmp_path, RecordUpdates(tmp_path / "updates", at=(2,), steps=2), per_device_train_batch_size=1,
        optim="adamw_torch", max_grad_norm=0.01, lr_scheduler_type="linear", learning_rate=1e-3,
    )  # fmt: skip
    manifest = load_update(out / "step-000002" / "update").manifest
    assert (manifest.client.name, manifest.client.schedule) == ("adamw", "constant")
    assert manifest.client.lr == pytest.approx((0.75e-3 + 0.5e-3) / 2)
    assert manifest.notes[0] == USED
    assert "the step size went from 0.00075 to 0.0005" in manifest.notes[1]
    out = train(model, tmp_path / "other", RecordUpdates(tmp_path / "other" / "updates", steps=1), optim="adafactor")
    manifest = load_update(out / "step-000001" / "update").manifest
    assert manifest.client.name == "fedavg"
    assert "trained with Adafactor" in manifest.notes[0]
    out = train(model, tmp_path / "third", RecordUpdates(tmp_path / "third" / "updates"), max_grad_norm=0.01)
    manifest = load_update(out / "step-000001" / "update").manifest
    assert manifest.client == ClientRule.parse("fedsgd:clip=0.01")
    assert "clipped to norm 0.01" in manifest.notes[0]


@pytest.mark.parametrize("steps", [None, 2])
def test_adapters_are_recorded_alone_and_their_folder_loads(model, tmp_path, steps):
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"], use_dora=True)
    wrapped = peft.get_peft_model(model.copied().module, settings)
    arguments = {"optim": "adamw_torch", "learning_rate": 1e-3, "max_grad_norm": 1.0}
    out = train(
        model, tmp_path, RecordUpdates(tmp_path / "updates", steps=steps), per_device_train_batch_size=2,
        module=wrapped, **arguments,
    )  # fmt: skip
    place = out / "step-000001" / "model"
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {file.name for file in place.iterdir()}
    start = load_model(place)
    update = load_update(out / "step-000001" / "update", start)
    assert update.tensors.keys() <= start.parameters().keys()
    factors = {name: weight for name, weight in start.parameters().items() if "lora_" in name}
    assert all(bool((weight == 0).all()) == ("lora_B" in name) for name, weight in factors.items())
    if steps:
        expected = "adamw:epochs=1,batch=2,lr=1e-3,wd=0,clip=1"
        assert update.manifest.client == ClientRule.parse(expected)
        assert update.manifest.notes == ()


def test_a_tokenizer_and_some_steps_are_needed(model, tmp_path):
    with pytest.raises(GradleakError, match="processing_class"):
        train(model, tmp_path, RecordUpdates(tmp_path / "updates"), tokenizer=False)
    with pytest.raises(GradleakError, match="at least one step"):
        RecordUpdates(tmp_path, steps=0)
