"""Lengths that the gradient shows."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TEXTS, secret_of, tiny_model

from gradleak import Client
from gradleak.attacks.evidence import lengths
from gradleak.attacks.evidence.lengths import _splits, length_guesses, longest_sentence


def test_lengths_are_read_from_position_rows(tiny):
    labels = [1] if tiny.task == "classification" else None
    for text in TEXTS:
        update = Client(tiny, known=()).update([text], labels)
        expected = tiny.encode([text]).lengths[0] if tiny.adapter.positions is not None else None
        assert longest_sentence(update, tiny) == expected


@pytest.mark.parametrize("sigma", [0.003, 0.01, 0.03])
def test_noise_never_makes_a_sentence_of_special_tokens_alone(tiny, sigma):
    """A row or two may stand out by chance; an attack must not take that for the length of an empty sentence."""
    sender = Client(tiny, known=("batch_size",), defenses=[f"noise:sigma={sigma}"])
    shortest = len(tiny.prefix) + len(tiny.suffix) + 1
    labels = None if tiny.task == "causal-lm" else [0]
    for number in range(4):
        found = longest_sentence(sender.update(TEXTS[:1], labels, secret_of(number)), tiny)
        assert found is None or found >= shortest


@given(st.integers(1, 4), st.integers(4, 12), st.integers(6, 40))
def test_length_guesses_fit_what_is_known(tiny_bert, size, longest, total):
    for guess in length_guesses(tiny_bert, size, longest, total):
        assert len(guess) == size
        assert max(guess) == longest
        assert min(guess) >= 3


@given(st.integers(1, 5), st.integers(1, 3), st.integers(3, 9), st.integers(1, 45))
def test_splits_come_in_the_order_of_a_full_list(parts, low, high, total):
    every = itertools.combinations_with_replacement(range(high, low - 1, -1), parts)
    fitting = [split for split in every if sum(split) == total]
    assert list(_splits(total, parts, low, high)) == sorted(fitting, key=lambda split: sum(n * n for n in split))


def test_noise_is_not_looked_for_in_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of all matrices of smollm2 take a minute, and noise makes every one of them full."""
    model = tiny_model("llama", "causal-lm", layers=8)
    looked_at: list[torch.Size] = []

    def rank(matrix: torch.Tensor) -> int:
        looked_at.append(matrix.shape)
        return min(matrix.shape)

    monkeypatch.setattr(lengths, "numerical_rank", rank)
    assert lengths.total_tokens(Client(model).update(TEXTS[:1]), model, 1) is None
    assert len(looked_at) <= lengths.MOST_FULL * 7
