"""Public text as a model reads it: what an attacker without texts of the right kind measures and rehearses with."""

from __future__ import annotations

import functools
import random
from pathlib import Path

from gradleak.core import assets
from gradleak.core.progress import SILENT, Progress
from gradleak.models.text import TextModel
from gradleak.priors.ngram import CORPUS, corpus_sentences

# What WikiText-2 puts in the place of rare words.
UNKNOWN = "<unk>"
# Characters of the sentences that are kept: others are headings and lists, or several sentences in one.
SHORTEST, LONGEST = 20, 400


def public_sentences(progress: Progress = SILENT) -> tuple[str, ...]:
    """Sentences of WikiText-2 in ordinary spelling, without those that lack words."""
    return _sentences(str(assets.pull(CORPUS, progress)))


def public_rows(
    model: TextModel, count: int, seed: int, *, least: int = 6, most: int = 48, progress: Progress = SILENT
) -> list[list[int]]:
    """So many sentences as token rows with the model's special tokens, drawn by a seed, of a length within limits."""
    sentences = public_sentences(progress)
    rows: list[list[int]] = []
    most = min(most, model.max_length)
    for number in random.Random(seed).sample(range(len(sentences)), len(sentences)):
        row = model.tokenizer(sentences[number], verbose=False)["input_ids"]
        if least <= len(row) <= most:
            rows.append(row)
        if len(rows) == count:
            break
    return rows


@functools.lru_cache(maxsize=2)
def _sentences(folder: str) -> tuple[str, ...]:
    kept = (sentence for sentence in corpus_sentences(Path(folder)) if UNKNOWN not in sentence)
    return tuple(sentence for sentence in kept if SHORTEST <= len(sentence) <= LONGEST)
