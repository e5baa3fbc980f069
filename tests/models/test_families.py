"""Conformance of every family: the adapter finds the right parts, and our loss is the library's."""

import warnings
from dataclasses import replace

import pytest
import torch
import transformers
from tiny import CONFIGS, TEXTS, tiny_model, tiny_tokenizer, usual_sizes

from gradleak import Client, GradleakError, attack, load_model
from gradleak.matching.distances import Distance
from gradleak.matching.engine import FactorEngine
from gradleak.matching.rules import rms_norm
from gradleak.models.families import FAMILIES, ROLES, family_of
from gradleak.models.families.llama import LLAMA


def labels_for(model):
    return [0, 1, 1] if model.task == "classification" else None


def test_every_role_is_one_matrix(any_tiny):
    """Six linear modules a layer, each exactly one weight of its own."""
    for parts in any_tiny.adapter.parts:
        assert set(ROLES) <= set(parts)
        shapes = [tuple(part.of(part.module.weight).shape) for part in parts.values()]
        assert all(len(shape) == 2 for shape in shapes)
        owners = {(part.name, part.block) for part in parts.values()}
        assert len(owners) == len(parts)
        width = any_tiny.module.config.hidden_size
        assert shapes[0][1] == parts["attention_out"].of(parts["attention_out"].module.weight).shape[0] == width
        assert parts["ffn_in"].of(parts["ffn_in"].module.weight).shape[1] == width
        assert parts["ffn_out"].of(parts["ffn_out"].module.weight).shape[0] == width


def test_parts_compute_what_their_role_says(any_tiny):
    """The query part's matrix, applied to the module's input, gives its share of the module's output."""
    seen = {}
    part = any_tiny.adapter.parts[0]["query"]
    hook = part.module.register_forward_hook(lambda _, inputs, output: seen.update(x=inputs[0], y=output))
    batch = any_tiny.encode(TEXTS)
    any_tiny.logits(ids=batch.ids, mask=batch.mask)
    hook.remove()
    bias = part.block.of(part.module.bias) if part.module.bias is not None else 0
    expected = part.block.of(seen["y"], dim=-1)
    torch.testing.assert_close(seen["x"] @ part.of(part.module.weight).T + bias, expected, rtol=1e-4, atol=1e-5)


def test_names_are_those_of_the_update(any_tiny):
    update = Client(any_tiny).update(TEXTS, labels_for(any_tiny))
    adapter = any_tiny.adapter
    names = {part.weight_name for parts in adapter.parts for part in parts.values()}
    names.add(adapter.parameter_of(adapter.token_embedding))
    if adapter.positions is not None:
        names.add(adapter.parameter_of(adapter.positions))
    assert names <= set(update.tensors)


def test_loss_is_the_librarys(any_tiny):
    """On right-padded real tokens, our loss equals the model's own."""
    batch = any_tiny.encode(TEXTS)
    labels = batch.ids if any_tiny.task == "causal-lm" else torch.tensor([0, 1, 1])
    ours = any_tiny.loss(labels, ids=batch.ids, mask=batch.mask)
    given = labels.masked_fill(~batch.mask, -100) if any_tiny.task == "causal-lm" else labels
    if any_tiny.adapter.family.kind == "decoder":
        # The library finds the last token by the padding id, so padding must not look like text.
        any_tiny.module.config.pad_token_id = int(batch.ids[~batch.mask][0])
    theirs = any_tiny.module(input_ids=batch.ids, attention_mask=batch.mask.long(), labels=given).loss
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_embeddings_and_tokens_give_the_same_loss(any_tiny):
    """What makes dummies honest: the embeddings of the true tokens reproduce the client's loss."""
    batch = any_tiny.encode(TEXTS)
    labels = batch.ids if any_tiny.task == "causal-lm" else torch.tensor([0, 1, 1])
    with_ids = any_tiny.loss(labels, ids=batch.ids, mask=batch.mask)
    with_embeds = any_tiny.loss(labels, embeds=any_tiny.embed(batch.ids), mask=batch.mask)
    torch.testing.assert_close(with_ids, with_embeds, rtol=1e-5, atol=1e-6)


def test_padding_changes_nothing(any_tiny):
    """A sentence alone and beside a longer one has the same logits."""
    alone, beside = any_tiny.encode(TEXTS[:1]), any_tiny.encode(TEXTS)
    one = any_tiny.logits(ids=alone.ids, mask=alone.mask)[0]
    many = any_tiny.logits(ids=beside.ids, mask=beside.mask)[0]
    if any_tiny.task == "causal-lm":
        many = many[: alone.lengths[0]]
    torch.testing.assert_close(one, many, rtol=1e-4, atol=1e-5)


