"""Deployed defences against an attacker who takes them into account, beside one who ignores them."""

import pytest
from tiny import tiny_model

from gradleak import audit
from gradleak.data.texts import read_data

DEPLOYED = [
    "percentile", "svt", "adaptiveclip", "localdp:epsilon=8000", "tree:noise=0.01,rounds=8,round=3",
    "dpsgd:noise=0.01,clip=1.0", "wire:format=float16", "wire:format=bfloat16", "wire:format=blockwise8",
    "wire:format=normfloat4",
]  # fmt: skip


@pytest.mark.parametrize("defense", DEPLOYED)
def test_to_adapt_is_not_clearly_worse_than_to_ignore(defense):
    model = tiny_model("bert", "classification")
    settings = {"data": read_data(), "attack": "auto", "trials": 2, "known": ("batch_size",), "defenses": (defense,)}
    adapted, ignored = (
        audit(model, **settings, options={"steps": 5, "prior": "none", "adapt": adapt}, budget=6.0).summary["rougeL"]
        for adapt in (True, False)
    )
    assert adapted.high >= ignored.mean
