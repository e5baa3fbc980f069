"""How many tokens came back at their place, and whether all did."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.scoring.metric import Metric, TextPair


def token_accuracy(truth: Sequence[int], guess: Sequence[int], lost: int = 0) -> float:
    """Share of the true tokens that stand in the right place; so many more are lost, which no guess can hold.

    >>> token_accuracy([5, 6, 7, 8], [5, 6, 8, 7]), token_accuracy([5, 6, 7], [5, 6, 7], lost=1)
    (50.0, 75.0)
    """
    if not truth:
        return 0.0
    return 100 * sum(a == b for a, b in zip(truth, guess, strict=False)) / (len(truth) + lost)


def exact_match(truth: Sequence[int], guess: Sequence[int], lost: int = 0) -> float:
    """100 if every token is right, else 0; nothing is no match for nothing.

    >>> exact_match([5, 6], [5, 6]), exact_match([5, 6], [5, 6], lost=1), exact_match([], [])
    (100.0, 0.0, 0.0)
    """
    return 100.0 * (bool(truth) and not lost and list(truth) == list(guess))


def _token_accuracy(pair: TextPair) -> float:
    return token_accuracy(pair.truth_tokens, pair.guess.tokens, pair.lost)


def _exact_match(pair: TextPair) -> float:
    return exact_match(pair.truth_tokens, pair.guess.tokens, pair.lost)


TOKEN_ACCURACY = Metric(
    "token_accuracy", "Token accuracy", "tokens recovered at their place", low=0, high=100, higher_is_closer=True,
    modality="text", function=_token_accuracy,
)  # fmt: skip
EXACT_MATCH = Metric(
    "exact_match", "Exact match", "sentences recovered whole", low=0, high=100, higher_is_closer=True,
    modality="text", function=_exact_match,
)  # fmt: skip
