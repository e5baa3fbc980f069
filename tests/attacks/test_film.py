"""FILM and its parts: shares of an update, beam search, reordering, and sentences of a real language model."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TEXTS, tiny_model
from torch import Tensor

from gradleak import Client, GradleakError, TextModel, attack, load_model
from gradleak.attacks.evidence.rows import leverages, predicted_rows, standing_out
from gradleak.attacks.evidence.tokens import _counts, tokens_of
from gradleak.attacks.film.attribution import Attribution, inverted
from gradleak.attacks.film.beam import BeamSettings, Grown, NGrams, RemainingTokens, distinct, search
from gradleak.attacks.film.readers import ModelReader, UpdateReader
from gradleak.attacks.film.rearrange import rearranged
from gradleak.attacks.film.sentence_bounds import end_tokens, first_tokens
from gradleak.bench.beam import WholeReader, _grown
from gradleak.core.budget import Budget
from gradleak.matching.sizes import GradientSizes

FAMILIES = ("gpt2", "llama")


@pytest.fixture(params=FAMILIES)
def writer(request: pytest.FixtureRequest) -> TextModel:
    """A causal language model of each family, with enough layers that some stay below the moved ones."""
    return tiny_model(request.param, "causal-lm", layers=3, width=32)


# --- shares ---------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.integers(0, 99))
def test_an_inverted_matrix_times_the_matrix_is_its_rank(rows: int, columns: int, rank: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    left, right = torch.randn(rows, rank, generator=generator), torch.randn(rank, columns, generator=generator)
    matrix = (left @ right).double()
    found = inverted(matrix)
    assert found.rank <= min(rows, columns, rank)
    assert float((matrix * found.direction).sum()) == pytest.approx(found.rank, rel=1e-6)


def test_the_tokens_of_the_batch_explain_one_each_on_average(writer: TextModel) -> None:
    update = Client(writer).update(TEXTS)
    shares = torch.cat(Attribution(writer, update).shares(writer.encode(TEXTS).sentences()))
    assert float(shares.mean()) == pytest.approx(1, abs=0.05)


def test_other_sentences_explain_less(writer: TextModel) -> None:
    attribution = Attribution(writer, Client(writer).update(TEXTS[:1]))
    own, other = attribution.shares(writer.encode(TEXTS[:2]).sentences())
    assert float(other.mean()) < 0.5 * float(own.mean())


def test_reading_token_by_token_gives_the_same_shares(writer: TextModel) -> None:
    attribution = Attribution(writer, Client(writer).update(TEXTS))
    sentence = writer.encode(TEXTS[:1]).sentences()[0]
    whole = attribution.shares([sentence])[0]
    bag = torch.arange(len(writer.token_embedding))
    reader = UpdateReader(attribution, bag)
    judged = [reader.first(torch.tensor([sentence[:1], sentence[:1]]))[1]]
    for token in sentence[1:-1]:
        judged.append(reader.further(torch.tensor([1, 0]), torch.tensor([token, token]))[1])
    stepwise = torch.stack([each[0, token] for each, token in zip(judged, sentence[1:], strict=True)])
    assert torch.allclose(whole, stepwise, atol=1e-2)


def test_nothing_moves_where_nothing_was_sent(writer: TextModel) -> None:
    update = Client(writer, defenses=["layers:send=1"]).update(TEXTS)
    attribution = Attribution(writer, update)
    assert attribution.unit == 0
    plain, moved = attribution.reading().states(writer.encode(TEXTS[:1]).ids)
    assert torch.allclose(plain, moved, atol=1e-6)
    (found,) = attack(update, writer, "film", rounds=1, beams=4)
    assert any("no matrix of the upper layers" in note for note in found.notes)


def test_the_model_is_left_alone(writer: TextModel) -> None:
    before = {name: p.detach().clone() for name, p in writer.parameters().items()}
    layers = len(writer.adapter.layers)
    attack(Client(writer).update(TEXTS), writer, "film", rounds=2, beams=4, groups=2)
    assert all(torch.equal(before[name], p) for name, p in writer.parameters().items())
    assert writer.module.config.num_hidden_layers == layers
    assert [m.layer_idx for m in writer.module.modules() if hasattr(m, "layer_idx")] == list(range(layers))


# --- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("spans", [True, False])
def test_a_shared_table_still_tells_its_tokens(spans: bool) -> None:
    model = tiny_model("gpt2", "causal-lm", layers=3, width=32)
    truth = {token for sentence in model.encode(TEXTS).sentences() for token in sentence}
    found = tokens_of(model, Client(model).update(TEXTS), spans=spans)
    assert len(truth & set(found.scores)) >= 0.9 * len(truth)
    assert found.counts
    assert set(found.counts) <= set(found.scores)


def test_frozen_embeddings_hide_the_rows_but_not_the_span() -> None:
    model = tiny_model("gpt2", "causal-lm", layers=3, width=32)
    update = Client(model, defenses=["frozen"]).update(TEXTS[:1])
    (sentence,) = model.encode(TEXTS[:1]).sentences()
    assert not tokens_of(model, update, spans=False).scores
    assert set(tokens_of(model, update).scores) == set(sentence[:-1])


@given(st.integers(0, 99), st.integers(1, 30))
def test_only_tokens_that_came_are_pulled(seed: int, predicted: int) -> None:
    """A head's gradient made by hand: states with something in common, probabilities, and the labels' own share."""
    generator = torch.Generator().manual_seed(seed)
    states = 1 + 0.5 * torch.randn(predicted, 24, generator=generator).double()
    chances = torch.randn(predicted, 400, generator=generator).double().softmax(dim=1)
    labels = torch.randint(400, (predicted,), generator=generator)
    gradient = (chances - torch.nn.functional.one_hot(labels, 400)).T @ states / predicted
    assert set(predicted_rows(gradient).nonzero()[:, 0].tolist()) == set(labels.tolist())


@given(st.integers(0, 99))
def test_leverages_are_shares_of_the_rank(seed: int) -> None:
    table = torch.randn(50, 6, generator=torch.Generator().manual_seed(seed))
    levers = leverages(table)
    assert float(levers.sum()) == pytest.approx(6, abs=1e-3)
    assert float(levers.min()) >= 0
    table[7] *= 100
    assert 7 in standing_out(leverages(table), 1).tolist()


# --- search ---------------------------------------------------------------------------------------


def greedy(model: TextModel, bag: Tensor, start: int, length: int) -> list[int]:
    """The plain way: the whole sentence through the whole model for every token."""
    tokens = [start]
    while len(tokens) < length:
        ids = torch.tensor([tokens])
        with torch.no_grad():
            logits = model.logits(ids=ids, mask=torch.ones_like(ids))[0, -1, bag]
        tokens.append(int(bag[logits.argmax()]))
    return tokens


def test_one_beam_is_greedy_search(writer: TextModel) -> None:
    bag = torch.arange(5, 60)
    settings = BeamSettings(beams=1, repeat=0, length=7, weight=0.0)
    (found,) = search(
        ModelReader(writer, bag),
        bag,
        [Grown((7,), (), ())],
        settings,
        ends=lambda token: False,
        forbidden=NGrams(2),
        budget=Budget(),
    )
    assert list(found.tokens) == greedy(writer, bag, 7, 7)


def test_a_search_keeps_to_its_rules(writer: TextModel) -> None:
    bag = torch.arange(10, 40)
    forbidden = NGrams(2)
    forbidden.add([10, 11, 12])
    settings = BeamSettings(beams=8, repeat=1, length=12, weight=0.0)
    found = search(
        ModelReader(writer, bag),
        bag,
        [Grown((token,), (), ()) for token in (10, 11, 12)],
        settings,
        ends=lambda token: token == 39,
        forbidden=forbidden,
        budget=Budget(),
    )
    assert found
    for one in found:
        assert set(one.tokens) <= set(bag.tolist())
        assert len(set(one.tokens)) == len(one.tokens)
        assert not {(10, 11), (11, 12)} & set(pairwise(one.tokens))
        assert 39 not in one.tokens[:-1]
        assert len(one.log_probs) == len(one.tokens) - 1


def test_without_shares_no_token_is_used_too_often_and_ends_come_late(writer: TextModel) -> None:
    bag = torch.arange(5, 40)
    limits = {token: 1 + token % 2 for token in bag.tolist()}
    settings = BeamSettings(beams=8, repeat=0, length=12, weight=0.0, least=6, limits=limits)
    found = search(
        ModelReader(writer, bag),
        bag,
        [Grown((7,), (), ()), Grown((8,), (), ())],
        settings,
        ends=lambda token: token % 3 == 0,
        forbidden=NGrams(4),
        budget=Budget(),
    )
    assert found
    for one in found:
        assert len(one.tokens) == 12 or (len(one.tokens) >= 6 and one.tokens[-1] % 3 == 0)
        assert all(one.tokens.count(token) <= limits[token] for token in one.tokens)


def test_distinct_keeps_the_best_of_what_overlaps() -> None:
    short = Grown((1, 2, 3, 4), (0, 0, 0), (1, 1, 1))
    whole = Grown((1, 2, 3, 4, 9), (0, 0, 0, 0), (1, 1, 1, 0.2))
    other = Grown((5, 6, 7, 8), (0, 0, 0), (0.5, 0.5, 0.5))
    assert distinct([other, short, whole], 3, lambda token: token == 9) == [whole, other]


@given(st.lists(st.integers(0, 5), min_size=2, max_size=12), st.integers(1, 4))
def test_ngrams_know_what_follows(tokens: list[int], size: int) -> None:
    grams = NGrams(size)
    grams.add(tokens)
    for end in range(size, len(tokens) + 1):
        assert tokens[end - 1] in grams.after(tokens[: end - 1])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=10))
def test_a_remaining_gives_a_sentence_once(tokens: list[int]) -> None:
    remaining = RemainingTokens({token: tokens.count(token) for token in tokens})
    assert remaining.take(tokens)
    assert not remaining.take(tokens)
    assert remaining.take([99])
    assert RemainingTokens({}).take(tokens)


# --- reordering -----------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.lists(st.integers(0, 9), min_size=2, max_size=20), st.integers(0, 99))
def test_reordering_never_makes_it_worse_and_uses_the_bag(tokens: list[int], seed: int) -> None:
    def score(sentences: object) -> Tensor:
        return torch.tensor([float(sum(abs(a - b) for a, b in pairwise(s))) for s in sentences])

    best, value = rearranged(
        tokens, score, [3, 4], 5, torch.Generator().manual_seed(seed), ends=lambda token: token == 9
    )
    assert value <= float(score([tokens])[0])
    assert value == float(score([best])[0])
    assert set(best) <= {*tokens, 3, 4}


def test_the_norms_are_those_of_whole_gradients(writer: TextModel) -> None:
    sentences = writer.encode(TEXTS).sentences()
    losses, norms = GradientSizes(writer)(sentences)
    for number, sentence in enumerate(sentences):
        ids = torch.tensor([sentence])
        loss = writer.loss(ids, ids=ids, mask=torch.ones_like(ids, dtype=torch.bool))
        gradients = torch.autograd.grad(loss, list(writer.parameters().values()))
        wanted = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
        assert float(losses[number]) == pytest.approx(float(loss.detach()), rel=1e-5)
        assert float(norms[number]) == pytest.approx(wanted, rel=1e-4)


# --- the attack -----------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["explained", "film"])
def test_it_repeats_itself_and_says_what_it_found(writer: TextModel, score: str) -> None:
    update = Client(writer).update(TEXTS)
    first, again = (
        attack(update, writer, "film", score=score, rounds=2, beams=8, groups=4, keep=0.0, reorder=1, seed=3)[0]
        for _ in range(2)
    )
    assert first.sentences
    assert [s.tokens for s in first.sentences] == [s.tokens for s in again.sentences]
    assert first.found == ["bag", "lengths"]
    names = set(first.bag) | set(writer.tokenizer.convert_ids_to_tokens(list(end_tokens(writer))))
    for sentence in first.sentences:
        assert set(writer.tokenizer.convert_ids_to_tokens(sentence.tokens)) <= names
    ranks = [sentence.confidence for sentence in first.sentences]
    assert ranks == sorted(ranks, reverse=True)


def test_a_budget_ends_it(writer: TextModel) -> None:
    (found,) = attack(Client(writer).update(TEXTS), writer, "film", budget=Budget(seconds=0.0))
    assert found.status == "budget-exhausted"


@pytest.mark.parametrize("text", ["!?", ".."])
def test_a_text_of_punctuation_alone(writer: TextModel, text: str) -> None:
    """No token of it looks like a beginning."""
    (found,) = attack(Client(writer).update([text]), writer, "film", rounds=2, beams=4)
    assert found.status == "completed"
    assert set(text) <= set("".join(found.bag))


def test_an_update_too_large_to_invert_is_told(writer: TextModel) -> None:
    update = Client(writer).update(TEXTS)
    huge = dataclasses.replace(update, tensors={name: 1e30 * t for name, t in update.tensors.items()})
    (found,) = attack(huge, writer, "film", rounds=1, beams=4)
    assert any("no matrix of the upper layers" in note for note in found.notes)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_counts_are_in_the_ratio_of_the_pulls(pulls: list[float]) -> None:
    """A single occurrence is never taken for less than the smallest pull, so counts stay within the ratios."""
    counts = _counts(torch.tensor(pulls), list(range(len(pulls))), None)
    assert all(1 <= counts[token] <= round(own / min(pulls)) + 1 for token, own in enumerate(pulls))


def test_a_classifier_is_refused(tiny_bert: TextModel) -> None:
    update = Client(tiny_bert).update(TEXTS, [0, 1, 1])
    with pytest.raises(GradleakError, match="must be a causal language model"):
        attack(update, tiny_bert, "film")


def test_starts_and_ends(writer: TextModel) -> None:
    bag = torch.arange(5, len(writer.token_embedding))
    starts = list(first_tokens(writer, bag))
    assert starts == writer.prefix if writer.prefix else len(starts) > 10
    assert writer.tokenizer.get_vocab()["."] in end_tokens(writer)


def test_sentences_of_a_real_language_model() -> None:
    pytest.importorskip("gguf", reason="smollm2 is converted once, with gradleak[smollm2]")
    model = load_model("smollm2", task="causal-lm")
    texts = ["The loan was refused on Monday.", "Please call Rosa about the new contract."]
    (found,) = attack(Client(model).update(texts), model, "film", rounds=1, beams=16, groups=8)
    assert found.sentences[0].text in texts


def test_both_ways_of_searching_find_the_same(writer: TextModel) -> None:
    bag = torch.arange(5, 45)
    whole, cached = (_grown(kind(writer, bag), bag, beams=6, length=8) for kind in (WholeReader, ModelReader))
    assert [one.tokens for one in whole] == [one.tokens for one in cached]
    for one, other in zip(whole, cached, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)
