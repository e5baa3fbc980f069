"""Every true sentence or image of an audit as one flat line, for tables, exports and data frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gradleak.models.tasks import Modality
from gradleak.scoring.metrics import find_metric, in_order, known_metrics
from gradleak.scoring.score import Pair

if TYPE_CHECKING:
    from gradleak.audits.results import Results, Trial

Row = dict[str, Any]


def pair_rows(results: Results) -> list[Row]:
    """A line for every true sentence or image, in order; pictures themselves are left out."""
    names, line_of = score_columns([results]), _LINES[results.scenario.modality]
    return [
        {
            "seed": results.scenario.seed,
            "trial": trial.index + 1,
            "status": trial.status,
            **line_of(number, pair, {name: _rounded(name, pair) for name in names}),
            **(_candidate(trial, pair) if results.confirmed is not None else {}),
            "seconds": round(trial.seconds, 2),
        }
        for trial in results.trials
        for number, pair in enumerate(trial.pairs, start=1)
    ]


def score_columns(results: Sequence[Results]) -> list[str]:
    """The metrics of single sentences or images: all known ones of their kind, and what else was measured."""
    modalities = dict.fromkeys(each.scenario.modality for each in results)
    known = [metric for modality in modalities for metric in known_metrics(modality)]
    measured = [name for each in results for trial in each.trials for pair in trial.pairs for name in pair.scores]
    return in_order(dict.fromkeys([*(metric.name for metric in known if not metric.of_batch), *measured]))


def _sentence(number: int, pair: Pair, scores: Row) -> Row:
    pieces = pair.pieces
    return {
        **({} if pair.side is None else {"side": pair.side}),
        "truth": pair.truth,
        "recovered": pair.reconstruction,
        **scores,
        "confidence": round(pair.confidence, 4),
        "certified": pair.certified,
        "lost": pair.lost,
        "stage": pair.stage,
        "names_found": None if pieces is None else pieces.names.found,
        "names": None if pieces is None else pieces.names.total,
        "numbers_found": None if pieces is None else pieces.numbers.found,
        "numbers": None if pieces is None else pieces.numbers.total,
    }


def _candidate(trial: Trial, pair: Pair) -> Row:
    """What a server that had the sentence among candidates made of it."""
    listed = [] if trial.candidates is None else trial.candidates.candidates
    own = next((each for each in listed if each.member and each.text == pair.truth), None)
    return {
        "candidate_score": None if own is None or own.score is None else round(own.score, 3),
        "false_alarm_rate": None if own is None else own.false_alarm_rate,
    }


def _image(number: int, pair: Pair, scores: Row) -> Row:
    return {"image": number, **scores}


_LINES: dict[Modality, Callable[[int, Pair, Row], Row]] = {"text": _sentence, "images": _image}


def _rounded(name: str, pair: Pair) -> float | None:
    """A digit more than tables show."""
    metric = find_metric(name)
    return round(pair.scores[name], 2 if metric is None else metric.digits + 1) if name in pair.scores else None
