"""Rows that published experiments took. The numbers are what DAGER's own code, run beside, takes of these texts."""

from typing import get_args

import pytest

from gradleak import AuditSpec, GradleakError
from gradleak.data.corpora import read_rows
from gradleak.data.draws import draw_texts
from gradleak.data.published import INPUTS, TESTED, Published, published_order
from gradleak.data.texts import Row

TEXTS = [f"{i:04d}" + "x" * (i * 7 % 90) for i in range(1500)]


def test_the_rows_are_those_of_the_published_code():
    assert published_order("lamp-test", TEXTS, 2)[:5] == [1051, 1285, 1271, 778, 1235]
    assert published_order("dager-val", TEXTS, 1)[:5] == [52, 207, 1319, 96, 1493]
    assert published_order("dager-val", TEXTS, 4)[:5] == [588, 156, 1085, 657, 813]
    assert published_order("dager-val", TEXTS, 8)[:5] == [1134, 5, 1354, 1369, 1351]


def test_dager_takes_all_lengths_and_no_row_of_lamps():
    tested = published_order("lamp-test", TEXTS, 1)[:TESTED]
    chosen = published_order("dager-val", TEXTS, 1)
    assert len(set(chosen)) == INPUTS
    assert not set(chosen) & set(tested)
    left = sorted((row for row in range(len(TEXTS)) if row not in set(tested)), key=lambda row: len(TEXTS[row]))
    parts = [{len(TEXTS[row]) for row in left[first : first + 5]} for first in range(0, len(left), 5)]
    lengths = sorted(len(TEXTS[row]) for row in chosen)
    assert all(length in part for length, part in zip(lengths, parts, strict=True))


def test_rows_come_again_where_there_are_too_few():
    chosen = published_order("dager-val", TEXTS, 8)
    assert (len(chosen), len(set(chosen))) == (8 * INPUTS, len(TEXTS) - TESTED)
    with pytest.raises(GradleakError, match="leaves out 1000 rows"):
        published_order("dager-val", TEXTS[:TESTED], 1)


@pytest.mark.parametrize("rule", get_args(Published))
def test_batches_are_the_rule_s_whatever_the_seed(tiny_bert, rule):
    rows = [Row(text, 1) for text in TEXTS]
    drawn = [
        draw_texts(rows, tiny_bert, batch_size=2, trials=trials, seed=seed, rule=AuditSpec(draw=rule).draw)
        for trials, seed in ((2, 0), (3, 1))
    ]
    order = published_order(rule, TEXTS, 2)
    for batches in drawn:
        assert [text for batch in batches for text in batch.texts] == [
            TEXTS[row] for row in order[: 2 * len(batches)]
        ]


def test_dager_has_a_hundred_batches(tiny_bert):
    rows = [Row(text) for text in TEXTS]
    with pytest.raises(GradleakError, match="101 trials of 1 texts need 101 rows; dager-val has 100"):
        draw_texts(rows, tiny_bert, batch_size=1, trials=101, seed=0, rule="dager-val")


def test_rotten_tomatoes_as_the_hub_splits_it(tmp_path):
    """The first 4,265 of each class, good reviews first; `rotten_tomatoes` is all rows, bad ones first."""
    for name in ("neg", "pos"):
        (tmp_path / f"rt_polarity_{name}.txt").write_text("\n".join(f"{name} {i}" for i in range(4300)))
    rows = read_rows(f"rotten_tomatoes_train@{tmp_path}")
    assert len(rows) == 2 * 4265
    assert (rows[0], rows[4264], rows[4265]) == (Row("pos 0", 1), Row("pos 4264", 1), Row("neg 0", 0))
    every = read_rows(f"rotten_tomatoes@{tmp_path}")
    assert (len(every), every[0], every[-1]) == (8600, Row("neg 0", 0), Row("pos 4299", 1))


def test_sentences_of_sst2_are_its_long_rows(tmp_path):
    texts = [" ".join(["word"] * count) for count in (3, 17, 18, 22, 23)]
    rows = "".join(f"{text}\t{number % 2}\n" for number, text in enumerate(texts))
    (tmp_path / "sst2_train.tsv").write_text(f"sentence\tlabel\n{rows}")
    assert len(read_rows(f"sst2@{tmp_path}")) == 5
    assert read_rows(f"sst2_sentences@{tmp_path}") == [Row(texts[2], 0), Row(texts[3], 1)]
