"""Truth files of every task: as `capture` writes them, as tables, and without the labels that nobody knows."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tiny import TEXTS, tiny_model

from gradleak import GradleakError
from gradleak.audits.modality import Truth, modality_of
from gradleak.audits.text import TEXT
from gradleak.audits.truth import read_truth
from gradleak.data.draws import TextBatch
from gradleak.models.families import FAMILIES


@pytest.mark.parametrize("task", FAMILIES.get("bert").tasks)
def test_a_truth_gives_its_batch_back(task: str, tmp_path: Path) -> None:
    model, rng = tiny_model("bert", task), Random(1)
    labels = [model.goal.drawn_label(model, text, rng) for text in TEXTS] if model.goal.labelled else None
    truth = TEXT.truth(TextBatch(list(TEXTS), labels), model)
    place = tmp_path / "truth.json"
    place.write_text(truth.model_dump_json())
    assert read_truth(place) == truth
    assert TEXT.batch(read_truth(place), model) == TextBatch(list(TEXTS), labels)
    unknown = modality_of(model).batch(Truth(texts=list(TEXTS)), model)
    assert unknown.labels is None


def test_a_table_may_hold_numbers_or_lists_and_no_names(tmp_path: Path) -> None:
    place = tmp_path / "truth.jsonl"
    place.write_text('{"text": "a b", "label": [0, 2]}\n{"text": "c", "label": [1]}\n')
    assert read_truth(place).labels == [(0, 2), (1,)]
    place.write_text('{"text": "a b", "label": 0.5}\n{"text": "c", "label": 2}\n')
    assert read_truth(place).labels == [0.5, 2]
    place.write_text('{"text": "a b", "label": "yes"}\n')
    with pytest.raises(GradleakError, match="labels of a truth are numbers"):
        read_truth(place)


def test_a_table_may_name_the_classes_of_a_classifier(tmp_path: Path) -> None:
    model = tiny_model("bert", "classification")
    first, second = (str(name) for name in list(model.module.config.label2id)[:2])
    place = tmp_path / "truth.csv"
    place.write_text(f"text,label\na b,{second}\nc,{first}\n")
    assert read_truth(place, model).labels == [1, 0]
    place.write_text("text,label\na b,nowhere\n")
    with pytest.raises(GradleakError, match="'nowhere' is not a class of"):
        read_truth(place, model)
