"""Exact recovery: whole batches, proved, and the reasons where it cannot."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from tiny import ALL_CASES, CASES, TEXTS, bare_update, secret_of, tiny_model, tiny_module, tiny_tokenizer, wide_model

from gradleak import Client, TextModel, attack, load_model
from gradleak.attacks.exact.attack import recover
from gradleak.core.budget import Budget
from gradleak.updates.gradient import undo
from gradleak.updates.update import Update


def quiet(text: str) -> None:
    pass


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_recovers_whole_batches_of_every_family(case: tuple[str, str]) -> None:
    model = tiny_model(*case, layers=3, width=128)
    placed = model.adapter.family.kind == "decoder" or model.adapter.positions is not None
    # Where no positions are added the order is searched for too, which takes long without the batch size.
    texts = TEXTS if case in CASES else TEXTS[:2]
    update = bare_update(model, texts) if placed else Client(model, ("batch_size",)).update(texts, [0, 1])
    (found,) = attack(update, model, "exact")
    truth = {tuple(model.content(row)) for row in model.encode(texts).sentences()}
    assert {tuple(sentence.tokens) for sentence in found.sentences} == truth
    assert all(sentence.certified for sentence in found.sentences)
    assert all(sentence.energy < sentence.threshold for sentence in found.sentences)
    assert found.status == "completed"
    if model.task == "classification":
        right = {tuple(model.content(row)): n % 2 for n, row in enumerate(model.encode(texts).sentences())}
        assert {tuple(s.tokens): y for s, y in zip(found.sentences, found.labels, strict=True)} == right


def test_norms_with_weights_of_zero_hide_nothing() -> None:
    """As in the real Gemma 3, whose norms multiply by one plus their weight and have weights of minus one."""
    model = wide_model("gemma3_text", "causal-lm")
    with torch.no_grad():
        for name, weight in model.module.named_parameters():
            if "layernorm" in name:
                weight[[3, 77]] = -1.0
    (found,) = attack(bare_update(model, TEXTS[:2]), model, "exact")
    assert {s.text for s in found.sentences if s.certified} == {model.decode(r) for r in model.encode(TEXTS[:2]).ids}


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_works_without_embedding_gradients(family: str) -> None:
    model = wide_model(family, "classification")
    update = Client(model, ("batch_size",), defenses=["frozen"]).update(TEXTS[:2], [0, 1])
    assert not any("embeddings.weight" in name for name in update.tensors)
    (found,) = attack(update, model, "exact")
    truth = {tuple(model.content(row)) for row in model.encode(TEXTS[:2]).sentences()}
    assert {tuple(sentence.tokens) for sentence in found.sentences if sentence.certified} == truth


def test_a_sentence_that_occurs_twice_weighs_twice() -> None:
    model = wide_model("bert", "classification")
    outcome = recover(
        undo(bare_update(model, [TEXTS[0], TEXTS[1], TEXTS[0]], [0, 1, 0]), model), model, 0, Budget(), quiet
    )
    shares = sorted(round(3 * sentence.share) for sentence in outcome.sentences)
    assert shares == [1, 2]
    assert outcome.complete


def sends(model: TextModel, rows: list[list[int]], labels: list[int]) -> Update:
    """What a client sends of sentences given as tokens, special ones left out."""
    batch = model.pad([[*model.prefix, *row, *model.suffix] for row in rows])
    targets = batch.ids if model.task == "causal-lm" else torch.tensor(labels)
    loss = model.loss(targets, ids=batch.ids, mask=batch.mask)
    parameters = model.parameters()
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    tensors = {name: g for name, g in zip(parameters, gradients, strict=True) if g is not None}
    return dataclasses.replace(bare_update(model, TEXTS[:1]), tensors=tensors)


def test_a_beginning_is_not_proved_as_a_sentence() -> None:
    """The states of a run of one token grow so alike that its continuations drown: only the beginning was found."""
    model = tiny_model("llama", "classification", width=128)
    (found,) = attack(sends(model, [[380] * 6] * 2, [0, 1]), model, "exact")
    assert [s.tokens for s in found.sentences if s.certified] in ([], [[380] * 6])


@pytest.mark.parametrize("task", ["classification", "causal-lm"])
@pytest.mark.parametrize("runs", [[[50] * 3], [[50, 50, 60, 61]], [[50] * 3, [80, 81, 82]]], ids=str)
def test_without_positions_or_a_first_token_runs_are_not_proved(task: str, runs: list[list[int]]) -> None:
    """There a token behind copies of itself looks like the token alone, so nothing tells how long the run is."""
    tokenizer = tiny_tokenizer("gpt2")
    module = tiny_module("llama", task, len(tokenizer), layers=3, width=64, seed=0)
    model = load_model(module, tokenizer=tokenizer, task=task)  # type: ignore[arg-type]
    assert not model.prefix
    (found,) = attack(sends(model, runs, [0] * len(runs)), model, "exact")
    proved = [s.tokens for s in found.sentences if s.certified]
    assert all(tokens in runs for tokens in proved)
    assert all(row in proved for row in runs if len(set(row)) > 1)


def test_sentences_found_must_add_up_to_the_update() -> None:
    """A run whose tokens' states are too alike for the rank to count, beside sentences that are found whole."""
    model = tiny_model("llama", "classification", layers=3, width=32)
    long, short = [340, 366, 27, 366, 340, 340, 27, 340, 27, 366], [340, 340]
    rows = [[366] * 5, long, [366] * 5, short, [366] * 5, long]
    (found,) = attack(sends(model, rows, [1, 0, 0, 0, 1, 1]), model, "exact")
    assert all(s.tokens in rows for s in found.sentences if s.certified)
    assert any(s.tokens not in rows for s in found.sentences)
    assert "gradient-left" in {reason.kind for reason in found.reasons}


