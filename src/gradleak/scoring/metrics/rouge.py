"""ROUGE: words, pairs of neighbours and the longest run of words that a guess shares with the truth."""

from __future__ import annotations

from gradleak.scoring.metric import Metric, TextPair


def _rouge(name: str, label: str, counts: str) -> Metric:
    def function(pair: TextPair) -> float:
        return pair.rouge[name]

    return Metric(
        name, label, counts, low=0, high=100, higher_is_closer=True, modality="text", function=function
    )  # fmt: skip


ROUGE1 = _rouge("rouge1", "ROUGE-1", "words recovered, in any order")
ROUGE2 = _rouge("rouge2", "ROUGE-2", "pairs of neighbouring words recovered")
ROUGE_L = _rouge("rougeL", "ROUGE-L", "longest run of words in the right order")
