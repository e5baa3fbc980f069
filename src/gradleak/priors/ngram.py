"""A trigram model over the target's own tokens, with interpolated Kneser-Ney smoothing.

Counts come from WikiText-2 (CC BY-SA 3.0; the `wikitext2` asset) and are made once for every tokenizer.
Two hundred sentences are scored in milliseconds: looking up a trigram is a binary search.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradleak.core import assets
from gradleak.core.files import replacing
from gradleak.core.progress import SILENT, Progress
from gradleak.models.text import TextModel

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

CORPUS = "wikitext2"
DISCOUNT = 0.75
FORMAT = 1
_LINES_AT_ONCE = 2000


@dataclass(frozen=True)
class _Level:
    """Kneser-Ney numbers of one order: for every n-gram its discounted share, for every context what is left.

    Keys are n-grams written as one number in base V. `share` is max(count − D, 0) / total of the context;
    `rest` is the weight its context leaves to the next lower order.
    """

    keys: Ints
    share: Floats
    contexts: Ints
    rest: Floats

    def probability(self, context: Ints, key: Ints, lower: Floats) -> Floats:
        """Interpolate: the n-gram's share, plus what its context leaves times the lower order."""
        share = _look_up(self.keys, self.share, key, 0.0)
        rest = _look_up(self.contexts, self.rest, context, 1.0)  # an unseen context leaves everything
        return share + rest * lower


class NgramPrior:
    """Scores and draws token sequences. One extra token number, V, stands for the borders of a sentence."""

    name = "ngram"

    def __init__(self, vocabulary: int, unigram: Floats, bigram: _Level, trigram: _Level) -> None:
        self.vocabulary = vocabulary
        self._base = vocabulary + 1
        self._unigram = unigram
        self._bigram = bigram
        self._trigram = trigram

    def nll(self, sentences: Sequence[Sequence[int]]) -> Tensor:
        """Mean negative log-likelihood per token, the end of the sentence counted in."""
        lengths = np.array([len(s) + 1 for s in sentences])
        border = self.vocabulary
        rows = [np.array([border, border, *s, border], dtype=np.int64) for s in sentences]
        first = np.concatenate([r[:-2] for r in rows])
        second = np.concatenate([r[1:-1] for r in rows])
        third = np.concatenate([r[2:] for r in rows])
        logs = np.log(self.probability(first, second, third))
        sums = np.add.reduceat(logs, np.concatenate([[0], np.cumsum(lengths)[:-1]]))
        return torch.from_numpy(-sums / lengths)

    def probability(self, first: Ints, second: Ints, third: Ints) -> Floats:
        """P(third | first, second), elementwise."""
        single = self._unigram[third]
        pair = self._bigram.probability(second, second * self._base + third, single)
        context = first * self._base + second
        return self._trigram.probability(context, context * self._base + third, pair)

    def sample(self, length: int, generator: torch.Generator) -> list[int]:
        """Draw tokens one after another; the sentence is not allowed to end before its length."""
        every = np.arange(self.vocabulary, dtype=np.int64)
        drawn = [self.vocabulary, self.vocabulary]
        for _ in range(length):
            first, second = (np.full_like(every, token) for token in drawn[-2:])
            weights = torch.from_numpy(self.probability(first, second, every))
            drawn.append(int(torch.multinomial(weights, 1, generator=generator)))
        return drawn[2:]

    def frequent(self) -> list[int]:
        """All tokens, those first that stand behind the most different tokens."""
        return [int(token) for token in np.argsort(-self._unigram[: self.vocabulary], kind="stable")]

    def save(self, path: Path) -> None:
        with replacing(path) as scratch, scratch.open("wb") as stream:
            np.savez_compressed(
                stream,
                vocabulary=self.vocabulary,
                unigram=self._unigram,
                **{f"bigram_{k}": v for k, v in vars(self._bigram).items()},
                **{f"trigram_{k}": v for k, v in vars(self._trigram).items()},
            )

    @classmethod
    def load(cls, path: Path) -> NgramPrior:
        with np.load(path, allow_pickle=False) as data:
            levels = [
                _Level(*(data[f"{order}_{part}"] for part in ("keys", "share", "contexts", "rest")))
                for order in ("bigram", "trigram")
            ]
            return cls(int(data["vocabulary"]), data["unigram"], *levels)


