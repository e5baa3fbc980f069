"""Certificates prove only what was there."""

from __future__ import annotations

from tiny import TEXTS, bare_update, wide_model

from gradleak.attacks.spans.certify import Certifier


def test_certificates_refuse_what_was_not_there() -> None:
    model = wide_model("bert", "classification")
    certifier = Certifier(model, bare_update(model, TEXTS[:2]))
    true = model.encode(TEXTS[:1]).sentences()[0]
    assert certifier.check(true).holds
    for place in range(1, len(true) - 1):
        other = list(true)
        other[place] = true[1 + place % (len(true) - 2)]
        if other != true:
            assert not certifier.check(other).holds
    assert not certifier.check(model.encode(TEXTS[2:]).sentences()[0]).holds
