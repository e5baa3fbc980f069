"""A trigram model over the target's own tokens, with interpolated Kneser-Ney smoothing.

Counts come from WikiText-2 (CC BY-SA 3.0; the `wikitext2` asset) and are made once for every tokenizer.
Two hundred sentences are scored in milliseconds: looking up a trigram is a binary search.
"""

from __future__ import annotations

import copy
import functools
import gzip
import hashlib
import itertools
import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradleak.core import assets
from gradleak.core.budget import Budget
from gradleak.core.files import replacing
from gradleak.core.progress import SILENT, Progress
from gradleak.models.text import TextModel

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

CORPUS = "wikitext2"
DISCOUNT = 0.75
FORMAT = 1
SENTENCES_AT_ONCE = 500


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

    def behind(self, context: int, base: int) -> tuple[Ints, Floats, float]:
        """The tokens seen behind a context, their shares, and what it leaves to the lower order.

        N-grams of one context lie side by side, so none is looked for alone.
        """
        begin = context * base
        first, last = np.searchsorted(self.keys, [begin, begin + base])
        rest = _look_up(self.contexts, self.rest, np.array([context]), 1.0)
        return self.keys[first:last] - begin, self.share[first:last], float(rest[0])


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

    def insertions(self, sentence: Sequence[int], gap: int, tokens: Ints) -> Floats:
        """By how much each token, put before the `gap`-th, raises the sentence's log-likelihood.

        >>> prior = count_ngrams([[0, 1, 2], [0, 1, 3]], 5)
        >>> raised = prior.insertions([0, 2], 1, np.array([1, 4]))
        >>> whole = -4 * prior.nll([[0, 1, 2]])[0] + 3 * prior.nll([[0, 2]])[0]
        >>> round(float(raised[0] - whole), 6), bool(raised[0] > raised[1])
        (0.0, True)
        """
        border = self.vocabulary
        framed = [border, border, *sentence, border, border]
        a, b, c, d = framed[gap : gap + 4]
        ended = gap == len(sentence)  # behind the end of a sentence nothing is counted

        def logs(*trigrams: tuple[Ints | int, Ints | int, Ints | int]) -> Floats:
            arrays = [np.broadcast_arrays(*each, tokens)[:3] for each in trigrams]
            return sum((np.log(self.probability(*map(np.asarray, each))) for each in arrays), np.zeros(len(tokens)))

        before = logs((a, b, c)) if ended else logs((a, b, c), (b, c, d))
        after = (
            logs((a, b, tokens), (b, tokens, c)) if ended else logs((a, b, tokens), (b, tokens, c), (tokens, c, d))
        )
        return after - before

    def sample(self, length: int, generator: torch.Generator) -> list[int]:
        """Draw tokens one after another; the sentence is not allowed to end before its length."""
        border = self.vocabulary
        drawn = [border, border]
        while len(drawn) < length + 2:
            chance = float(torch.rand((), generator=generator, dtype=torch.float64))
            token = self.follower(drawn[-2], drawn[-1], chance)
            if token != border:
                drawn.append(token)
        return drawn[2:]

    def follower(self, first: int, second: int, chance: float) -> int:
        """The token that a number from 0 to 1, all equally likely, draws behind two others; V ends the sentence.

        Every order takes its own share of the numbers and hands what is left on, so that no list of the whole
        vocabulary is made.

        >>> prior = count_ngrams([[0, 1, 2], [0, 1, 3]], 5)
        >>> drawn = [prior.follower(0, 1, (i + 0.5) / 10_000) for i in range(10_000)]
        >>> shares = np.bincount(drawn, minlength=6) / 10_000
        >>> every = np.arange(6)
        >>> bool(np.allclose(shares, prior.probability(0 * every, 0 * every + 1, every), atol=3e-4))
        True
        """
        for level, context in ((self._trigram, first * self._base + second), (self._bigram, second)):
            tokens, shares, rest = level.behind(context, self._base)
            ends = np.cumsum(shares)
            taken = ends[-1] if len(ends) else 0.0
            if chance < taken:
                return int(tokens[np.searchsorted(ends, chance, side="right")])
            chance = min((chance - taken) / rest, 1.0)
        at = np.searchsorted(self._unigram_ends, chance * self._unigram_ends[-1], side="right")
        return min(int(at), self.vocabulary)

    @functools.cached_property
    def _unigram_ends(self) -> Floats:
        return np.cumsum(self._unigram)

    @functools.cached_property
    def frequent(self) -> list[int]:
        """All tokens, those first that stand behind the most different tokens."""
        return [int(token) for token in np.argsort(-self._unigram[: self.vocabulary], kind="stable")]

    def save(self, path: Path) -> None:
        """As numpy's own compressed archives, but lightly packed: their usual level takes longer than counting."""
        arrays = {"vocabulary": np.array(self.vocabulary), "unigram": self._unigram}
        for order, level in (("bigram", self._bigram), ("trigram", self._trigram)):
            arrays |= {f"{order}_{part}": values for part, values in vars(level).items()}
        with (
            replacing(path) as scratch,
            zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        ):
            for name, values in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                    np.lib.format.write_array(stream, values, allow_pickle=False)

    @classmethod
    def load(cls, path: Path) -> NgramPrior:
        with np.load(path, allow_pickle=False) as data:
            levels = [
                _Level(*(data[f"{order}_{part}"] for part in ("keys", "share", "contexts", "rest")))
                for order in ("bigram", "trigram")
            ]
            return cls(int(data["vocabulary"]), data["unigram"], *levels)


