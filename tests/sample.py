"""A small complete result, made by the real scoring from invented reconstructions."""

from __future__ import annotations

from gradleak.attacks.base import Reconstruction, Sentence, TracePoint
from gradleak.audits.results import AttackInfo, Observed, Results, Scenario, Trial
from gradleak.core.environment import Environment
from gradleak.scoring.interval import mean_interval
from gradleak.scoring.metrics.nerr import entity_recall
from gradleak.scoring.pieces import Count, Pieces
from gradleak.scoring.score import Pair
from gradleak.scoring.text import rouge
from gradleak.updates.client_rule import ClientRule

_PAIRS = [
    ("Rosa moved to ward six.", "rosa moved six to", ["Rosa", "ward six"]),
    ("The loan was refused.", "the loan refused was", []),
]


def sample_results() -> Results:
    trials = [_trial(i, *pair) for i, pair in enumerate(_PAIRS)]
    named = trials[0].scores
    return Results(
        created="2026-01-01T00:00:00+00:00",
        status="completed",
        environment=Environment(
            gradleak="0.0.0", python="3.11.0", platform="test", processor="test", packages={"torch": "2"},
            device="cpu", threads=2, git_commit=None, git_dirty=None,
        ),
        scenario=Scenario(
            model="minilm", family="bert", task="classification", model_fingerprint="f" * 32, parameters=22713986,
            data="builtin", data_rows=216, labels="given", batch_size=1, trials=2, seed=0, client=ClientRule(),
            observed=Observed(selection="all", tensors=105, parameters=22713986, share=100.0),
            known=["batch_size", "labels", "lengths"],
        ),
        attack=AttackInfo(name="lamp-cos", options={"steps": 3}),
        trials=trials,
        summary={name: mean_interval([t.scores[name] for t in trials if name in t.scores]) for name in named},
        control={name: mean_interval([5.0, 6.0]) for name in named},
    )  # fmt: skip


def _trial(index: int, truth: str, guess: str, entities: list[str]) -> Trial:
    scores = {**rouge(truth, guess), "token_accuracy": 50.0, "exact_match": 0.0}
    if (held := entity_recall(entities, guess)) is not None:
        scores["nerr"] = held
    recovered = 100.0 * (scores["rougeL"] > 25)
    whole = scores | {"best_rougeL": scores["rougeL"], "sentence_recall": recovered, "sentence_precision": recovered}
    sentence = Sentence(text=guess, tokens=[1, 2, 3], confidence=0.9)
    names = Count(found=len(entities) - 1, total=len(entities)) if entities else Count(found=0, total=0)
    pieces = Pieces(names=names, numbers=Count(found=0, total=0), names_by="capitals")
    trace = [TracePoint(step=step, loss=0.5 / (step + 1)) for step in range(4)]
    return Trial(
        index=index,
        seed=index,
        status="completed",
        truth=[truth],
        labels=[1],
        reconstruction=Reconstruction(sentences=[sentence], labels=[1], trace=trace, loss=0.125),
        pairs=[Pair(truth=truth, reconstruction=guess, confidence=0.9, scores=scores, pieces=pieces)],
        scores=whole,
        control_scores=dict.fromkeys(whole, 5.0),
        tokens=8,
        signal=2.0,
        noise=0.0,
        seconds=1.5,
        peak_memory_mb=100.0,
    )
