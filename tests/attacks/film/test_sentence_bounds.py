"""Tokens that sentences begin and end with."""

from __future__ import annotations

import torch

from gradleak import TextModel
from gradleak.attacks.film.sentence_bounds import end_tokens, first_tokens


def test_first_and_last_tokens(writer: TextModel) -> None:
    bag = torch.arange(5, len(writer.token_embedding))
    starts = list(first_tokens(writer, bag))
    assert starts == writer.prefix if writer.prefix else len(starts) > 10
    assert writer.tokenizer.get_vocab()["."] in end_tokens(writer)