class NgramCounter:
    """Takes sentences in portions and makes the model of all of them; their order does not matter.

    Only the tokens are held, as numbers in a row: counting is sorting, and is done once, at the end.
    """

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self._rows: list[Ints] = []

    def add(self, sentences: Iterable[Sequence[int]]) -> None:
        """Each sentence that is not empty, behind two borders and before one."""
        border = self.vocabulary
        framed = ((border, border, *sentence, border) for sentence in sentences if len(sentence))
        self._rows.append(np.fromiter(itertools.chain.from_iterable(framed), dtype=np.int64))

    def prior(self) -> NgramPrior:
        """Kneser-Ney numbers of what was added."""
        border, base = self.vocabulary, self.vocabulary + 1
        row = np.concatenate(self._rows)
        first, second, third = row[:-2], row[1:-1], row[2:]
        inside = second != border  # a trigram across two sentences has a border in its middle,
        inside |= (first == border) & (third != border)  # and so has the first of a sentence, which counts
        grams = ((first * base + second) * base + third)[inside]
        trigrams, counts = np.unique(grams, return_counts=True)
        # Kneser-Ney: lower orders count in how many different contexts a word was seen, not how often.
        pairs, pair_contexts = np.unique(trigrams % (base * base), return_counts=True)
        words, word_contexts = np.unique(pairs % base, return_counts=True)
        unigram = np.zeros(base)
        unigram[words] = word_contexts
        # Add one half: a token the corpus never saw stays possible.
        unigram = (unigram + 0.5) / (unigram + 0.5).sum()
        levels = _level(pairs, pair_contexts, base), _level(trigrams, counts, base)
        return NgramPrior(self.vocabulary, unigram, *levels)


def count_ngrams(sentences: Iterable[Sequence[int]], vocabulary: int) -> NgramPrior:
    """Make the model from token sequences."""
    counter = NgramCounter(vocabulary)
    counter.add(sentences)
    return counter.prior()


def load_ngram(model: TextModel, progress: Progress = SILENT, budget: Budget | None = None) -> NgramPrior:
    """The prior for this target's tokenizer, counted on first use and cached.

    A budget that ends while it is counted leaves a model of a part of the corpus, which is not kept.
    """
    vocabulary = int(model.vocabulary_size)
    corpus = assets.find(CORPUS).files[0].sha256
    key = hashlib.sha256(f"{FORMAT} {DISCOUNT} {corpus} {vocabulary} {model.token_listing}".encode()).hexdigest()[:16]
    place = assets.cache_folder() / "priors" / f"ngram-{key}.npz"
    if place.is_file():
        return _loaded(place)
    folder = assets.pull(CORPUS, progress)
    progress.message("The n-gram prior is counted once for this tokenizer: about ten seconds of one core.")
    prior, share = _count_corpus(model, corpus_sentences(folder), vocabulary, progress, budget or Budget())
    if share < 1:
        progress.message(
            f"The budget ended the counting of the n-gram prior: this run uses {share:.0%} of its corpus; "
            "the next one counts it whole."
        )
        return prior
    place.parent.mkdir(parents=True, exist_ok=True)
    prior.save(place)
    return prior


def _count_corpus(
    model: TextModel, sentences: list[str], vocabulary: int, progress: Progress, budget: Budget
) -> tuple[NgramPrior, float]:
    """The model of the sentences, and which share of them the budget allowed; the first portion is always counted.

    Every portion is spread over the whole corpus, so that whatever was counted is a fair sample of it.
    """
    counter, tokenise = NgramCounter(vocabulary), batch_tokeniser(model)
    portions = max(1, -(-len(sentences) // SENTENCES_AT_ONCE))
    counted = done = 0
    progress.begin("counting the n-gram prior", len(sentences), "sentences")
    try:
        while done < portions and not (done and budget.over):
            portion = sentences[done::portions]
            counter.add(tokenise(portion))
            done, counted = done + 1, counted + len(portion)
            progress.advance(counted)
    finally:
        progress.end()
    return counter.prior(), counted / len(sentences)


def batch_tokeniser(model: TextModel) -> Callable[[list[str]], list[list[int]]]:
    """Texts to tokens without special ones, as the model's tokenizer does; what nobody reads (offsets, masks) is not
    made."""
    tokenizer = model.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # a tokenizer in Python
        return lambda texts: tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    own = copy.deepcopy(backend)  # what its file says about padding and truncation is for others
    own.no_padding()
    own.no_truncation()
    return lambda texts: [encoding.ids for encoding in own.encode_batch_fast(texts, add_special_tokens=False)]


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


def corpus_sentences(folder: Path) -> list[str]:
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
