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


def test_every_role_is_one_matrix(tiny):
    """Six linear modules a layer, each exactly one weight of its own."""
    for parts in tiny.adapter.parts:
        assert set(ROLES) <= set(parts)
        shapes = [tuple(part.of(part.module.weight).shape) for part in parts.values()]
        assert all(len(shape) == 2 for shape in shapes)
        owners = {(part.name, part.block) for part in parts.values()}
        assert len(owners) == len(parts)
        width = tiny.token_embedding.shape[1]
        assert shapes[0] == (width, width)
        assert parts["ffn_in"].of(parts["ffn_in"].module.weight).shape[1] == width
        assert parts["ffn_out"].of(parts["ffn_out"].module.weight).shape[0] == width


def test_parts_compute_what_their_role_says(tiny):
    """The query part's matrix, applied to the module's input, gives its share of the module's output."""
    seen = {}
    part = tiny.adapter.parts[0]["query"]
    hook = part.module.register_forward_hook(lambda _, inputs, output: seen.update(x=inputs[0], y=output))
    batch = tiny.encode(TEXTS)
    tiny.logits(ids=batch.ids, mask=batch.mask)
    hook.remove()
    index, count = part.block
    bias = part.module.bias.chunk(count)[index] if part.module.bias is not None else 0
    expected = seen["y"].chunk(count, dim=-1)[index]
    torch.testing.assert_close(seen["x"] @ part.of(part.module.weight).T + bias, expected, rtol=1e-4, atol=1e-5)


def test_names_are_those_of_the_update(tiny):
    update = Client(tiny).update(TEXTS, labels_for(tiny))
    adapter = tiny.adapter
    names = {part.weight_name for parts in adapter.parts for part in parts.values()}
    names.add(adapter.parameter_of(adapter.token_embedding))
    if adapter.positions is not None:
        names.add(adapter.parameter_of(adapter.positions))
    assert names <= set(update.tensors)


def test_loss_is_the_librarys(tiny):
    """On right-padded real tokens, our loss equals the model's own."""
    batch = tiny.encode(TEXTS)
    labels = batch.ids if tiny.task == "causal-lm" else torch.tensor([0, 1, 1])
    ours = tiny.loss(labels, ids=batch.ids, mask=batch.mask)
    given = labels.masked_fill(~batch.mask, -100) if tiny.task == "causal-lm" else labels
    if tiny.adapter.family.kind == "decoder":
        # The library finds the last token by the padding id, so padding must not look like text.
        tiny.module.config.pad_token_id = int(batch.ids[~batch.mask][0])
    theirs = tiny.module(input_ids=batch.ids, attention_mask=batch.mask.long(), labels=given).loss
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_embeddings_and_tokens_give_the_same_loss(tiny):
    """What makes dummies honest: the embeddings of the true tokens reproduce the client's loss."""
    batch = tiny.encode(TEXTS)
    labels = batch.ids if tiny.task == "causal-lm" else torch.tensor([0, 1, 1])
    with_ids = tiny.loss(labels, ids=batch.ids, mask=batch.mask)
    with_embeds = tiny.loss(labels, embeds=tiny.embed(batch.ids), mask=batch.mask)
    torch.testing.assert_close(with_ids, with_embeds, rtol=1e-5, atol=1e-6)


def test_padding_changes_nothing(tiny):
    """A sentence alone and beside a longer one has the same logits."""
    alone, beside = tiny.encode(TEXTS[:1]), tiny.encode(TEXTS)
    one = tiny.logits(ids=alone.ids, mask=alone.mask)[0]
    many = tiny.logits(ids=beside.ids, mask=beside.mask)[0]
    if tiny.task == "causal-lm":
        many = many[: alone.lengths[0]]
    torch.testing.assert_close(one, many, rtol=1e-4, atol=1e-5)


def test_second_derivative_exists(tiny):
    batch = tiny.encode(TEXTS[:1])
    embeds = tiny.embed(batch.ids).requires_grad_()
    labels = batch.ids if tiny.task == "causal-lm" else torch.tensor([1])
    loss = tiny.loss(labels, embeds=embeds, mask=batch.mask)
    weight = tiny.adapter.parts[0]["value"].module.weight
    (first,) = torch.autograd.grad(loss, weight, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), embeds)
    assert torch.isfinite(second).all()
    assert second.abs().sum() > 0


def test_frame_and_round_trip(tiny):
    row = tiny.encode(TEXTS[:1]).sentences()[0]
    assert row[: len(tiny.prefix)] == tiny.prefix
    assert row[len(row) - len(tiny.suffix) :] == tiny.suffix
    assert tiny.decode(row).lower().replace(" ", "") == TEXTS[0].lower().replace(" ", "")


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
def qwen2(monkeypatch):
    """Another architecture, declared as a package of somebody else's would."""
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

    monkeypatch.setattr(FAMILIES, "_entries", dict(FAMILIES._entries))
    monkeypatch.setattr(FAMILIES, "_loaded", dict(FAMILIES._loaded))
    roles = {"gate" if role == "ffn_gate" else role: path for role, path in LLAMA.roles.items()}
    family = replace(LLAMA, name="qwen2", roles=roles, rules={Qwen2RMSNorm.__name__: rms_norm})
    FAMILIES.register(family)
    monkeypatch.setitem(
        CONFIGS, "qwen2", lambda *sizes: transformers.Qwen2Config(**usual_sizes(*sizes), num_key_value_heads=1)
    )
    return tiny_model("qwen2", "classification")


def test_a_family_from_outside_is_loaded_matched_and_selected(qwen2):
    assert qwen2.family == "qwen2"
    update = Client(qwen2, observe="layer:1.gate").update(TEXTS, [0, 1, 1])
    assert list(update.tensors) == ["model.layers.0.mlp.gate_proj.weight"]
    whole = Client(qwen2).update(TEXTS, [0, 1, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # every parameter has a rule
        FactorEngine(qwen2, [whole.tensors], Distance("cosine"), tokens=64)
    assert attack(whole, qwen2, "bag")[0].bag


def test_a_models_files_do_not_choose_what_is_imported(tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GradleakError, match="'planted:FAMILY' are not supported"):
        family_of("planted:FAMILY")
