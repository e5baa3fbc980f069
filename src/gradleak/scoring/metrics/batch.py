"""How much of a batch came back, where an attack may return more or fewer candidates than there were sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradleak.scoring.metric import Batch, Metric, TextPair

# A ROUGE-L above this counts as a sentence recovered: the FILM paper's rule, so that figures can stand beside theirs.
RECOVERED = 25.0

# ROUGE-L between every true sentence (rows) and every candidate (columns).
Table = Sequence[Sequence[float]]


def best_score(rouge_l: Table) -> float:
    """
    >>> best_score([[80.0, 10.0, 30.0], [5.0, 25.0, 0.0]])
    80.0
    """
    return max(_by_truth(rouge_l), default=0.0)


def recall(rouge_l: Table) -> float:
    """The share of the true sentences that some candidate recovers.

    >>> recall([[80.0, 10.0, 30.0], [5.0, 25.0, 0.0]])
    50.0
    """
    return _share_recovered(_by_truth(rouge_l))


def precision(rouge_l: Table) -> float:
    """The share of the candidates that recover some sentence; of no candidates none is right.

    >>> precision([[80.0, 10.0, 30.0], [5.0, 25.0, 0.0]])
    66.66...
    """
    return _share_recovered([max(column) for column in zip(*rouge_l, strict=True)])


def _by_truth(rouge_l: Table) -> list[float]:
    return [max(row, default=0.0) for row in rouge_l]


def _share_recovered(best: Sequence[float]) -> float:
    return 100 * sum(value > RECOVERED for value in best) / max(1, len(best))


def _metric(name: str, label: str, counts: str, rule: Callable[[Table], float]) -> Metric:
    def function(batch: Batch[TextPair]) -> float:
        return rule([[pair.rouge["rougeL"] for pair in row] for row in batch.table])

    return Metric(
        name, label, counts, low=0, high=100, higher_is_closer=True, modality="text", function=function, of_batch=True
    )


BEST_ROUGE_L = _metric(
    "best_rougeL", "Best ROUGE-L", "ROUGE-L of the one sentence of a batch that came back best", best_score
)
SENTENCE_RECALL = _metric(
    "sentence_recall",
    "Sentence recall",
    f"sentences that some candidate recovers, ROUGE-L above {RECOVERED:g}",
    recall,
)
SENTENCE_PRECISION = _metric(
    "sentence_precision",
    "Sentence precision",
    f"candidates that recover some sentence, ROUGE-L above {RECOVERED:g}",
    precision,
)
