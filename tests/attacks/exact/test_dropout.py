"""Exact recovery from clients that train with dropout."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from tiny import TEXTS, secret_of, tiny_model, wide_model

from gradleak import Client, TextModel, attack
from gradleak.attacks.exact.dropout import drops_inputs
from gradleak.attacks.spans.certify import input_span
from gradleak.attacks.spans.masked import masked_inputs
from gradleak.core.budget import Budget
from gradleak.updates.update import Update


def dropped(model: TextModel, texts: list[str], labels: list[int]) -> Update:
    client = Client(model, known=("batch_size",), client="fedsgd:mode=train")
    return client.update(texts, labels, secret=secret_of(1))


@pytest.mark.parametrize(("family", "count"), [("bert", 1), ("roberta", 1), ("bert", 2)])
def test_sentences_are_read_through_dropout_and_proved(family: str, count: int) -> None:
    model = wide_model(family, "classification")
    texts = TEXTS[:count]
    (found,) = attack(dropped(model, texts, list(range(count))), model, "exact")
    truth = {tuple(model.content(row)) for row in model.encode(texts).sentences()}
    assert {tuple(sentence.tokens) for sentence in found.sentences} == truth
    assert all(sentence.certified for sentence in found.sentences)


def test_inputs_are_found_with_the_masks_that_the_client_drew() -> None:
    """Against what the first layer really saw in training, caught by a hook."""
    model = wide_model("bert", "classification")
    batch = model.encode(TEXTS[:2])
    saw: list[torch.Tensor] = []
    model.module.train()
    torch.manual_seed(3)
    try:
        query = model.adapter.parts[0]["query"].module
        handle = query.register_forward_pre_hook(lambda _, inputs: saw.append(inputs[0].detach()))
        logits = model.module(input_ids=batch.ids, attention_mask=batch.mask.long()).logits
        torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
        handle.remove()
    finally:
        model.module.eval()
    gradients = {name: p.grad for name, p in model.module.named_parameters() if p.grad is not None}
    span = input_span(model, gradients)
    assert span is not None
    tokens, length = batch.ids[batch.mask].unique(), batch.ids.shape[1]
    found = masked_inputs(model, span, tokens, length, torch.Generator().manual_seed(0), Budget())
    wanted = Counter((t, p) for row in batch.sentences() for p, t in enumerate(row))
    assert Counter((each.token, each.position) for each in found) == wanted
    real = torch.nn.functional.normalize(saw[0][batch.mask], dim=1)
    for each in found:
        near = (real @ torch.nn.functional.normalize(each.state.float(), dim=0)).max()
        assert float(near) > 1 - 1e-5


def test_models_without_dropout_and_clients_that_do_not_drop_are_read_as_ever() -> None:
    model = wide_model("bert", "classification")
    plain = Client(model, known=()).update(TEXTS[:1], [0])
    assert not drops_inputs(model, plain)
    assert drops_inputs(model, dropped(model, TEXTS[:1], [0]))
    still = model.copied()
    for module in still.module.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    assert not drops_inputs(still, dropped(model, TEXTS[:1], [0]))


def test_an_update_too_narrow_for_its_tokens_says_so() -> None:
    model = tiny_model("bert", "classification")
    (found,) = attack(dropped(model, TEXTS, [0, 1, 0]), model, "exact")
    assert not any(sentence.certified for sentence in found.sentences)
    assert found.reasons
