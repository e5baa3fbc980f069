"""Every family that the long harness leaves out, from the client to the answer: attacks, defences, LoRA."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

import pytest
import torch
from defence_settings import SETTINGS
from tiny import ALL_KNOWN, NEW_CASES, TEXTS, secret_of, tiny_model

from gradleak import Client, TextModel, attack, load_model
from gradleak.core.budget import Budget
from gradleak.defenses import DEFENSES
from gradleak.matching.distances import Distance
from gradleak.matching.engine import FactorEngine

# Every defence but DP-SGD, which has a test of its own on all families.
QUICK = {"steps": 2, "init_draws": 2, "init_orders": 0, "discrete_every": 0, "prior": "none", "polish": 0}
# Parameters that no rule reads, and why: they are matched by plain autograd.
# DeBERTa's relative positions go through the query and key matrices, once for all sentences.
PLAIN = {"deberta-v2": ("query_proj", "key_proj", "rel_embeddings", "encoder.LayerNorm")}

# No test of this file changes the model that it is given.
built = functools.cache(tiny_model)
every_family = pytest.mark.parametrize("case", NEW_CASES, ids=lambda case: f"{case[0]}-{case[1]}")
pytestmark = pytest.mark.filterwarnings("ignore:.*have no fast rule")


def labels_of(model: TextModel, count: int) -> list[int] | None:
    return [n % 2 for n in range(count)] if model.task == "classification" else None


@every_family
def test_every_attack_runs(case: tuple[str, str]) -> None:
    model = built(*case)
    update = Client(model, ALL_KNOWN).update(TEXTS[1:2], labels_of(model, 1))
    writes = ("film", "soft") if model.task == "causal-lm" else ()
    for name in ("bag", "auto", *writes):
        (found,) = attack(update, model, name, budget=Budget(seconds=0.05))
        assert found.status in ("completed", "budget-exhausted")
        assert found.sentences or found.bag or found.reasons
    (found,) = attack(update, model, "lamp-cos", **QUICK)
    assert found.status == "completed"
    assert found.sentences[0].tokens


@every_family
def test_every_parameter_has_a_rule_or_is_known_to_have_none(case: tuple[str, str]) -> None:
    model = built(*case)
    update = Client(model).update(TEXTS[:1], labels_of(model, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = FactorEngine(model, [update.tensors], Distance("cosine"), tokens=32)
    known = PLAIN.get(case[0], ())
    assert all(any(part in name for part in known) for name in engine.plain_names)
    assert bool(engine.plain_names) == bool(known)


@every_family
def test_a_folder_loads_like_the_object_and_without_its_head(case: tuple[str, str], tmp_path: Path) -> None:
    model = built(*case)
    model.module.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    assert load_model(tmp_path).fingerprint == model.fingerprint
    model.module.base_model.save_pretrained(tmp_path)
    again = load_model(tmp_path, task=model.task)
    update = Client(again).update(TEXTS[:1], labels_of(again, 1))
    assert update.tensors[again.adapter.parts[0]["value"].weight_name].any()


@every_family
def test_every_defence_runs(case: tuple[str, str]) -> None:
    assert set(SETTINGS) == set(DEFENSES.names())
    model = built(*case)
    plain = Client(model).update(TEXTS[:1], labels_of(model, 1)).tensors
    for setting in (own for name, own in SETTINGS.items() if name != "dpsgd"):
        client = Client(model, defenses=[setting])
        tensors = client.update(TEXTS[:1], labels_of(model, 1), secret_of(1)).tensors
        assert tensors
        assert set(tensors) <= set(plain)
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


@every_family
def test_lora_is_read(case: tuple[str, str]) -> None:
    """With more rank than tokens and B moved, all but the last token, which a language model only predicts."""
    below = tiny_model(*case, layers=4, width=64)
    model = load_model(
        below.module, tokenizer=below.tokenizer, task=below.task, lora="r=32,targets=query+value,b=0.2"
    )
    update = Client(model, ALL_KNOWN).update(TEXTS[1:2], labels_of(model, 1))
    assert all(".lora_" in name or name.startswith(("score", "classifier")) for name in update.tensors)
    (row,) = model.encode(TEXTS[1:2]).sentences()
    told = model.content(row if model.task == "classification" else row[:-1])
    (bag,), (found,) = attack(update, model, "bag"), attack(update, model, "exact")
    assert set(model.tokenizer.convert_ids_to_tokens(told)) <= set(bag.bag)
    if model.adapter.shared:  # the matrices of attention see mixed tokens only together with those of the first run
        assert [reason.kind for reason in found.reasons] == ["matrix-missing"]
        return
    assert [sentence.tokens for sentence in found.sentences] == [told]
    assert all(sentence.certified == (model.task == "classification") for sentence in found.sentences)
