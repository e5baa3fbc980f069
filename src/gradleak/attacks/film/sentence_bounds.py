"""The tokens that sentences may begin and end with."""

from __future__ import annotations

import torch
from torch import Tensor

from gradleak.models.text import TextModel

# Beside tokens with a capital letter, so many that the model itself would begin with.
LIKELY = 64
SENTENCE_ENDS = (".", "!", "?")
LINE_ENDED = ".\n"


def first_tokens(model: TextModel, bag: Tensor) -> dict[int, float]:
    """The tokens of a bag that a sentence may begin with, likeliest first, with their log-probabilities.

    Where the tokenizer puts a token of its own before every text, it is the only candidate.
    """
    if model.prefix:
        return {model.prefix[-1]: 0.0}
    likely = _log_probs_at_line_start(model)[bag]
    capital = torch.tensor([model.decode([token])[:1].isupper() for token in bag.tolist()], device=bag.device)
    closing = end_tokens(model)
    ends = torch.tensor([token in closing for token in bag.tolist()], device=bag.device)
    chosen = (capital | (likely >= likely.sort(descending=True).values[:LIKELY][-1])) & ~ends
    if not bool(chosen.any()):  # a text of punctuation alone
        chosen = torch.ones_like(chosen)
    order = likely.masked_fill(~chosen, float("-inf")).argsort(descending=True)[: int(chosen.sum())]
    return {int(bag[place]): float(likely[place]) for place in order}


def end_tokens(model: TextModel) -> frozenset[int]:
    """The tokens that end a sentence: its punctuation, and the model's own end."""
    vocabulary = model.tokenizer.get_vocab()
    marks = {index for mark in SENTENCE_ENDS for index in (vocabulary.get(mark), vocabulary.get(f"Ġ{mark}"))}
    return frozenset({index for index in marks if index is not None} | set(model.tokenizer.all_special_ids))


def _log_probs_at_line_start(model: TextModel) -> Tensor:
    """The log-probability of every token at the start of a new line.

    After a start token alone many models do not expect the beginning of a sentence.
    """
    ids = torch.tensor([model.tokenizer(LINE_ENDED, add_special_tokens=False)["input_ids"]], device=model.device)
    with torch.no_grad():
        return model.logits(ids=ids, mask=torch.ones_like(ids))[0, -1].log_softmax(dim=0)
