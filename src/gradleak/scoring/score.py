"""The one place where a reconstruction meets the truth."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from gradleak.attacks.base import Reconstruction, Sentence
from gradleak.models.tasks import SideName
from gradleak.models.text import TextModel
from gradleak.scoring.assign import best_assignment
from gradleak.scoring.metric import Metric, TextPair, measure
from gradleak.scoring.metrics import choose_metrics
from gradleak.scoring.pieces import Pieces, pieces

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
    lost: int = Field(default=0, ge=0, description="unknown tokens of the reconstruction, which it does not cover")
    stage: str | None = None
    side: SideName | None = Field(default=None, description="where an example is a pair of texts: which of them")
    scores: dict[str, float]
    pieces: Pieces | None = Field(default=None, description="names and numbers, and which came back")


class Score(BaseModel):
    """A whole batch: every metric's mean over its sentences, how much of the batch came back, and the pairs."""

    model_config = ConfigDict(extra="forbid")

    metrics: dict[str, float]
    pairs: list[Pair]


def score(
    reconstruction: Reconstruction,
    texts: Sequence[str],
    model: TextModel,
    *,
    targets: Sequence[str] = (),
    metrics: Sequence[str | Metric] = (),
) -> Score:
    """Compare a reconstruction with the true texts.

    Where an example is a pair of texts, `targets` are the second ones: they count like the first, and a sentence that
    says which of the two it is, is compared with those alone.

    Both sides are compared as the model's tokens tell them apart (an uncased model cannot leak case), with
    special tokens left out. A text with tokens that the tokenizer does not know can never come back whole. In a
    batch, sentences are paired so that the sum of the ROUGE scores is largest.
    `metrics` adds to the usual ones, by name (such as "nerr", which needs `gradleak[entities]`) or as objects.

    >>> from gradleak import Client, attack, load_model, score
    >>> model = load_model("minilm")
    >>> truth = ["Her biopsy came back clear."]
    >>> found = attack(Client(model).update(truth, [0]), model, "control")
    >>> sorted(score(found[0], truth, model).metrics)
    ['best_rougeL', 'exact_match', 'rouge1', 'rouge2', 'rougeL', 'sentence_precision', 'sentence_recall',
     'token_accuracy']
    """
    chosen = choose_metrics("text", metrics)
    sides: list[SideName | None] = ["source" if targets else None for _ in texts]
    sides += ["target"] * len(targets)
    texts = [*texts, *targets]
    # Marks between turns and texts are no part of what was written.
    rows = [[token for token in model.inner(row) if token not in model.separators] for row in model.tokenize(texts)]
    tokens = [model.content(row) for row in rows]
    decoded = [model.decode(row, special=True) for row in rows]

    def beside(i: int, guess: Sentence) -> TextPair:
        fits = guess.side is None or guess.side == sides[i]
        lost = len(rows[i]) - len(tokens[i])
        return TextPair(texts[i], tokens[i], decoded[i], guess if fits else NOTHING, model, lost=lost)

    table = [[beside(i, guess) for guess in reconstruction.sentences] for i in range(len(texts))]
    columns = best_assignment([[sum(pair.rouge.values()) for pair in row] for row in table])
    assigned = [beside(i, NOTHING) if column is None else table[i][column] for i, column in enumerate(columns)]
    scores, means = measure(table, assigned, chosen)
    pairs = [_pair(*each) for each in zip(assigned, scores, sides, strict=True)]
    return Score(metrics=means, pairs=pairs)


def _pair(compared: TextPair, scores: dict[str, float], side: SideName | None) -> Pair:
    guess = compared.guess
    return Pair(
        truth=compared.truth,
        reconstruction=guess.text,
        confidence=guess.confidence,
        certified=guess.certified,
        lost=guess.lost,
        stage=guess.stage,
        side=side,
        scores=scores,
        pieces=pieces(compared.truth, guess.text),
    )
