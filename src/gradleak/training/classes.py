"""How well a classifier predicts: accuracy, F1 and Matthews correlation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def classification_metrics(truth: Sequence[int], predicted: Sequence[int], classes: int) -> dict[str, float]:
    """Accuracy, F1 (of class 1 for two classes, else the mean over classes) and MCC, each from 0 (or −1) to 1.

    >>> classification_metrics([0, 1, 1, 1], [0, 1, 1, 0], classes=2)
    {'accuracy': 0.75, 'f1': 0.8, 'mcc': 0.5774}
    """
    table = np.zeros((classes, classes))
    np.add.at(table, (np.asarray(truth, dtype=int), np.asarray(predicted, dtype=int)), 1)
    right, true, claimed, total = np.diag(table), table.sum(axis=1), table.sum(axis=0), table.sum()
    f1 = np.divide(2 * right, true + claimed, out=np.zeros(classes), where=true + claimed > 0)
    spread = np.sqrt(float(total**2 - claimed @ claimed) * float(total**2 - true @ true))
    mcc = (right.sum() * total - true @ claimed) / spread if spread else 0.0
    return {
        "accuracy": round(float(right.sum() / total), 4),
        "f1": round(float(f1[1] if classes == 2 else f1.mean()), 4),
        "mcc": round(float(mcc), 4),
    }
