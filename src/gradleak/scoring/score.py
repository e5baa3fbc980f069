"""The one place where a reconstruction meets the truth."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from gradleak.attacks.base import Reconstruction, Sentence
from gradleak.models.target import TargetModel
from gradleak.scoring.assign import best_assignment
from gradleak.scoring.text import METRICS, exact_match, rouge, token_accuracy

NOTHING = Sentence(text="", tokens=[], confidence=0.0)


class Pair(BaseModel):
    """One true sentence, the reconstruction assigned to it, and how close they are."""

    model_config = ConfigDict(extra="forbid")

    truth: str
    reconstruction: str
    confidence: float
    certified: bool = False
    stage: str | None = None
    scores: dict[str, float]


class Score(BaseModel):
    """A whole batch: the mean of every metric over its sentences, and the pairs behind it."""

    model_config = ConfigDict(extra="forbid")

    metrics: dict[str, float]
    pairs: list[Pair]


def score(reconstruction: Reconstruction, texts: Sequence[str], model: TargetModel) -> Score:
    """Compare a reconstruction with the true texts.

    Both sides are compared as the model's tokens tell them apart (an uncased model cannot leak case), with
    special tokens left out. In a batch, sentences are paired so that the sum of the ROUGE scores is largest.

    >>> from gradleak import Client, attack, load_model, score
    >>> model = load_model("minilm")
    >>> truth = ["Her biopsy came back clear."]
    >>> found = attack(Client(model).update(truth, [0]), model, "control")
    >>> sorted(score(found[0], truth, model).metrics)
    ['exact_match', 'rouge1', 'rouge2', 'rougeL', 'token_accuracy']
    """
    true = [model.content(row) for row in model.encode(texts).sentences()]
    table = [[_compare(ids, guess, model) for guess in reconstruction.sentences] for ids in true]
    gains = [[c["rouge1"] + c["rouge2"] + c["rougeL"] for c in row] for row in table]
    pairs = []
    for i, column in enumerate(best_assignment(gains)):
        guess = NOTHING if column is None else reconstruction.sentences[column]
        scores = _compare(true[i], guess, model) if column is None else table[i][column]
        pairs.append(
            Pair(
                truth=texts[i],
                reconstruction=guess.text,
                confidence=guess.confidence,
                certified=guess.certified,
                stage=guess.stage,
                scores=scores,
            )
        )
    means = {name: sum(pair.scores[name] for pair in pairs) / len(pairs) for name in METRICS}
    return Score(metrics=means, pairs=pairs)


def _compare(truth: Sequence[int], guess: Sentence, model: TargetModel) -> dict[str, float]:
    return {
        **rouge(model.decode(truth), guess.text),
        "token_accuracy": token_accuracy(truth, guess.tokens),
        "exact_match": exact_match(truth, guess.tokens),
    }
