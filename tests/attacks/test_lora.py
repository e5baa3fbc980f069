"""Updates that hold only LoRA factors: read, recovered where the rank allows, matched otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import ALL_KNOWN, TEXTS, tiny_model

from gradleak import Client, GradleakError, TextModel, attack, load_model
from gradleak.models.selection import selected

peft = pytest.importorskip("peft")


def adapted(rank: int, targets: list[str], family: str = "bert", trained: bool = False) -> TextModel:
    """A tiny model with fresh LoRA factors, whose B is zero, or with some that have been trained."""
    task = "classification" if family == "bert" else "causal-lm"
    below = tiny_model(family, task, layers=4, width=128)
    torch.manual_seed(0)
    wrapped: Any = peft.get_peft_model(below.module, peft.LoraConfig(r=rank, target_modules=targets))
    if trained:
        with torch.no_grad():
            for name, parameter in wrapped.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.05)
    return load_model(wrapped, tokenizer=below.tokenizer, task=task)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("targets", [["query", "value"], ["query", "value", "intermediate.dense"]])
def test_an_encoder_is_read_through_its_factors(targets: list[str], trained: bool) -> None:
    model = adapted(64, targets, trained=trained)
    update = Client(model).update(TEXTS[:2], [0, 1])
    assert all("lora" in name or "classifier" in name for name in update.tensors)
    (found,) = attack(update, model, "exact")
    truth = {tuple(model.content(row)) for row in model.encode(TEXTS[:2]).sentences()}
    assert {tuple(sentence.tokens) for sentence in found.sentences if sentence.certified} == truth


@pytest.mark.parametrize("trained", [False, True])
def test_a_decoder_is_read_through_its_factors(trained: bool) -> None:
    model = adapted(64, ["q_proj", "k_proj", "v_proj", "up_proj"], "llama", trained)
    update = Client(model).update(TEXTS[:1])
    (found,) = attack(update, model, "exact")
    row = model.encode(TEXTS[:1]).sentences()[0]
    assert [sentence.tokens for sentence in found.sentences] == [model.content(row[:-1])]
    assert "last tokens are missing" in " ".join(found.notes)


def test_a_rank_below_the_token_count_is_said_and_matched() -> None:
    model = adapted(4, ["query", "value"])
    update = Client(model, ALL_KNOWN).update(TEXTS[:1], [1])
    (found,) = attack(update, model, "auto", steps=4, prior="none")
    assert "rank limit" in " ".join(found.notes)
    assert found.sentences[0].stage in ("subspace", "lamp-cos")
    assert len(found.sentences[0].tokens) == model.encode(TEXTS[:1]).lengths[0] - 2


def test_a_module_means_its_factors() -> None:
    model = adapted(8, ["query", "value"])
    names = selected("layer:2.query", model)
    assert len(names) == 2
    assert all("layer.1.attention.self.query.lora" in name for name in names)
    assert len(selected("layer:2", model)) == 4
    with pytest.raises(GradleakError, match="selects nothing that"):
        selected("layer:2.key", model)


def test_a_folder_of_adapters_is_a_model(tmp_path: Path) -> None:
    below = tiny_model("bert", "classification", layers=4, width=128)
    below.module.save_pretrained(tmp_path / "base")
    below.tokenizer.save_pretrained(tmp_path / "base")
    base = load_model(str(tmp_path / "base"))
    config = peft.LoraConfig(r=8, target_modules=["query"], base_model_name_or_path=str(tmp_path / "base"))
    wrapped = peft.get_peft_model(base.module, config)
    wrapped.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    wrapped.save_pretrained(tmp_path / "adapters")
    model = load_model(tmp_path / "adapters", task="classification")
    assert all("lora" in name for name in model.parameters())
    update = Client(model).update(TEXTS[:1], [0])
    update.save(tmp_path / "update")
    update.check(model)
