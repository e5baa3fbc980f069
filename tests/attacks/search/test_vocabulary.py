"""From embeddings to tokens."""

import torch

from gradleak.attacks.search.vocabulary import Vocabulary


def test_nearest_finds_every_token_and_no_special_one(tiny):
    vocabulary = Vocabulary.of(tiny)
    tokens, cosines = vocabulary.nearest(3.0 * tiny.token_embedding[vocabulary.ids])
    assert torch.equal(tokens, vocabulary.ids)
    torch.testing.assert_close(cosines, torch.ones_like(cosines), rtol=1e-4, atol=1e-4)
    assert not set(vocabulary.ids.tolist()) & set(tiny.tokenizer.all_special_ids)
