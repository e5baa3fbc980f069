"""The words of a text, and ROUGE over them, from 0 to 100."""

from __future__ import annotations

import re
from collections import Counter

# Scripts written without spaces: Thai, Lao, Burmese, Khmer, kana and Han. Every character of them is a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


def rouge(truth: str, guess: str) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L, F-measure, as the reference implementation (rouge-score) counts the same words.

    That one imports all of NLTK, a second of every process; the tests compare.

    >>> rouge("the cat sat down", "down sat the cat")
    {'rouge1': 100.0, 'rouge2': 33.33..., 'rougeL': 50.0}
    """
    ours, theirs = words(truth), words(guess)
    return {
        "rouge1": _overlap(ours, theirs, 1),
        "rouge2": _overlap(ours, theirs, 2),
        "rougeL": _in_order(ours, theirs),
    }


def words(text: str) -> list[str]:
    """The words of a text: lower case, letters and digits only.

    Of plain English they are the reference implementation's. That one knows no letters but a to z, so a text in
    Cyrillic would score 0 however well it was recovered.

    >>> words("Don't panic, Rosa!"), words("Доктор Müller, 北京")
    (['don', 't', 'panic', 'rosa'], ['доктор', 'müller', '北', '京'])
    """
    return WORD.findall(text.lower())


def _overlap(truth: list[str], guess: list[str], size: int) -> float:
    """By runs of so many words, each counted as often as both have it."""
    ours, theirs = (Counter(zip(*(text[start:] for start in range(size)), strict=False)) for text in (truth, guess))
    return _f_measure((ours & theirs).total(), ours.total(), theirs.total())


def _in_order(truth: list[str], guess: list[str]) -> float:
    """By the longest sequence of words that both have in this order, whatever stands between."""
    longest = [0] * (len(guess) + 1)
    for word in truth:
        before = 0  # of the words before this one of both texts
        for place, other in enumerate(guess, 1):
            here = before + 1 if word == other else max(longest[place], longest[place - 1])
            before, longest[place] = longest[place], here
    return _f_measure(longest[-1], len(truth), len(guess))


def _f_measure(shared: int, ours: int, theirs: int) -> float:
    """In percent: the harmonic mean of the shares of either text that the other has."""
    if not shared:
        return 0.0
    precision, recall = shared / theirs, shared / ours
    return 100 * (2 * precision * recall / (precision + recall))
