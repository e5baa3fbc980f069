"""Accuracy, F1 and MCC against their textbook definitions, counted one by one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak.training.classes import classification_metrics

PAIRS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40)


@given(PAIRS)
def test_two_classes_against_the_counts(pairs):
    tp, fp, fn, tn = (pairs.count(case) for case in ((1, 1), (0, 1), (1, 0), (0, 0)))
    found = classification_metrics([t for t, _ in pairs], [p for _, p in pairs], 2)
    assert found["accuracy"] == pytest.approx((tp + tn) / len(pairs), abs=1e-4)
    assert found["f1"] == pytest.approx(2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0, abs=1e-4)
    size = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert found["mcc"] == pytest.approx((tp * tn - fp * fn) / size if size else 0, abs=1e-4)


def test_three_classes():
    perfect = classification_metrics([0, 1, 2, 2], [0, 1, 2, 2], 3)
    assert perfect == {"accuracy": 1.0, "f1": 1.0, "mcc": 1.0}
    assert classification_metrics([0, 1, 2], [1, 2, 0], 3)["mcc"] < 0
