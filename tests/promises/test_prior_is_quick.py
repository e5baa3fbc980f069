"""The n-gram prior is counted once for a tokenizer, in portions that look at the budget, and comes out the same.

How long that takes depends on the machine; what is counted here is work: who tokenises, how often, and what is kept.
"""

import gzip
import hashlib
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model, tiny_tokenizer

from gradleak.core import assets
from gradleak.core.budget import Budget
from gradleak.core.progress import Progress
from gradleak.priors import ngram
from gradleak.priors.base import load_prior
from gradleak.priors.ngram import DISCOUNT, NgramCounter, batch_tokeniser, corpus_sentences, count_ngrams

LINES = [f"The loan of ward {i} was refused . Rosa moved to ward {i % 7} on Friday ." for i in range(600)]
VOCABULARY = 5
sentences = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=6), max_size=9)


class Words(Progress):
    """What a user is told."""

    def __init__(self):
        self.lines, self.done, self.total, self.unit = [], [], 0, ""

    def begin(self, what, total, unit=""):
        self.lines.append(what)
        self.total, self.unit = total, unit

    def advance(self, done, *, loss=None, text=None):
        self.done.append(done)

    def message(self, line):
        self.lines.append(line)


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A cache of its own with a corpus of 1,200 sentences in the place of WikiText."""
    packed = gzip.compress("\n".join([" = Heading = ", *LINES]).encode())
    real = assets.find(ngram.CORPUS)
    file = assets.AssetFile(real.files[0].name, len(packed), hashlib.sha256(packed).hexdigest())
    small = real.__class__(**{**vars(real), "files": (file,)})
    monkeypatch.setitem(assets.ASSETS, ngram.CORPUS, small)
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path))
    folder = tmp_path / "assets" / ngram.CORPUS
    folder.mkdir(parents=True)
    (folder / file.name).write_bytes(packed)
    return folder


def plain_counts(corpus):
    """Trigrams one by one, then in how many contexts pairs and words were seen."""
    border, grams = VOCABULARY, Counter()
    for sentence in corpus:
        if sentence:
            framed = [border, border, *sentence, border]
            grams.update(zip(framed, framed[1:], framed[2:], strict=False))
    return grams, Counter((b, c) for _, b, c in grams), Counter(c for _, c in {(b, c) for _, b, c in grams})


def shares(grams):
    """Of every n-gram max(count − D, 0) / total of its context, and of every context what it leaves."""
    totals, followers = Counter(), Counter()
    for gram, count in grams.items():
        totals[gram[:-1]] += count
        followers[gram[:-1]] += 1
    base = VOCABULARY + 1

    def number(gram):
        return sum(token * base ** (len(gram) - 1 - place) for place, token in enumerate(gram))

    share = {number(gram): max(count - DISCOUNT, 0) / totals[gram[:-1]] for gram, count in grams.items()}
    rest = {number(context): DISCOUNT * followers[context] / totals[context] for context in totals}
    return dict(sorted(share.items())), dict(sorted(rest.items()))


@settings(max_examples=80)
@given(sentences.filter(any), sentences)
def test_counts_are_those_of_plain_counting_to_the_last_bit(first, second):
    counter = NgramCounter(VOCABULARY)
    counter.add(first)
    counter.add(second)
    prior = counter.prior()
    trigrams, pairs, words = plain_counts([*first, *second])
    for level, grams in ((prior._trigram, trigrams), (prior._bigram, pairs)):
        share, rest = shares(grams)
        assert (level.keys.tolist(), level.share.tolist()) == (list(share), list(share.values()))
        assert (level.contexts.tolist(), level.rest.tolist()) == (list(rest), list(rest.values()))
    weights = np.array([words[word] + 0.5 for word in range(VOCABULARY + 1)])
    assert prior._unigram.tolist() == (weights / weights.sum()).tolist()


@settings(max_examples=40)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=5), st.sampled_from(["bert", "gpt2", "llama"]))
def test_quick_tokenising_is_the_tokenizers_own(texts, family):
    tokenizer = tiny_tokenizer(family)
    model = type("Model", (), {"tokenizer": tokenizer})
    assert batch_tokeniser(model)(texts) == tokenizer(texts, add_special_tokens=False)["input_ids"]


def test_padding_and_truncation_of_a_tokenizers_file_cut_nothing():
    tokenizer = tiny_tokenizer("bert").__class__(tokenizer_object=tiny_tokenizer("bert").backend_tokenizer)
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    tokens = batch_tokeniser(type("Model", (), {"tokenizer": tokenizer}))(["The loan was refused."])
    assert 3 < len(tokens[0]) != 9
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 3, "the model's own tokenizer stays as it was"


def test_a_whole_count_is_kept_and_nothing_is_tokenised_again(corpus):
    model, words = tiny_model("bert", "classification", layers=1), Words()
    prior = load_prior("ngram", model, words)
    assert any("once for this tokenizer" in line and "seconds" in line for line in words.lines)
    assert words.unit == "sentences"
    assert len(words.done) > 1, "in portions, so that a budget or a user can stop it"
    assert words.done[-1] == words.total == len(corpus_sentences(corpus)) == 1200
    assert len(list((corpus.parents[1] / "priors").iterdir())) == 1
    again = Words()
    kept = load_prior("ngram", model, again)
    assert again.lines == again.done == []
    one_by_one = [model.tokenizer(s, add_special_tokens=False)["input_ids"] for s in corpus_sentences(corpus)]
    whole = count_ngrams(one_by_one, prior.vocabulary)
    asked = [one_by_one[0], one_by_one[-1][::-1], [7, 8, 9]]
    for other in (prior, kept):
        assert torch.equal(other.nll(asked), whole.nll(asked))


def test_a_budget_ends_the_counting_and_a_part_is_not_kept(corpus):
    model, words = tiny_model("bert", "classification", layers=1), Words()
    prior = load_prior("ngram", model, words, Budget(seconds=0))
    assert len(words.done) == 1, "one portion, so that there is something to guess with"
    assert words.done[0] < words.total
    assert any("budget ended the counting" in line and "%" in line for line in words.lines)
    assert not (corpus.parents[1] / "priors").exists()
    generator = torch.Generator().manual_seed(0)
    assert len(prior.sample(5, generator)) == 5
    # What was counted is spread over the corpus: sentences of its beginning and of its end are both likely.
    tokens = model.tokenizer(["Rosa moved to ward 1 on Friday.", "loan loan loan ward"], add_special_tokens=False)
    usual, odd = prior.nll(tokens["input_ids"])
    assert usual < odd
    load_prior("ngram", model, words, Budget(seconds=600))
    assert words.done[-1] == words.total
    assert len(list((corpus.parents[1] / "priors").iterdir())) == 1
