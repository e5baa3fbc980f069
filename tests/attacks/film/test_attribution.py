"""How much of an update each token explains."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import TEXTS, secret_of

from gradleak import Client, TextModel, attack
from gradleak.attacks.film.attribution import Attribution, inverted
from gradleak.attacks.film.readers import UpdateReader


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


def test_what_stands_above_noise_is_told_apart_by(writer: TextModel) -> None:
    """Turned upside down, what noise adds to small singular values counted more than all the batch."""
    clean = Client(writer).update(TEXTS[:1])
    sigma = 0.02 * float(clean.tensors[writer.adapter.parts[-1]["ffn_out"].weight_name].abs().max())
    noisy = Client(writer, defenses=[f"noise:sigma={sigma}"]).update(TEXTS[:1], secret=secret_of(0))
    attribution = Attribution(writer, noisy)
    assert attribution.noise == pytest.approx(sigma, rel=0.2)
    own, other = attribution.shares(writer.encode(TEXTS[:2]).sentences())
    assert float(own.mean()) > 0.5
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
