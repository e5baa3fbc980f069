"""The script that counts certificates over families and clients: what it draws, and that a wrong one is counted."""

from __future__ import annotations

import random

import certificates
import pytest
from certificates import CLIENTS, KINDS, drawn, measured, todo, total


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_what_they_are_called(kind):
    first, second, third = drawn(kind, random.Random(3))
    assert (first == second) is (kind == "twice")
    assert second.startswith(first) is (kind in ("twice", "begins alike"))
    assert (first.split()[-1] == first.split()[-2]) is (kind == "repeats a token")
    assert third not in (first, second)


def test_right_sentences_are_counted_as_right():
    kind, sentences, certified, wrong, _ = measured(("llama", "causal-lm"), "SGD", "different", 0)
    assert (kind, sentences, wrong) == ("different", 3, 0)
    assert certified > 0


def test_a_sentence_that_was_not_there_is_counted_as_wrong(monkeypatch):
    """The same update, and a truth that differs from it."""

    class Other(certificates.Client):
        def update(self, texts, labels=None, secret=None):
            return super().update([*texts[:2], "Rosa moved to ward six."], labels, secret)

    monkeypatch.setattr(certificates, "Client", Other)
    *_, certified, wrong, _ = measured(("llama", "causal-lm"), "SGD", "different", 0)
    assert wrong == 1 <= certified


def test_every_family_and_client_has_its_turn_and_hopeless_ones_are_left(monkeypatch):
    monkeypatch.setattr(certificates, "TEXT_CASES", [("bert", "classification"), ("llama", "causal-lm")])
    cells, seen = {}, []
    for key, _, _, kind, number in todo(cells):
        seen.append((key, kind, number))
        cells.setdefault(key, []).append((kind, 3, 0 if "AdamW" in key else 3, 0, 0.0))
        if len(seen) == 5 * len(certificates.TEXT_CASES) * len(CLIENTS):
            break
    assert len(cells) == len(certificates.TEXT_CASES) * len(CLIENTS)
    assert {len(done) for key, done in cells.items() if "AdamW" in key} == {certificates.PATIENCE}
    assert len({kind for key, kind, _ in seen if key == "bert, classification, SGD"}) == len(KINDS)
    assert total(cells)[1] == 3 * sum(len(done) for key, done in cells.items() if "AdamW" not in key)
