"""What one architecture does differently from another, each against the library's own passes."""

from __future__ import annotations

import pytest
import torch
from tiny import ALL_CASES, TEXTS, tiny_model
from torch.nn.functional import pad

from gradleak import Client, GradleakError, TextModel, load_model
from gradleak.attacks.contains.rows import GradientRows, chosen_matrices
from gradleak.attacks.film.attribution import Attribution
from gradleak.attacks.spans.certify import mixed_layer
from gradleak.attacks.spans.probe import Probe
from gradleak.core.budget import Budget
from gradleak.matching.gradient_norms import GradientNorms
from gradleak.models.adapter import Part
from gradleak.models.families import FAMILIES
from gradleak.models.masks import Sees

DECODERS = [name for name, task in ALL_CASES if task == "causal-lm"]
# DeBERTa 3 has no table, though its family may.
LEARNED = [
    name
    for name, task in ALL_CASES
    if task == "classification" and FAMILIES.get(name).positions is not None and name != "deberta-v2"
]
FUSED = [
    name
    for name, task in ALL_CASES
    if task == "classification" and not isinstance(FAMILIES.get(name).roles["query"], str)
]


def rows_of(part: Part) -> torch.Tensor:
    """The numbers of the rows of a part in its module's weight, as (outputs, inputs)."""
    height = part.module.weight.shape[1 if part.transposed else 0]
    return part.block.of(torch.arange(height))


def silenced(family: str, role: str) -> torch.Tensor:
    """What the first attention gives to its last matrix if a role's rows and biases are zero."""
    model = tiny_model(family, "classification")
    parts = model.adapter.parts[0]
    part = parts[role]
    with torch.no_grad():
        weight = part.module.weight.T if part.transposed else part.module.weight
        weight[rows_of(part)] = 0.0
        if part.module.bias is not None:
            part.module.bias[rows_of(part)] = 0.0
        batch = model.encode(TEXTS[:1])
        return Probe(model, [parts["attention_out"]])(input_ids=batch.ids, mask=batch.mask.long())[0]


@pytest.mark.parametrize("family", FUSED)
def test_blocks_of_a_fused_matrix_are_query_key_and_value(family: str) -> None:
    """Without values nothing comes of the attention; without queries, or without keys, it is a plain mean."""
    assert not silenced(family, "value").any()
    queries, keys = silenced(family, "query"), silenced(family, "key")
    torch.testing.assert_close(queries, keys)
    assert queries.any()
    parts = tiny_model(family, "classification").adapter.parts[0]
    together = torch.cat([rows_of(parts[role]) for role in ("query", "key", "value")])
    assert together.sort().values.tolist() == list(range(len(together)))


