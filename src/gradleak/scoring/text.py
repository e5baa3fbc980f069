"""How close two texts are: pure functions, every score from 0 to 100."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any


def rouge(truth: str, guess: str) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L, F-measure.

    >>> rouge("the cat sat down", "down sat the cat")
    {'rouge1': 100.0, 'rouge2': 33.33..., 'rougeL': 50.0}
    """
    scores = _scorer().score(truth, guess)
    return {name: 100 * scores[name].fmeasure for name in ("rouge1", "rouge2", "rougeL")}


def words(text: str) -> list[str]:
    """The words of a text as ROUGE sees them: lower case, letters and digits only.

    >>> words("Don't panic, Rosa!")
    ['don', 't', 'panic', 'rosa']
    """
    return list(_scorer()._tokenizer.tokenize(text))


def token_accuracy(truth: Sequence[int], guess: Sequence[int]) -> float:
    """Share of the true tokens that stand in the right place.

    >>> token_accuracy([5, 6, 7, 8], [5, 6, 8, 7])
    50.0
    """
    if not truth:
        return 0.0
    return 100 * sum(a == b for a, b in zip(truth, guess, strict=False)) / len(truth)


def exact_match(truth: Sequence[int], guess: Sequence[int]) -> float:
    """100 if every token is right, else 0."""
    return 100.0 * (list(truth) == list(guess))


@functools.cache
def _scorer() -> Any:
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"])
