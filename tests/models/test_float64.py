"""A copy in float64 holds only what gradients are asked of, and computes what a whole copy computes."""

import copy

import pytest
import torch
from tiny import tiny_model

from gradleak.attacks.exact.contribution import sentence_gradient
from gradleak.attacks.exact.encoders import EncoderRecovery
from gradleak.clients.text import Client
from gradleak.models.float64 import rows_stand_alone
from gradleak.models.stored import _converted
from gradleak.models.text import TextModel

TEXT = ["The loan was refused."]


def whole_copy(model: TextModel) -> TextModel:
    return TextModel(copy.deepcopy(model.module).double(), model.tokenizer, model.task, model.name, model.origin)


@pytest.mark.parametrize("family", ["bert", "mpnet", "deberta-v2", "albert", "electra"])
def test_gradients_are_those_of_a_whole_copy(family: str) -> None:
    model = tiny_model(family, "classification")
    table = model.adapter.parameter_of(model.adapter.token_embedding)
    names = [table, *(part.weight_name for part in model.adapter.parts[0].values())]
    (tokens,) = model.encode(TEXT).sentences()
    rows = torch.tensor(sorted(set(tokens))[1:])  # a token without a row of its own is looked up too
    assert rows_stand_alone(model)
    exact = model.to_float64(names, rows)
    held = {name for name, p in exact.module.named_parameters() if p.dtype == torch.float64}
    assert held == set(names)
    assert exact.parameters()[table].shape[0] == len(rows)
    assert exact.vocabulary_size == model.vocabulary_size
    wanted = sentence_gradient(whole_copy(model), tokens, 1, names)
    found = sentence_gradient(exact, tokens, 1, names)
    for name in names:
        whole = wanted[name][rows] if name == table else wanted[name]
        torch.testing.assert_close(found[name], whole, rtol=1e-12, atol=1e-16)
    assert {p.dtype for p in model.module.parameters()} == {torch.float32}  # the model is as it was
    assert all(p.requires_grad for p in model.module.parameters())


def test_a_table_that_is_the_output_layer_too_stays_whole() -> None:
    assert not rows_stand_alone(tiny_model("bert", "masked-lm"))


def test_second_derivatives_pass_frozen_weights() -> None:
    model = tiny_model("bert", "classification")
    names = [part.weight_name for part in model.adapter.parts[0].values()]
    batch = model.encode(TEXT)

    def slope(copied: TextModel) -> tuple[torch.Tensor, ...]:
        wanted = [copied.parameters()[name] for name in names]
        loss = copied.loss(torch.tensor([1]), ids=batch.ids, mask=batch.mask)
        first = torch.autograd.grad(loss, wanted, create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), wanted)

    for found, wanted in zip(slope(model.to_float64(names)), slope(whole_copy(model)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-16)


def test_an_attack_holds_the_rows_that_moved_alone() -> None:
    model = tiny_model("bert", "classification")
    rounds = EncoderRecovery(model, Client(model).update(TEXT, [1]), torch.Generator().manual_seed(0))
    (tokens,) = model.encode(TEXT).sentences()
    assert rounds.read.tolist() == sorted(set(tokens))
    assert len(rounds.left[rounds.token_table]) == len(set(tokens)) < model.vocabulary_size
    assert rounds._tokens().tolist() == sorted(set(tokens))


def test_frozen_matrices_are_converted_in_the_same_room() -> None:
    large, small = torch.ones(4, 8, dtype=torch.bfloat16), torch.full((3, 2), 0.5, dtype=torch.bfloat16)
    with torch.no_grad():
        first = _converted(large, torch.float64)
        assert first.tolist() == large.tolist()
        second = _converted(small, torch.float64)
    assert second.tolist() == small.tolist()
    assert first.data_ptr() == second.data_ptr()
