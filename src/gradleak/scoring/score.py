"""The one place where a reconstruction meets the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from gradleak.attacks.base import Reconstruction, Sentence
from gradleak.models.text import TextModel
from gradleak.scoring.assign import best_assignment
from gradleak.scoring.batch import batch_metrics
from gradleak.scoring.entities import NERR, entity_recall, named_entities
from gradleak.scoring.pieces import Pieces, pieces
from gradleak.scoring.text import exact_match, rouge, token_accuracy

NOTHING = Sentence(text="", tokens=[], confidence=0.0)


class Pair(BaseModel):
    """One true sentence, the reconstruction assigned to it, and how close they are.

    For image models both are images, as PNGs in data URIs, and there is no confidence.
    """

    model_config = ConfigDict(extra="forbid")

    truth: str
    reconstruction: str
    confidence: float = 0.0
    certified: bool = False
    stage: str | None = None
    scores: dict[str, float]
    pieces: Pieces | None = Field(default=None, description="names and numbers, and which came back")


class Score(BaseModel):
    """A whole batch: every metric's mean over its sentences, how much of the batch came back, and the pairs."""

    model_config = ConfigDict(extra="forbid")

    metrics: dict[str, float]
    pairs: list[Pair]


def score(reconstruction: Reconstruction, texts: Sequence[str], model: TextModel, *, entities: bool = False) -> Score:
    """Compare a reconstruction with the true texts.

    Both sides are compared as the model's tokens tell them apart (an uncased model cannot leak case), with
    special tokens left out. In a batch, sentences are paired so that the sum of the ROUGE scores is largest.
    `entities` adds NERR to sentences that name something, and its mean over these; it needs `gradleak[entities]`.

    >>> from gradleak import Client, attack, load_model, score
    >>> model = load_model("minilm")
    >>> truth = ["Her biopsy came back clear."]
    >>> found = attack(Client(model).update(truth, [0]), model, "control")
    >>> sorted(score(found[0], truth, model).metrics)
    ['best_rougeL', 'exact_match', 'rouge1', 'rouge2', 'rougeL', 'sentence_precision', 'sentence_recall',
     'token_accuracy']
    """
    true = [model.content(row) for row in model.encode(texts).sentences()]
    table = [[_compare(ids, guess, model) for guess in reconstruction.sentences] for ids in true]
    gains = [[c["rouge1"] + c["rouge2"] + c["rougeL"] for c in row] for row in table]
    pairs = []
    for i, column in enumerate(best_assignment(gains)):
        guess = NOTHING if column is None else reconstruction.sentences[column]
        scores = dict(_compare(true[i], guess, model) if column is None else table[i][column])
        if entities and (held := entity_recall(named_entities(texts[i]), guess.text)) is not None:
            scores[NERR] = held
        pairs.append(
            Pair(
                truth=texts[i],
                reconstruction=guess.text,
                confidence=guess.confidence,
                certified=guess.certified,
                stage=guess.stage,
                scores=scores,
                pieces=pieces(texts[i], guess.text),
            )
        )
    means = mean_scores([pair.scores for pair in pairs])
    return Score(metrics=means | batch_metrics([[c["rougeL"] for c in row] for row in table]), pairs=pairs)


def mean_scores(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Every score's mean over those that have it: a sentence without named entities has no share of them.

    >>> mean_scores([{"rougeL": 50.0}, {"rougeL": 100.0, "nerr": 40.0}])
    {'rougeL': 75.0, 'nerr': 40.0}
    """
    return {name: sum(values) / len(values) for name, values in by_metric(scores).items()}


def by_metric(scores: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """The values of every score, in order, of those that have it."""
    names = dict.fromkeys(name for one in scores for name in one)
    return {name: [one[name] for one in scores if name in one] for name in names}


def _compare(truth: Sequence[int], guess: Sentence, model: TextModel) -> dict[str, float]:
    return {
        **rouge(model.decode(truth), guess.text),
        "token_accuracy": token_accuracy(truth, guess.tokens),
        "exact_match": exact_match(truth, guess.tokens),
    }
