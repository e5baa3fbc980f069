"""Noise, read off spectra."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TEXTS, secret_of, tiny_model

from gradleak import Client
from gradleak.attacks.evidence.noise import noise_level, tail_level


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
