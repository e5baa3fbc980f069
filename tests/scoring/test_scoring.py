"""Metrics against independent computations, assignment against brute force, intervals against theory."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer

from gradleak import score
from gradleak.attacks.base import Reconstruction, Sentence
from gradleak.scoring.assign import best_assignment
from gradleak.scoring.interval import mean_interval
from gradleak.scoring.metrics.batch import RECOVERED, best_score, precision, recall
from gradleak.scoring.metrics.tokens import exact_match, token_accuracy
from gradleak.scoring.text import rouge, words

sentences = st.lists(st.sampled_from(["the", "cat", "sat", "on", "a", "mat", "again"]), min_size=1, max_size=8)


def f_measure(overlap, truth, guess):
    return 0.0 if not overlap else 200 * overlap / (truth + guess)


def longest_common(a, b):
    table = np.zeros((len(a) + 1, len(b) + 1), dtype=int)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1, j + 1] = table[i, j] + 1 if x == y else max(table[i, j + 1], table[i + 1, j])
    return int(table[-1, -1])


@given(sentences, sentences)
def test_rouge_by_its_definition(truth, guess):
    scores = rouge(" ".join(truth), " ".join(guess))
    ones = sum((Counter(truth) & Counter(guess)).values())
    pairs = [Counter(itertools.pairwise(words)) for words in (truth, guess)]
    twos = sum((pairs[0] & pairs[1]).values())
    assert scores["rouge1"] == pytest.approx(f_measure(ones, len(truth), len(guess)))
    assert scores["rouge2"] == pytest.approx(f_measure(twos, len(truth) - 1, len(guess) - 1))
    assert scores["rougeL"] == pytest.approx(f_measure(longest_common(truth, guess), len(truth), len(guess)))


@given(sentences | st.just([]), sentences | st.just([]))
def test_rouge_is_the_reference_implementations(truth, guess):
    scores = RougeScorer(["rouge1", "rouge2", "rougeL"]).score(*(" ".join(words) for words in (truth, guess)))
    ours = rouge(" ".join(truth), " ".join(guess))
    assert ours == {name: 100 * value.fmeasure for name, value in scores.items()}


@given(st.text(st.characters(max_codepoint=127)))
def test_words_of_plain_text_are_the_reference_implementations(text):
    assert words(text) == DefaultTokenizer().tokenize(text)


@pytest.mark.parametrize(
    "text", ["Доктор Иванов переехал", "Ο γιατρός έφυγε", "הרופא עזב", "医生离开了", "แพทย์ออกไป", "डॉक्टर चला गया"]
)
def test_a_perfect_recovery_in_any_script_scores_as_one(text):
    assert set(rouge(text, text).values()) == {100.0}
    assert rouge(text, "the doctor left")["rouge1"] == 0


def test_token_metrics():
    assert token_accuracy([1, 2, 3], [1, 2]) == pytest.approx(200 / 3)
    assert token_accuracy([], [1]) == 0
    assert exact_match([1, 2], [1, 2]) == 100
    assert exact_match([1, 2], [1, 2, 3]) == 0


@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_assignment_by_brute_force(rows, columns, data):
    gains = [[data.draw(st.integers(0, 20)) for _ in range(columns)] for _ in range(rows)]
    chosen = best_assignment(gains)
    used = [c for c in chosen if c is not None]
    assert len(used) == len(set(used)) == min(rows, columns)
    total = sum(gains[r][c] for r, c in enumerate(chosen) if c is not None)
    if rows <= columns:
        options = itertools.permutations(range(columns), rows)
        best = max(sum(gains[r][c] for r, c in enumerate(o)) for o in options)
    else:
        options = itertools.permutations(range(rows), columns)
        best = max(sum(gains[r][c] for c, r in enumerate(o)) for o in options)
    assert total == best


def test_interval_is_near_the_normal_one():
    values = np.random.default_rng(1).normal(50, 10, size=400)
    interval = mean_interval(list(values))
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert interval.mean == pytest.approx(values.mean())
    assert interval.high - interval.mean == pytest.approx(half, rel=0.1)
    assert interval.mean - interval.low == pytest.approx(half, rel=0.1)


def test_interval_edges():
    assert mean_interval([7.0, 7.0, 7.0]).model_dump() == {"mean": 7.0, "low": 7.0, "high": 7.0}
    assert mean_interval([3.0]).high == 100.0
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])


def guess(model, *texts):
    rows = [model.content(model.tokenizer(t)["input_ids"]) for t in texts]
    return Reconstruction(sentences=[Sentence(text=model.decode(r), tokens=r, confidence=1) for r in rows])


def test_a_batch_is_paired_and_padded(tiny_bert):
    truth = ["Rosa moved to ward six.", "The loan was refused."]
    swapped = score(guess(tiny_bert, "the loan was refused.", "rosa moved to ward six."), truth, tiny_bert)
    assert set(swapped.metrics.values()) == {100.0}
    half = score(guess(tiny_bert, "the loan was refused."), truth, tiny_bert)
    assert half.metrics["exact_match"] == 50
    assert [pair.reconstruction for pair in half.pairs] == ["", "the loan was refused."]
    nothing = score(guess(tiny_bert), truth, tiny_bert)
    assert set(nothing.metrics.values()) == {0.0}


def test_special_tokens_earn_nothing(tiny_bert):
    truth = ["Rosa moved to ward six."]
    found = guess(tiny_bert, "[CLS] [SEP] quite other words")
    assert score(found, truth, tiny_bert).metrics["rouge1"] == 0


tables = st.integers(1, 5).flatmap(
    lambda wide: st.lists(st.lists(st.floats(0, 100), min_size=wide, max_size=wide), min_size=1, max_size=5)
)


def batch_metrics(table):
    return {
        "best_rougeL": best_score(table),
        "sentence_recall": recall(table),
        "sentence_precision": precision(table),
    }


@given(tables)
def test_batch_metrics_by_counting(table):
    found = batch_metrics(table)
    truths, candidates = range(len(table)), range(len(table[0]))
    matched = {i for i in truths if any(table[i][j] > RECOVERED for j in candidates)}
    right = {j for j in candidates if any(table[i][j] > RECOVERED for i in truths)}
    assert found["best_rougeL"] == max(map(max, table))
    assert found["sentence_recall"] == pytest.approx(100 * len(matched) / len(truths))
    assert found["sentence_precision"] == pytest.approx(100 * len(right) / len(candidates))
    assert (found["best_rougeL"] > RECOVERED) == bool(matched) == bool(right)


@given(tables, st.randoms())
def test_batch_metrics_know_no_order_and_swap_with_the_sides(table, random):
    shuffled = random.sample(table, len(table))
    assert batch_metrics(shuffled) == pytest.approx(batch_metrics(table))
    turned = batch_metrics([list(column) for column in zip(*table, strict=True)])
    found = batch_metrics(table)
    assert turned["sentence_recall"] == found["sentence_precision"]
    assert turned["sentence_precision"] == found["sentence_recall"]


@given(tables, st.integers(1, 5))
def test_useless_candidates_cost_precision_only(table, more):
    found, padded = batch_metrics(table), batch_metrics([[*row, *[0.0] * more] for row in table])
    assert padded["sentence_recall"] == found["sentence_recall"]
    assert padded["best_rougeL"] == found["best_rougeL"]
    assert padded["sentence_precision"] <= found["sentence_precision"]


def test_exactly_at_the_line_is_not_recovered():
    assert batch_metrics([[RECOVERED]])["sentence_recall"] == 0
    assert batch_metrics([[], []]) == {"best_rougeL": 0, "sentence_recall": 0, "sentence_precision": 0}


def test_more_candidates_than_sentences(tiny_bert):
    truth = ["Rosa moved to ward six.", "The loan was refused."]
    found = guess(tiny_bert, "the loan was refused.", "the loan was refused", "your flight leaves at noon on friday.")
    metrics = score(found, truth, tiny_bert).metrics
    assert (metrics["best_rougeL"], metrics["sentence_recall"]) == (100, 50)
    assert metrics["sentence_precision"] == pytest.approx(200 / 3)
