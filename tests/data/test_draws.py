"""Trials are drawn once: more of them keep the first ones as they were."""

import pytest

from gradleak import GradleakError
from gradleak.data.draws import draw_texts
from gradleak.data.texts import Row


def test_trials_are_stable_and_distinct(tiny_bert):
    rows = [Row(f"sentence number {i}", i % 2) for i in range(20)]
    few = draw_texts(rows, tiny_bert, batch_size=2, trials=3, seed=5)
    many = draw_texts(rows, tiny_bert, batch_size=2, trials=10, seed=5)
    assert [t.texts for t in few] == [t.texts for t in many[:3]]
    used = [text for trial in many for text in trial.texts]
    assert len(set(used)) == 20
    assert draw_texts(rows, tiny_bert, batch_size=2, trials=3, seed=6) != few
    with pytest.raises(GradleakError, match="need 22 rows; the data has 20"):
        draw_texts(rows, tiny_bert, batch_size=2, trials=11, seed=0)


def test_missing_labels_are_drawn_and_long_rows_passed_over(tiny_bert):
    rows = [Row("short one"), Row("a much longer sentence with far too many words in it to be taken")]
    (trial,) = draw_texts(rows, tiny_bert, batch_size=1, trials=1, seed=0, max_tokens=12)
    assert trial.texts == ["short one"]
    assert trial.labels[0] in (0, 1)