def count_ngrams(sentences: Iterable[Sequence[int]], vocabulary: int) -> NgramPrior:
    """Make the model from token sequences."""
    border, base = vocabulary, vocabulary + 1
    rows = [np.array([border, border, *s, border], dtype=np.int64) for s in sentences if len(s)]
    first = np.concatenate([r[:-2] for r in rows])
    second = np.concatenate([r[1:-1] for r in rows])
    third = np.concatenate([r[2:] for r in rows])
    trigrams, counts = np.unique((first * base + second) * base + third, return_counts=True)
    # Kneser-Ney: lower orders count in how many different contexts a word was seen, not how often.
    pairs, pair_contexts = np.unique(trigrams % (base * base), return_counts=True)
    words, word_contexts = np.unique(pairs % base, return_counts=True)
    unigram = np.zeros(base)
    unigram[words] = word_contexts
    # Add one half: a token the corpus never saw stays possible.
    unigram = (unigram + 0.5) / (unigram + 0.5).sum()
    return NgramPrior(vocabulary, unigram, _level(pairs, pair_contexts, base), _level(trigrams, counts, base))


def load_ngram(model: TextModel, progress: Progress = SILENT) -> NgramPrior:
    """The prior for this target's tokenizer, counted on first use and cached."""
    vocabulary = int(model.token_embedding.shape[0])
    listing = json.dumps(sorted(model.tokenizer.get_vocab().items()))
    corpus = assets.find(CORPUS).files[0].sha256
    key = hashlib.sha256(f"{FORMAT} {DISCOUNT} {corpus} {vocabulary} {listing}".encode()).hexdigest()[:16]
    place = assets.cache_folder() / "priors" / f"ngram-{key}.npz"
    if place.is_file():
        return _loaded(place)
    folder = assets.pull(CORPUS, progress)
    prior = count_ngrams(_tokenised(model, _corpus_sentences(folder), progress), vocabulary)
    place.parent.mkdir(parents=True, exist_ok=True)
    prior.save(place)
    return prior


@functools.lru_cache(maxsize=2)
def _loaded(place: Path) -> NgramPrior:
    """Read once per process: unpacking takes longer than many an attack, and nothing changes a prior."""
    return NgramPrior.load(place)


def _level(keys: Ints, counts: Ints, base: int) -> _Level:
    contexts, index, followers = np.unique(keys // base, return_inverse=True, return_counts=True)
    totals = np.bincount(index, weights=counts)
    share = np.maximum(counts - DISCOUNT, 0) / totals[index]
    return _Level(keys, share, contexts, DISCOUNT * followers / totals)


def _look_up(keys: Ints, values: Floats, wanted: Ints, default: float) -> Floats:
    at = np.searchsorted(keys, wanted)
    at[at == len(keys)] = 0
    return np.where(keys[at] == wanted, values[at], default)


def _corpus_sentences(folder: Path) -> list[str]:
    """WikiText's paragraphs as sentences in ordinary spelling: headings dropped, its markup undone."""
    text = gzip.decompress((folder / "train.raw.gz").read_bytes()).decode("utf-8")
    sentences = []
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("="):
            continue
        line = re.sub(r" @(.)@ ", r"\1", line)
        line = re.sub(r" ([.,;:!?)\]%]|'s|n't|'\w+)(?= |$)", r"\1", line).replace("( ", "(")
        sentences.extend(re.split(r"(?<=[.!?]) (?=[A-Z\"])", line))
    return [s for s in sentences if s.strip()]


def _tokenised(model: TextModel, sentences: list[str], progress: Progress) -> Iterator[list[int]]:
    progress.begin("counting the n-gram prior", len(sentences), "sentences")
    for start in range(0, len(sentences), _LINES_AT_ONCE):
        part = sentences[start : start + _LINES_AT_ONCE]
        yield from model.tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]
        progress.advance(min(len(sentences), start + _LINES_AT_ONCE))
    progress.end()
