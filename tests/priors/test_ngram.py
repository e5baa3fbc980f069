"""The n-gram prior against a plain dictionary version of the same formula."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak.priors.base import load_prior
from gradleak.priors.ngram import DISCOUNT, NgramPrior, count_ngrams

VOCABULARY = 6
corpora = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=7), min_size=1, max_size=12)


def plain(corpus, first, second, third):
    """Interpolated Kneser-Ney, written out."""
    border = VOCABULARY
    grams = Counter()
    for sentence in corpus:
        padded = [border, border, *sentence, border]
        grams.update(zip(padded, padded[1:], padded[2:], strict=False))
    pairs = defaultdict(set)
    for a, b, c in grams:
        pairs[b, c].add(a)
    singles = defaultdict(set)
    for b, c in pairs:
        singles[c].add(b)
    weights = [len(singles[w]) + 0.5 for w in range(VOCABULARY + 1)]
    one = weights[third] / sum(weights)

    def level(count, followers, lower):
        total = sum(followers)
        if not total:
            return lower
        return max(count - DISCOUNT, 0) / total + DISCOUNT * len(followers) / total * lower

    two = level(len(pairs[second, third]), [len(v) for (b, _), v in pairs.items() if b == second and v], one)
    three_followers = [n for (a, b, _), n in grams.items() if (a, b) == (first, second)]
    return level(grams[first, second, third], three_followers, two)


@settings(max_examples=60, deadline=None)
@given(corpora, st.tuples(*[st.integers(0, VOCABULARY)] * 3))
def test_probability_is_the_plain_formula(corpus, gram):
    prior = count_ngrams(corpus, VOCABULARY)
    arrays = [np.array([token]) for token in gram]
    assert float(prior.probability(*arrays)[0]) == pytest.approx(plain(corpus, *gram), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(corpora, st.integers(0, VOCABULARY), st.integers(0, VOCABULARY))
def test_probabilities_sum_to_one(corpus, first, second):
    prior = count_ngrams(corpus, VOCABULARY)
    every = np.arange(VOCABULARY + 1)
    total = prior.probability(np.full_like(every, first), np.full_like(every, second), every).sum()
    assert total == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(corpora, st.integers(0, VOCABULARY), st.integers(0, VOCABULARY))
def test_tokens_are_drawn_as_they_are_likely(corpus, first, second):
    """All numbers from 0 to 1 in small steps: of each token as many as its probability says, the border's too."""
    prior, every, steps = count_ngrams(corpus, VOCABULARY), np.arange(VOCABULARY + 1), 2000
    drawn = [prior.follower(first, second, (step + 0.5) / steps) for step in range(steps)]
    expected = prior.probability(np.full_like(every, first), np.full_like(every, second), every)
    # A token has at most a piece of each of three orders, and each end of a piece is off by at most one step.
    assert np.bincount(drawn, minlength=VOCABULARY + 1) / steps == pytest.approx(expected, abs=3 / steps)


@settings(max_examples=30, deadline=None)
@given(corpora, st.integers(0, 20), st.integers(0, 9))
def test_what_is_drawn_has_its_length_and_no_border(corpus, length, seed):
    drawn = count_ngrams(corpus, VOCABULARY).sample(length, torch.Generator().manual_seed(seed))
    assert len(drawn) == length
    assert all(token in range(VOCABULARY) for token in drawn)


def test_nll_is_the_mean_over_the_sentence():
    corpus = [[0, 1, 2], [0, 1, 3], [4]]
    prior = count_ngrams(corpus, VOCABULARY)
    b = VOCABULARY
    grams = [(b, b, 0), (b, 0, 1), (0, 1, 2), (1, 2, b)]
    expected = -sum(math.log(plain(corpus, *gram)) for gram in grams) / 4
    assert float(prior.nll([[4], [0, 1, 2]])[1]) == pytest.approx(expected)


def test_saved_and_loaded(tmp_path):
    prior = count_ngrams([[0, 1, 2], [2, 1]], VOCABULARY)
    prior.save(tmp_path / "p.npz")
    again = NgramPrior.load(tmp_path / "p.npz")
    torch.testing.assert_close(again.nll([[0, 1], [5]]), prior.nll([[0, 1], [5]]))


@pytest.mark.real
def test_the_shipped_prior_knows_english(minilm):
    prior = load_prior("ngram", minilm)
    good = minilm.content(minilm.tokenizer("she said that she would never see the old man again.")["input_ids"])
    generator = torch.Generator().manual_seed(0)
    shuffled = [[good[i] for i in torch.randperm(len(good), generator=generator)] for _ in range(50)]
    scores = prior.nll([good, *shuffled])
    assert scores[0] < scores[1:].min()
    assert len(prior.sample(9, generator)) == 9
    assert load_prior("none", minilm) is None
