"""Dummies before the search: special tokens in place, the rest free."""

import torch
from tiny import ALL_KNOWN, TEXTS

from gradleak import Client
from gradleak.attacks.evidence.knowledge import gather
from gradleak.attacks.search.empty_dummies import empty_dummies


def test_special_tokens_are_in_place_and_fixed(tiny):
    labels = [0, 1, 1] if tiny.task == "classification" else None
    update = Client(tiny, ALL_KNOWN).update(TEXTS, labels)
    dummies, fixed = empty_dummies(tiny, gather(update, tiny, "test", 1), [0])
    batch = tiny.encode(TEXTS)
    assert torch.equal(dummies.mask[0], batch.mask)
    framed = fixed[0] & batch.mask
    assert int(framed.sum()) == 3 * (len(tiny.prefix) + len(tiny.suffix))
    torch.testing.assert_close(dummies.embeds[0][framed], tiny.embed(batch.ids)[framed])