def test_second_derivative_exists(any_tiny):
    batch = any_tiny.encode(TEXTS[:1])
    embeds = any_tiny.embed(batch.ids).requires_grad_()
    labels = batch.ids if any_tiny.task == "causal-lm" else torch.tensor([1])
    loss = any_tiny.loss(labels, embeds=embeds, mask=batch.mask)
    weight = any_tiny.adapter.parts[0]["value"].module.weight
    (first,) = torch.autograd.grad(loss, weight, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), embeds)
    assert torch.isfinite(second).all()
    assert second.abs().sum() > 0


def test_frame_and_round_trip(any_tiny):
    row = any_tiny.encode(TEXTS[:1]).sentences()[0]
    assert row[: len(any_tiny.prefix)] == any_tiny.prefix
    assert row[len(row) - len(any_tiny.suffix) :] == any_tiny.suffix
    assert any_tiny.decode(row).lower().replace(" ", "") == TEXTS[0].lower().replace(" ", "")


def test_a_folder_loads_like_the_object(tmp_path):
    model = tiny_model("gpt2", "classification")
    model.module.save_pretrained(tmp_path)
    tiny_tokenizer("gpt2").save_pretrained(tmp_path)
    again = load_model(str(tmp_path))
    assert again.task == "classification"
    assert again.fingerprint == model.fingerprint


def test_a_missing_head_is_drawn_from_the_seed(tmp_path):
    tiny_model("bert", "classification").module.base_model.save_pretrained(tmp_path)
    tiny_tokenizer("bert").save_pretrained(tmp_path)
    first, again, other = (load_model(tmp_path, head_seed=s) for s in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert load_model(tmp_path, num_labels=5).num_labels == 5


def test_default_attention_is_switched_to_eager():
    model = tiny_model("bert", "classification")
    model.module.set_attn_implementation("sdpa")
    again = load_model(model.module, tokenizer=model.tokenizer)
    assert again.module.config._attn_implementation == "eager"


def test_unsupported_models_are_refused(tmp_path):
    with pytest.raises(GradleakError, match="did you mean 'minilm'"):
        load_model("minilmm")
    with pytest.raises(GradleakError, match=r"no config\.json"):
        load_model(tmp_path)
    with pytest.raises(GradleakError, match="needs its tokenizer"):
        load_model(tiny_model("bert", "classification").module)
    with pytest.raises(GradleakError, match="not causal-lm"):
        load_model("minilm", task="causal-lm")
    with pytest.raises(GradleakError, match="device"):
        load_model("minilm", device="nonsense")


def test_too_long_and_empty_texts_are_refused(tiny_bert):
    with pytest.raises(GradleakError, match="at most 64"):
        tiny_bert.encode(["word " * 100])
    with pytest.raises(GradleakError, match="text 2 is empty"):
        tiny_bert.encode(["fine", " "])


@pytest.mark.parametrize(
    ("family", "task"), [("bert", "classification"), ("gpt2", "causal-lm"), ("llama", "causal-lm")]
)
def test_a_folder_without_a_tokenizer_is_refused(family, task, tmp_path):
    """The library makes up one without words, and every text would be read as unknown tokens."""
    tiny_model(family, task).module.save_pretrained(tmp_path)
    with pytest.raises(GradleakError, match="tokenizer"):
        load_model(tmp_path)


# --- a family from outside --------------------------------------------------------------------------


@pytest.fixture
def seed_oss(monkeypatch):
    """Another architecture, declared as a package of somebody else's would."""
    from transformers.models.seed_oss.modeling_seed_oss import SeedOssRMSNorm

    monkeypatch.setattr(FAMILIES, "_entries", dict(FAMILIES._entries))
    monkeypatch.setattr(FAMILIES, "_loaded", dict(FAMILIES._loaded))
    roles = {"gate" if role == "ffn_gate" else role: path for role, path in LLAMA.roles.items()}
    family = replace(LLAMA, name="seed_oss", roles=roles, rules={SeedOssRMSNorm.__name__: rms_norm})
    FAMILIES.register(family)
    monkeypatch.setitem(
        CONFIGS,
        "seed_oss",
        lambda *sizes: transformers.SeedOssConfig(**usual_sizes(*sizes), num_key_value_heads=1, head_dim=8),
    )
    return tiny_model("seed_oss", "classification")


def test_a_family_from_outside_is_loaded_matched_and_selected(seed_oss):
    assert seed_oss.family == "seed_oss"
    update = Client(seed_oss, observe="layer:1.gate").update(TEXTS, [0, 1, 1])
    assert list(update.tensors) == ["model.layers.0.mlp.gate_proj.weight"]
    whole = Client(seed_oss).update(TEXTS, [0, 1, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # every parameter has a rule
        FactorEngine(seed_oss, [whole.tensors], Distance("cosine"), tokens=64)
    assert attack(whole, seed_oss, "bag")[0].bag


def test_a_models_files_do_not_choose_what_is_imported(tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GradleakError, match="'planted:FAMILY' are not supported"):
        family_of("planted:FAMILY")
