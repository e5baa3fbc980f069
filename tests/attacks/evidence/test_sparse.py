"""Tokens of a batch from LoRA's few rows: the set that explains them, and nothing where something covers them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TEXTS, tiny_model

from gradleak import Client, TextModel, attack, load_model
from gradleak.attacks.evidence.sparse import combination

pytest.importorskip("peft")


def adapted(rank: int, b: float = 0.2) -> TextModel:
    below = tiny_model("llama", "causal-lm", layers=2, width=96)
    lora = f"r={rank},targets=query+value,b={b}"
    return load_model(below.module, tokenizer=below.tokenizer, task="causal-lm", lora=lora)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 24), st.integers(4, 12), st.integers(0, 1000))
def test_few_vectors_of_many_are_found_by_their_sums(count: int, rows: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    atoms = F.normalize(torch.randn(400, 64, generator=generator), dim=1)
    chosen = torch.randperm(400, generator=generator)[:count]
    sums = torch.randn(rows, count, generator=generator).double() @ atoms[chosen].double()
    found = combination(sums, atoms)
    assert found.certified
    assert set(found.sizes) == set(chosen.tolist())


def test_noise_proves_no_set() -> None:
    generator = torch.Generator().manual_seed(0)
    atoms = F.normalize(torch.randn(400, 64, generator=generator), dim=1)
    sums = torch.randn(8, 10, generator=generator).double() @ atoms[:10].double()
    noisy = sums + 1e-2 * torch.randn(sums.shape, generator=generator).double()
    assert not combination(noisy, atoms).certified


@pytest.mark.parametrize("rank", [2, 4])
def test_all_tokens_of_a_batch_of_many_more_tokens_than_the_rank(rank: int) -> None:
    model = adapted(rank)
    (found,) = attack(Client(model).update(TEXTS), model, "bag")
    rows = model.encode(TEXTS).sentences()
    named = set(model.tokenizer.convert_tokens_to_ids(list(found.bag)))
    assert named == {token for row in rows for token in model.content(row[:-1])}


def test_a_first_round_shows_no_tokens_this_way() -> None:
    model = adapted(4, b=0.0)
    (found,) = attack(Client(model).update(TEXTS), model, "bag")
    assert not found.bag
