"""Packed rows: what the library computes for them, what a plain loop does, and that no token is lost on the way."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tiny import TEXTS, tiny_model

from gradleak import Client, GradleakError, TextModel
from gradleak.models.packing import Piece, SeparateTexts, best_fit, wrapped
from gradleak.models.tasks.base import NOT_PREDICTED
from gradleak.updates.client_rule import ClientRule

LLAMA, GPT2 = tiny_model("llama", "causal-lm"), tiny_model("gpt2", "causal-lm")
SIZES = st.lists(st.integers(2, 12), min_size=1, max_size=12)


def numbered(sizes: list[int]) -> list[Piece]:
    """Texts of tokens that occur once each."""
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [
        Piece([*range(end - size, end)], [*range(end - size, end)]) for size, end in zip(sizes, ends, strict=True)
    ]


@given(SIZES, st.integers(2, 20))
def test_wrapped_rows_are_the_texts_one_after_another(sizes: list[int], length: int) -> None:
    rows = [[token for piece in row for token in piece.ids] for row in wrapped(numbered(sizes), length)]
    assert [token for row in rows for token in row] == list(range(sum(sizes)))
    assert all(len(row) == length for row in rows[:-1])
    assert len(rows[-1]) <= length


@given(SIZES, st.integers(12, 30))
def test_best_fit_keeps_every_text_whole(sizes: list[int], length: int) -> None:
    texts = numbered(sizes)
    rows = best_fit(texts, length)
    assert sorted(piece.ids for row in rows for piece in row) == sorted(text.ids for text in texts)
    assert all(sum(map(len, row)) <= length for row in rows)
    # No text of a row would have fitted into an earlier one when it was placed: rows are more than half full but one.
    assert sum(2 * sum(map(len, row)) <= length for row in rows) <= 1


def plain_rows(model: TextModel, length: int) -> list[list[int]]:
    """Texts joined by end tokens and cut, by hand."""
    joined = [
        token for text in TEXTS for token in [*model.tokenizer(text)["input_ids"], model.tokenizer.eos_token_id]
    ]
    return [joined[first : first + length] for first in range(0, len(joined), length)]


@pytest.mark.parametrize("model", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_wrapped_gradients_are_the_librarys_of_the_rows(model: TextModel) -> None:
    """The mean over all tokens of all rows, each row by the library's own loss."""
    rows = plain_rows(model, 16)
    total, count = torch.zeros(()), 0
    for row in rows:
        ids = torch.tensor([row])
        total = total + model.module(input_ids=ids, labels=ids).loss * (len(row) - 1)
        count += len(row) - 1
    names = list(model.parameters())
    wanted = torch.autograd.grad(total / count, list(model.parameters().values()), allow_unused=True)
    found = Client(model, client="fedsgd:pack=16,packing=wrapped").update(TEXTS)
    assert found.known.batch_size == len(rows)
    for name, gradient in zip(names, wanted, strict=True):
        if gradient is not None:
            torch.testing.assert_close(found.tensors[name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("model", [LLAMA, GPT2], ids=["llama", "gpt2"])
def test_texts_of_their_own_are_what_the_library_makes_of_restarted_positions(model: TextModel) -> None:
    """The library keeps packed texts apart where positions begin anew; the first token of a text is not predicted."""
    rule = ClientRule.parse("fedavg:pack=60,steps=1")
    batch, targets = model.goal.examples(model, TEXTS, None, rule)
    assert isinstance(batch, SeparateTexts)
    assert len(batch) == 1
    places = batch.starts[0].nonzero()[:, 0].tolist()
    lengths = [b - a for a, b in zip(places, [*places[1:], batch.ids.shape[1]], strict=True)]
    assert len(lengths) == len(TEXTS)
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    labels = targets.clone()
    labels[batch.starts] = NOT_PREDICTED
    logits = model.module(input_ids=batch.ids, position_ids=positions, use_cache=False).logits
    wanted = F.cross_entropy(logits[0, :-1], labels[0, 1:])
    torch.testing.assert_close(model.batch_loss(batch, targets), wanted, rtol=1e-4, atol=1e-6)
    assert model.predictions(batch, targets) == int((labels[0, 1:] != NOT_PREDICTED).sum())


def test_a_step_takes_the_texts_of_its_rows_only() -> None:
    """One row a step: the first step is that of the texts in the first row."""
    whole = Client(LLAMA, client="fedavg:pack=32,steps=1,lr=0.01").update(TEXTS).tensors
    rule = ClientRule.parse("fedavg:pack=32,steps=1")
    batch, targets = LLAMA.goal.examples(LLAMA, TEXTS, None, rule)
    assert len(batch) == 2
    first, wanted = batch.part(slice(0, 1)).apart(targets[:1])
    assert 1 <= len(first) < len(TEXTS)
    gradients = torch.autograd.grad(
        LLAMA.loss(wanted, ids=first.ids, mask=first.mask), list(LLAMA.parameters().values()), allow_unused=True
    )
    for name, gradient in zip(LLAMA.parameters(), gradients, strict=True):
        if gradient is not None:
            torch.testing.assert_close(whole[name], 0.01 * gradient, rtol=2e-2, atol=1e-6)


def test_packed_completions_are_predicted_alone() -> None:
    rule = ClientRule.parse("fedsgd:pack=60,packing=wrapped,loss=completion,marker=w")
    texts = ["who paid now Rosa", "was it her"]
    batch, targets = GPT2.goal.examples(GPT2, texts, None, rule)
    predicted = [int(token) for token in targets[batch.mask] if token != NOT_PREDICTED]
    assert GPT2.tokenizer.decode(predicted) == " Rosa</s>as it her</s>"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("fedsgd:pack=8", "keeps texts whole"),
        ("fedsgd:pack=4000", "takes at most"),
        ("fedsgd:packing=wrapped", "belongs to pack"),
        ("fedavg:pack=32", "give steps"),
    ],
)
def test_what_cannot_be_packed_is_an_error_of_one_line(rule: str, message: str) -> None:
    with pytest.raises(GradleakError, match=message) as error:
        Client(LLAMA, client=rule).update(TEXTS)
    assert "\n" not in str(error.value)


def test_classifiers_and_defences_of_single_texts_refuse_rows(tiny_bert: TextModel) -> None:
    with pytest.raises(GradleakError, match="pack is for language models"):
        Client(tiny_bert, client="fedsgd:pack=32").update(TEXTS, [0, 1, 0])
    rows = LLAMA.goal.examples(LLAMA, TEXTS, None, ClientRule.parse("fedavg:pack=60,steps=1"))
    with pytest.raises(GradleakError, match="packed rows"):
        LLAMA.example_losses(*rows)


def test_a_text_longer_than_the_model_takes_is_cut_only_when_wrapped() -> None:
    long = " ".join(TEXTS * 6)
    assert len(LLAMA.tokenize([long])[0]) > LLAMA.max_length
    batch, _ = LLAMA.goal.examples(LLAMA, [long], None, ClientRule.parse("fedsgd:pack=32,packing=wrapped"))
    assert sum(batch.lengths) == len(LLAMA.tokenize([long])[0]) + 1
    with pytest.raises(GradleakError, match="at most"):
        Client(LLAMA).update([long])
