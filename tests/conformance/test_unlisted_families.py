"""Types of models that are not listed, read by what was found of them: every one from the client to the answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import ALL_KNOWN, TEXTS, UNLISTED, secret_of, unlisted_model

from gradleak import Client, GradleakError, TextModel, attack, load_model, load_update
from gradleak.attacks.spans.probe import Probe
from gradleak.core.budget import Budget
from gradleak.matching.distances import Distance
from gradleak.matching.dummies import Dummies
from gradleak.matching.engine import FactorEngine
from gradleak.matching.naive import NaiveEngine
from gradleak.models.discovery.discover import discover
from gradleak.models.families import FAMILIES
from gradleak.updates.convert import convert_weights
from gradleak.updates.rule_options import RuleOptions

SETTINGS = (
    "frozen",
    "layers:send=1",
    "mask:ratio=0.5",
    "noise:sigma=0.001",
    "prune:ratio=0.5",
    "quantize:bits=8",
    "sign",
)
ENCODERS = ("ernie", "roformer", "nomic_bert", "deberta")

every_type = pytest.mark.parametrize("kind", UNLISTED)
pytestmark = pytest.mark.filterwarnings("ignore:.*have no fast rule")


def task_of(kind: str) -> str:
    return "classification" if kind in ENCODERS else "causal-lm"


def labels_of(model: TextModel, count: int) -> list[int] | None:
    return [n % 2 for n in range(count)] if model.task == "classification" else None


@every_type
def test_the_model_is_read_as_the_library_computes_it(kind: str) -> None:
    assert kind not in FAMILIES
    model = unlisted_model(kind, task_of(kind))
    assert model.family == kind
    assert any("found by structure" in note for note in model.notes)
    batch = model.encode(TEXTS)
    labels = batch.ids if model.task == "causal-lm" else torch.tensor([0, 1, 1])
    given = labels.masked_fill(~batch.mask, -100) if model.task == "causal-lm" else labels
    theirs = model.module(input_ids=batch.ids, attention_mask=batch.mask.long(), labels=given).loss
    torch.testing.assert_close(model.loss(labels, ids=batch.ids, mask=batch.mask), theirs, rtol=1e-5, atol=1e-6)
    embeds = model.embed(batch.ids)
    torch.testing.assert_close(model.loss(labels, embeds=embeds, mask=batch.mask), theirs, rtol=1e-5, atol=1e-6)
    if model.task == "causal-lm":
        states = model.module.base_model(input_ids=batch.ids, attention_mask=batch.mask.long())[0]
        logits = model.logits(ids=batch.ids, mask=batch.mask)
        torch.testing.assert_close(model.output_logits(states), logits, rtol=1e-4, atol=1e-5)


@every_type
def test_the_engine_agrees_with_the_oracle(kind: str) -> None:
    model = unlisted_model(kind, task_of(kind))
    update = Client(model).update(TEXTS[:1], labels_of(model, 1))
    batch = model.encode(TEXTS[1:2])
    generator = torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(model.embed(batch.ids).shape, generator=generator)
    embeds = (model.embed(batch.ids) + noise)[None]
    labels = batch.ids[None] if model.task == "causal-lm" else torch.tensor([[1]])
    dummies = Dummies(embeds, batch.mask[None], labels, torch.zeros(1, dtype=torch.long))
    engine = FactorEngine(model, [update.tensors], Distance("cosine"), tokens=32)
    got, slope = engine.values_and_gradients(dummies)
    expected, expected_slope = NaiveEngine(model, [update.tensors], Distance("cosine")).values_and_gradients(dummies)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=0)
    assert (slope - expected_slope).norm() <= 1e-4 * expected_slope.norm()
    # Relative positions of DeBERTa go through matrices once for all sentences, and its biases are no module's.
    known = ("pos_", "rel_embeddings", "q_bias", "v_bias") if kind == "deberta" else ()
    assert all(any(part in name for part in known) for name in engine.plain_names)


@every_type
def test_the_first_layer_sees_tokens_alone_and_then_mixes_them(kind: str) -> None:
    model = unlisted_model(kind, task_of(kind))
    parts = model.adapter.parts[0]
    first = model.encode(TEXTS[:1]).ids
    other = first.clone()
    other[0, len(model.prefix)] += 1
    probe = Probe(model, [parts["query"], parts["attention_out"]])
    with torch.no_grad():
        one, two = (probe(input_ids=ids, mask=torch.ones_like(ids)) for ids in (first, other))
    last = len(model.prefix) + 2
    assert torch.equal(one[0][0, last], two[0][0, last])
    assert not torch.allclose(one[1][0, last], two[1][0, last], atol=1e-6)


@every_type
def test_attacks_and_defences_run(kind: str) -> None:
    model = unlisted_model(kind, task_of(kind), layers=3, width=64)
    update = Client(model, ALL_KNOWN).update(TEXTS[1:2], labels_of(model, 1))
    (row,) = model.encode(TEXTS[1:2]).sentences()
    (found,) = attack(update, model, "exact")
    assert [sentence.tokens for sentence in found.sentences] == [model.content(row)]
    assert found.sentences[0].certified
    (bag,) = attack(update, model, "bag")
    assert set(model.tokenizer.convert_ids_to_tokens(model.content(row))) <= set(bag.bag)
    for name in ("auto", *(("film",) if model.task == "causal-lm" else ())):
        (found,) = attack(update, model, name, budget=Budget(seconds=0.05))
        assert found.sentences or found.bag or found.reasons
    for setting in SETTINGS:
        tensors = Client(model, defenses=[setting]).update(TEXTS[:1], labels_of(model, 1), secret_of(1)).tensors
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


@pytest.mark.parametrize("kind", ["cohere", "gpt_bigcode", "deberta", "nomic_bert"])
def test_adapters_folders_and_conversions(kind: str, tmp_path: Path) -> None:
    model = unlisted_model(kind, task_of(kind), layers=4, width=64)
    model.module.save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.fingerprint == model.fingerprint
    assert again.adapter.family == model.adapter.family == discover(model.module.config)
    adapted = load_model(tmp_path / "model", lora="r=32,targets=query+value,b=0.2")
    sent = Client(adapted, ALL_KNOWN).update(TEXTS[1:2], labels_of(adapted, 1))
    (row,) = adapted.encode(TEXTS[1:2]).sentences()
    told = adapted.content(row if adapted.task == "classification" else row[:-1])
    (found,) = attack(sent, adapted, "exact")
    assert [sentence.tokens for sentence in found.sentences] == [told]
    with torch.no_grad():
        model.adapter.parts[0]["value"].module.weight.add_(0.01)
    model.module.save_pretrained(tmp_path / "after")
    rule = RuleOptions(None, {"lr": 0.1, "steps": 1}, 1)
    if kind == "nomic_bert":  # the library saves it under the names of older files
        with pytest.raises(GradleakError, match="is no parameter of the nomic_bert model"):
            convert_weights(again, None, tmp_path / "after", tmp_path / "update", rule)
        return
    done = convert_weights(again, None, tmp_path / "after", tmp_path / "update", rule)
    assert load_update(done.update).manifest.family == kind
