"""Tokens that a noisy update points at."""

from __future__ import annotations

from tiny import ALL_KNOWN, TEXTS, secret_of, tiny_model

from gradleak import Client
from gradleak.attacks.evidence.hints import hints
from gradleak.attacks.evidence.lengths import longest_sentence


def test_hints_name_the_tokens_under_noise() -> None:
    """Noise that leaves no proof still leaves the true tokens among the likeliest at their places."""
    model = tiny_model("bert", "classification", layers=4, width=128)
    update = Client(model, ALL_KNOWN, defenses=["noise:sigma=0.003"]).update(TEXTS[:1], [1], secret_of(0))
    row = model.encode(TEXTS[:1]).sentences()[0]
    found = hints(update, model, len(row), 1, keep=10)
    assert found is not None
    places = range(1, len(row) - 1)
    assert sum(row[place] in found.places[place].tolist() for place in places) >= 0.7 * len(places)
    assert longest_sentence(update, model) == len(row)
