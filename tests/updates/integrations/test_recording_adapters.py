"""Adapters on the wire: what a server and a client of Flower record. Messages are stand-ins, without Flower."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from tiny import TEXTS, tiny_model

from gradleak import load_model, load_update
from gradleak.models.load import save_model
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.integrations.flower import record_on_client, record_on_server

peft = pytest.importorskip("peft")

LR = 1e-3
RULE = f"adamw:epochs=1,batch={len(TEXTS)},lr={LR},wd=0"


class Strategy:
    def configure_train(self, server_round, arrays, config, grid):
        return []

    def aggregate_train(self, server_round, replies):
        return None


@pytest.fixture
def base(tmp_path):
    model = tiny_model("llama", "causal-lm")
    save_model(model.module, model.tokenizer, tmp_path / "base")
    return load_model(tmp_path / "base")


@pytest.fixture
def wrapped(base):
    base.module.config.name_or_path = base.name  # as from_pretrained leaves it
    settings = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(base.module, settings, adapter_name="federated")


def state(module):
    """What FlowerTune apps send: the adapters alone, under peft's names."""
    held = peft.get_peft_model_state_dict(module, adapter_name="federated")
    return {name: tensor.detach().clone() for name, tensor in held.items()}


def trained(module, tokenizer):
    tokenizer.pad_token = tokenizer.eos_token
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    parameters = [p for p in module.parameters() if p.requires_grad]
    module(**inputs, labels=labels).loss.backward()
    torch.optim.AdamW(parameters, lr=LR, weight_decay=0).step()
    return state(module)


def message(tensors, kind="train", **config):
    content = SimpleNamespace(
        array_records={"arrays": tensors},
        metric_records={"metrics": {"num-examples": len(TEXTS)}},
        config_records={"config": config},
    )
    about = SimpleNamespace(src_node_id=7, message_type=kind, group_id="1")
    return SimpleNamespace(content=content, metadata=about, has_error=lambda: False)


def check(place, model):
    update = load_update(place, model)
    assert update.manifest.client == ClientRule.parse(RULE)
    assert update.known.batch_size == len(TEXTS)
    # B is zero in the first round, so A has no gradient and has not moved.
    assert update.tensors
    assert all("lora_B" in name for name in update.tensors)
    assert all(float(tensor.abs().max()) <= LR * 1.001 for tensor in update.tensors.values())


def test_a_server_records_adapters(base, wrapped, tmp_path):
    strategy = record_on_server(Strategy(), tmp_path / "out", wrapped, base.tokenizer, client=RULE)
    before = state(wrapped)
    strategy.configure_train(1, before, {}, None)
    strategy.aggregate_train(1, [message(trained(wrapped, base.tokenizer))])
    place = tmp_path / "out" / "round-0001"
    assert sorted(each.name for each in place.iterdir()) == ["client-7", "model"]
    assert not (place / "model" / "base").exists()  # the base has a name
    model = load_model(place / "model")  # as it was sent, though the server's own has been trained since
    assert all(bool((p == 0).all()) == ("lora_B" in name) for name, p in model.parameters().items())
    check(place / "client-7", model)


def test_a_client_records_adapters(base, wrapped, tmp_path):
    mod = record_on_client(tmp_path / "out", wrapped, client=RULE)
    start = save_model(wrapped, base.tokenizer, tmp_path / "start")
    sent = message(state(wrapped), **{"server-round": 1})
    mod(sent, SimpleNamespace(node_id=7), lambda *_: message(trained(wrapped, base.tokenizer)))
    check(tmp_path / "out" / "round-0001" / "client-7", load_model(start))


def test_a_reply_that_the_rule_cannot_have_made_is_a_warning(base, wrapped, tmp_path, caplog):
    rule = RULE.replace(str(LR), str(LR / 10))
    strategy = record_on_server(Strategy(), tmp_path / "out", wrapped, base.tokenizer, client=rule)
    strategy.configure_train(1, state(wrapped), {}, None)
    with caplog.at_level(logging.WARNING):
        strategy.aggregate_train(1, [message(trained(wrapped, base.tokenizer))])
    assert "cannot have made this update" in caplog.text
    assert [each.name for each in (tmp_path / "out" / "round-0001").iterdir()] == ["model"]