def test_a_sentence_that_another_begins_with_is_missed_and_that_is_said() -> None:
    model = wide_model("gpt2", "classification")
    (found,) = attack(sends(model, [[5, 6, 7, 8, 9], [5, 6, 7], [20, 21, 22]], [0, 1, 1]), model, "exact")
    proved = [s.tokens for s in found.sentences if s.certified]
    assert sorted(proved) == [[5, 6, 7, 8, 9], [20, 21, 22]]
    assert "gradient-left" in {reason.kind for reason in found.reasons}


@pytest.mark.parametrize("seed", range(3))
def test_labels_of_sentences_that_differ_in_the_last_token_are_right_or_open(seed: int) -> None:
    module = tiny_module("gpt2", "classification", len(tiny_tokenizer("gpt2")), layers=3, width=64, seed=seed)
    module.score = torch.nn.Linear(64, 5, bias=False)
    module.config.num_labels = 5
    model = load_model(module, tokenizer=tiny_tokenizer("gpt2"), task="classification")
    update = sends(model, [[5, 6, 7, last] for last in (50, 60, 70)], [0, 2, 4])
    outcome = recover(undo(update, model), model, 0, Budget(), quiet)
    right = {50: 0, 60: 2, 70: 4}
    assert {s.tokens[-1] for s in outcome.sentences} == set(right)
    assert all(s.label in (None, right[s.tokens[-1]]) for s in outcome.sentences)
    assert any(s.label is not None for s in outcome.sentences)


@pytest.mark.parametrize(("scale", "known"), [(3.0, ()), (10.0, ("batch_size",))], ids=str)
def test_an_update_of_the_sum_of_losses_is_recovered_whole(scale: float, known: tuple[str, ...]) -> None:
    """The first sentence's share is then that of a whole batch, which must not end the search."""
    model = wide_model("bert", "classification")
    update = Client(model, known).update(TEXTS, [0, 1, 0])
    update = dataclasses.replace(update, tensors={name: scale * t for name, t in update.tensors.items()})
    outcome = recover(undo(update, model), model, 0, Budget(), quiet)
    assert {tuple(s.tokens) for s in outcome.sentences} == set(map(tuple, model.encode(TEXTS).sentences()))
    assert outcome.complete


def test_more_tokens_than_the_rank_limit_is_said() -> None:
    model = tiny_model("bert", "classification", width=16)
    (found,) = attack(bare_update(model, TEXTS), model, "exact")
    assert not any(sentence.certified for sentence in found.sentences)
    assert any("rank limit" in note and "16" in note for note in found.notes)
    assert any(reason.kind == "no-gap" and reason.numbers["limit"] == 16 for reason in found.reasons)


def test_tokens_that_the_first_layer_proves_are_given_where_sentences_are_too_many() -> None:
    """Without learned positions a token that recurs takes one dimension of the first layer, many of the next."""
    model = tiny_model("llama", "causal-lm", layers=4, width=64)
    words, rng = " ".join(TEXTS[:2]).split(), random.Random(0)
    texts = [" ".join(rng.sample(words, 6)) for _ in range(14)]
    (found,) = attack(bare_update(model, texts), model, "exact")
    assert not found.sentences
    assert [reason.kind for reason in found.reasons] == ["no-gap"]
    read = {token for row in model.encode(texts).sentences() for token in row[:-1]}
    assert set(found.bag) == set(model.tokenizer.convert_ids_to_tokens(model.content(sorted(read))))


def test_noise_is_said_and_nothing_is_certified() -> None:
    model = wide_model("bert", "classification")
    update = Client(model, ("batch_size",), defenses=["noise:sigma=0.01"]).update(TEXTS[:1], [1], secret_of(0))
    (found,) = attack(update, model, "exact")
    assert not any(sentence.certified for sentence in found.sentences)
    assert found.notes


def test_missing_tensors_are_said() -> None:
    model = wide_model("bert", "classification")
    update = bare_update(model, TEXTS[:1])
    head = {name: t for name, t in update.tensors.items() if name.startswith("classifier")}
    (found,) = attack(dataclasses.replace(update, tensors=head), model, "exact")
    assert not found.sentences
    assert "does not hold" in found.notes[0]
