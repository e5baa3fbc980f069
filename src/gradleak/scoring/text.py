"""The words of a text, and ROUGE over them, from 0 to 100."""

from __future__ import annotations

import functools
import re
from typing import Any

# Scripts written without spaces: Thai, Lao, Burmese, Khmer, kana and Han. Every character of them is a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


def rouge(truth: str, guess: str) -> dict[str, float]:
    """ROUGE-1, ROUGE-2 and ROUGE-L, F-measure.

    >>> rouge("the cat sat down", "down sat the cat")
    {'rouge1': 100.0, 'rouge2': 33.33..., 'rougeL': 50.0}
    """
    scores = _scorer().score(truth, guess)
    return {name: 100 * scores[name].fmeasure for name in ("rouge1", "rouge2", "rougeL")}


def words(text: str) -> list[str]:
    """The words of a text: lower case, letters and digits only.

    Of plain English they are the reference implementation's. That one knows no letters but a to z, so a text in
    Cyrillic would score 0 however well it was recovered.

    >>> words("Don't panic, Rosa!"), words("Доктор Müller, 北京")
    (['don', 't', 'panic', 'rosa'], ['доктор', 'müller', '北', '京'])
    """
    return WORD.findall(text.lower())


class _Words:
    """`words` in the form that the reference implementation takes a tokenizer."""

    tokenize = staticmethod(words)


@functools.cache
def _scorer() -> Any:
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], tokenizer=_Words())