@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_tokens_side_by_side_are_what_each_is_alone(family: str) -> None:
    """After a prefix that is longer than the windows, in all layers."""
    model = tiny_model(family, "causal-lm", layers=4)
    prefix = model.encode(TEXTS[2:]).ids
    tokens = torch.tensor([20, 30, 41, 55])
    length, count = prefix.shape[1], len(tokens)
    assert all(window is None or window < length for window in model.adapter.windows)
    sees = torch.ones(length + count, length + count, dtype=torch.bool).tril()
    sees[length:, length:] = torch.eye(count, dtype=torch.bool)
    places = torch.arange(length + count).clamp_max(length)
    probe = Probe(model, [parts["ffn_in"] for parts in model.adapter.parts])
    ids = torch.cat([prefix, tokens[None]], dim=1)
    together = probe(input_ids=ids, mask=Sees(sees, places), position_ids=places[None])
    alone = torch.cat([prefix.expand(count, -1), tokens[:, None]], dim=1)
    expected = probe(input_ids=alone, mask=torch.ones_like(alone))
    for ours, theirs in zip(together, expected, strict=True):
        torch.testing.assert_close(ours[0, length:], theirs[:, -1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", DECODERS)
def test_the_upper_layers_go_on_where_the_lower_end(family: str) -> None:
    """The copy of the upper layers that film moves gives the states of the whole model while it has not moved."""
    model = tiny_model(family, "causal-lm", layers=5)
    update = Client(model).update(TEXTS[:1])
    still = Attribution(model, Client(model, observe="head").update(TEXTS[:1]))
    assert still.first == 3
    ids = model.encode(TEXTS[2:]).ids
    reading = still.reading()
    whole, moved = (
        torch.cat(parts, dim=1) for parts in zip(*(reading.states(i) for i in ids.split(5, 1)), strict=True)
    )
    torch.testing.assert_close(moved, whole, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        at_once = model.module.base_model(input_ids=ids, use_cache=False)[0]
    torch.testing.assert_close(whole, at_once, rtol=1e-4, atol=1e-4)
    assert Attribution(model, update).unit > 0


@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_logits_of_states_are_the_models(family: str) -> None:
    model = tiny_model(family, "causal-lm")
    batch = model.encode(TEXTS[:1])
    logits = model.logits(ids=batch.ids, mask=batch.mask)
    states = model.module.base_model(input_ids=batch.ids)[0]
    torch.testing.assert_close(model.output_logits(states), logits)
    some = torch.tensor([3, 50, 7])
    torch.testing.assert_close(model.output_logits(states, some), logits[..., some])


@pytest.mark.parametrize(("family", "task"), [case for case in ALL_CASES if case[1] == "classification"])
def test_where_tokens_are_mixed_first(family: str, task: str) -> None:
    """The last token's state there depends on the first token; in the first layer's attention it does not."""
    model = tiny_model(family, task, layers=3)
    layer, parts = mixed_layer(model, Client(model).update(TEXTS[:1], [0]).tensors)
    assert layer == int(model.adapter.parallel)
    first = model.encode(TEXTS[:1]).ids
    other = first.clone()
    other[0, len(model.prefix)] += 1
    probe = Probe(model, [model.adapter.parts[0]["query"], parts[0]])
    with torch.no_grad():
        one, two = (probe(input_ids=ids, mask=torch.ones_like(ids)) for ids in (first, other))
    last = len(model.prefix) + 2
    assert torch.equal(one[0][0, last], two[0][0, last])
    assert not torch.allclose(one[1][0, last], two[1][0, last], atol=1e-6)


@pytest.mark.parametrize("family", DECODERS)
def test_norms_of_sentences_gradients_are_those_of_plain_passes(family: str) -> None:
    """Tables that give multiples of their rows, tied heads, norms of heads: all of the gradient is counted."""
    model = tiny_model(family, "causal-lm")
    _, norms = GradientNorms(model)(model.encode(TEXTS).sentences())
    updates = [Client(model).update([text]).tensors.values() for text in TEXTS]
    expected = [sum(float(tensor.double().square().sum()) for tensor in own) ** 0.5 for own in updates]
    assert norms.tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("family", "task"), [case for case in ALL_CASES if case[1] == "classification"])
def test_rows_of_sentences_are_their_own_updates(family: str, task: str) -> None:
    """Also of a layer that runs several times, and beside relative positions that see no sentence."""
    model = tiny_model(family, task)
    updates = [Client(model).update([text], [1]).tensors for text in TEXTS]
    names = chosen_matrices(model, updates[0])
    assert any(model.adapter.parts[0]["value"].weight_name == name for name in names)
    rows = GradientRows(model, names)
    for some, found, _, _ in rows.of(model.encode(TEXTS).sentences(), [1, 1, 1], Budget()):
        expected = torch.stack([rows.of_update(updates[number]) for number in some])
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("family", LEARNED)
def test_positions_are_read_from_the_first_on(family: str) -> None:
    model = tiny_model(family, "classification")
    update, (row,) = Client(model).update(TEXTS[:1], [0]), model.encode(TEXTS[:1]).sentences()
    assert model.adapter.positions is not None
    moved = update.tensors[model.adapter.parameter_of(model.adapter.positions)].any(dim=1)
    first = model.adapter.family.first_position
    assert moved.tolist() == pad(torch.ones(len(row)), (first, len(moved) - first - len(row))).bool().tolist()
    batch = model.encode(TEXTS)
    ours = model.example_losses(batch, torch.tensor([0, 1, 1])).mean()
    torch.testing.assert_close(ours, model.loss(torch.tensor([0, 1, 1]), ids=batch.ids, mask=batch.mask))


@pytest.mark.parametrize("family", LEARNED)
@torch.no_grad()
def test_the_longest_text_is_as_long_as_the_table(family: str) -> None:
    model = tiny_model(family, "classification")
    for length in (model.max_length, model.max_length + 1):
        ids = torch.full((1, length), 30)
        if length == model.max_length:
            assert torch.isfinite(model.logits(ids=ids, mask=torch.ones_like(ids))).all()
        else:
            with pytest.raises((IndexError, RuntimeError)):
                model.logits(ids=ids, mask=torch.ones_like(ids))


@pytest.mark.parametrize("family", ["bert", "opt", "qwen2"])
def test_key_biases_have_a_gradient_where_positions_turn_keys(family: str) -> None:
    model = tiny_model(family, "classification")
    part = model.adapter.parts[0]["key"]
    tensors = Client(model).update(TEXTS, [0, 1, 1]).tensors
    zero = float(tensors[f"{part.name}.bias"].norm()) < 1e-5 * float(tensors[part.weight_name].norm())
    assert zero != model.adapter.family.rotary


def test_an_opt_with_projected_embeddings_is_refused() -> None:
    import transformers

    small = tiny_model("opt", "causal-lm")
    config = transformers.OPTConfig(**{**small.module.config.to_dict(), "word_embed_proj_dim": 8})
    with pytest.raises(GradleakError, match="this opt model has embeddings of another width than its layers"):
        load_model(transformers.OPTForCausalLM(config), tokenizer=small.tokenizer)


def test_the_model_is_as_it_was_after_masks_of_our_own() -> None:
    model: TextModel = tiny_model("gpt_neo", "causal-lm")
    before = [buffer.clone() for buffer in model.module.buffers()]
    sees = torch.eye(3, dtype=torch.bool)
    Probe(model, [model.adapter.parts[0]["ffn_in"]])(
        input_ids=torch.tensor([[5, 6, 7]]), mask=Sees(sees, torch.arange(3))
    )
    assert all(torch.equal(now, own) for now, own in zip(model.module.buffers(), before, strict=True))
