"""Noise, read off spectra."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TEXTS, secret_of, tiny_model

from gradleak import Client
from gradleak.attacks.evidence.noise import added_noise, noise_level, tail_level
from gradleak.attacks.evidence.rows import row_noise
from gradleak.attacks.spans.certify import attention_parts, joint_span


@settings(deadline=None, max_examples=15)
@given(rank=st.integers(0, 10), level=st.sampled_from([1e-5, 1e-3, 1.0]), seed=st.integers(0, 1000))
def test_noise_is_read_off_the_tail(rank: int, level: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    signal = torch.randn(120, rank, generator=generator) @ torch.randn(rank, 90, generator=generator)
    noisy = signal * level * 3 + level * torch.randn(120, 90, generator=generator)
    assert tail_level(torch.linalg.svdvals(noisy), noisy.shape) == pytest.approx(level, rel=0.1)


def test_noise_level_of_an_update() -> None:
    model = tiny_model("bert", "classification", layers=4, width=128)
    assert noise_level(Client(model).update(TEXTS[:1], [1]), model) == 0
    noisy = Client(model, defenses=["noise:sigma=0.05"]).update(TEXTS[:1], [1], secret_of(0))
    assert noise_level(noisy, model) == pytest.approx(0.05, rel=0.1)
    assert added_noise(noisy, model) == pytest.approx(0.05, rel=0.1)


def test_a_batch_that_fills_every_matrix_is_not_noise() -> None:
    """Its spectra end nowhere, as those of noise do; but rows of tokens that were not there are empty."""
    model = tiny_model("bert", "classification", layers=2, width=16)
    texts = [" ".join(words[n:] + words[:n]) for words in map(str.split, TEXTS) for n in range(len(words))]
    update = Client(model).update(texts, [n % 2 for n in range(len(texts))])
    assert all(joint_span(update.tensors, [part]) is None for part in attention_parts(model, 1))
    assert noise_level(update, model) > 0
    assert added_noise(update, model) == 0


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_noise_of_a_table_is_read_off_its_rows(family: str) -> None:
    """Before training all tokens are equally likely, and the rows of a tied table equally long, without any noise."""
    model = tiny_model(family, "causal-lm", layers=2, width=32)
    table = model.adapter.parameter_of(model.adapter.token_embedding)
    noisy = Client(model, defenses=["noise:sigma=1e-3"]).update(TEXTS[:1], secret=secret_of(0))
    assert added_noise(noisy, model) == pytest.approx(1e-3, rel=0.1)
    assert row_noise(Client(model).update(TEXTS[:1]).tensors[table]) == 0
