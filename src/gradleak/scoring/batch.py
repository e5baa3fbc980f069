"""How much of a batch came back, where an attack may return more or fewer candidates than there were sentences."""

from __future__ import annotations

from collections.abc import Sequence

BATCH_METRICS = ("best_rougeL", "sentence_recall", "sentence_precision")

# A ROUGE-L above this counts as a sentence recovered: the FILM paper's rule, so that figures can stand beside theirs.
RECOVERED = 25.0


def batch_metrics(rouge_l: Sequence[Sequence[float]]) -> dict[str, float]:
    """Best sentence, recall and precision, out of ROUGE-L between every true sentence and every candidate.

    Recall is the share of the true sentences that some candidate recovers, precision the share of the candidates
    that recover some sentence. Of no candidates none is right, so their precision is 0.

    >>> batch_metrics([[80.0, 10.0, 30.0], [5.0, 25.0, 0.0]])
    {'best_rougeL': 80.0, 'sentence_recall': 50.0, 'sentence_precision': 66.66...}
    """
    by_truth = [max(row, default=0.0) for row in rouge_l]
    by_candidate = [max(column) for column in zip(*rouge_l, strict=True)]
    return {
        "best_rougeL": max(by_truth, default=0.0),
        "sentence_recall": _share_recovered(by_truth),
        "sentence_precision": _share_recovered(by_candidate),
    }


def _share_recovered(best: Sequence[float]) -> float:
    return 100 * sum(value > RECOVERED for value in best) / max(1, len(best))
