"""The registry of metrics: what is in it, and one of the user's own from scoring to the page."""

from pathlib import Path

import numpy as np
import pytest
from blobs import blobs
from sample import sample_results

from gradleak import GradleakError, Reconstruction, score, score_images
from gradleak.attacks.base import Sentence
from gradleak.report.build import render
from gradleak.report.rows import as_csv, named_rows
from gradleak.scoring.interval import Interval
from gradleak.scoring.metric import Metric
from gradleak.scoring.metrics import (
    METRICS,
    choose_metrics,
    counts_of,
    figure,
    format_score,
    label_of,
    labels_of,
    metric_names,
    range_of,
)
from gradleak.verdict.gather import Gathered

TRUTH = ["Rosa moved to ward six.", "The loan was refused."]


def own(name, function, **changes):
    settings = {"label": name.title(), "counts": "what the test counts", "low": 0, "high": 10, "modality": "text"}
    return Metric(name=name, function=function, higher_is_closer=True, **settings | changes)


def guess(*texts):
    return Reconstruction(sentences=[Sentence(text=text, tokens=[1], confidence=1) for text in texts])


@pytest.mark.parametrize("name", METRICS.names())
def test_each_says_what_it_is(name):
    metric = METRICS.get(name)
    assert metric.name == name
    assert metric.low < metric.high
    assert metric.modality in ("text", "images")
    assert (label_of(name), counts_of(name), range_of(name)) == (
        metric.label, metric.counts, (metric.low, metric.high),
    )  # fmt: skip


def test_the_order_is_that_of_tables():
    assert metric_names("text") == [
        "rouge1", "rouge2", "rougeL", "token_accuracy", "exact_match", "best_rougeL", "sentence_recall",
        "sentence_precision", "nerr",
    ]  # fmt: skip
    assert metric_names("images") == ["mse", "psnr", "ssim", "lpips", "close_images"]
    assert [metric.name for metric in choose_metrics("images")] == ["mse", "psnr", "ssim", "close_images"]
    assert list(labels_of({"theirs": 1, "nerr": 1, "rougeL": 1})) == ["rougeL", "nerr", "theirs"]


def test_what_nobody_knows_is_shown_by_its_name():
    assert (label_of("mine:shouting"), counts_of("mine:shouting")) == ("mine:shouting", "")
    assert range_of("theirs") == (0, 100)
    assert (figure("theirs", 2.345), format_score("theirs", Interval(mean=2.3, low=1, high=3))) == (
        "2.3",
        "2.3 [1, 3]",
    )
    results = sample_results()
    results.trials[0].pairs[0].scores["<theirs>"] = 7.25
    results.summary["<theirs>"] = results.control["<theirs>"] = Interval(mean=7.25, low=0, high=100)
    page = render(Gathered(Path(), [results]))
    assert "&lt;theirs&gt;" in page
    assert "<theirs>" not in page
    assert "7.25" in as_csv(named_rows([results]))


def test_one_of_the_users_own(tiny_bert):
    length = own("length", lambda pair: len(pair.guess.text) or None)
    widest = own("widest", lambda batch: max(s["length"] for s in batch.scores if "length" in s), of_batch=True)
    scored = score(guess("rosa moved"), TRUTH, tiny_bert, metrics=[length, widest])
    assert [pair.scores.get("length") for pair in scored.pairs] == [10, None]
    assert (scored.metrics["length"], scored.metrics["widest"]) == (10, 10)
    assert list(scored.metrics)[-2:] == ["sentence_precision", "widest"]
    assert (label_of("length"), range_of("length")) == ("Length", (0, 10))
    assert "length" not in score(guess("rosa moved"), TRUTH, tiny_bert).metrics  # only where it is asked for
    with pytest.raises(GradleakError, match="another metric of the name 'length'"):
        score(guess("rosa moved"), TRUTH, tiny_bert, metrics=[own("length", lambda pair: 1)])
    with pytest.raises(GradleakError, match="another metric of the name 'rougeL'"):
        score(guess("rosa moved"), TRUTH, tiny_bert, metrics=[own("rougeL", lambda pair: 1)])


def test_one_of_the_users_own_for_images(tiny_bert):
    worst = own("worst", lambda pair: np.abs(pair.truth - pair.guess).max(), modality="images", high=1)
    truth = blobs(2)
    scored = score_images(Reconstruction(images=truth.uris()), truth, metrics=[worst])
    assert scored.metrics["worst"] == 0
    with pytest.raises(GradleakError, match="compares images, not text"):
        score(guess("rosa"), TRUTH, tiny_bert, metrics=[worst])
    with pytest.raises(GradleakError, match="unknown metric 'lpip'; did you mean 'lpips'"):
        score_images(Reconstruction(images=truth.uris()), truth, metrics=["lpip"])


OWN = """
from gradleak.scoring.metric import Metric

shouting = Metric(
    name="shouting", label="Shouting", counts="capitals of what was read back", low=0, high=1000,
    higher_is_closer=True, modality="text", function=lambda pair: sum(c.isupper() for c in pair.guess.text),
)
silence = "no metric"
"""


def test_one_from_a_file_of_the_working_folder(tiny_bert, tmp_path, monkeypatch):
    (tmp_path / "loud_metrics.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    scored = score(guess("ROSA"), TRUTH, tiny_bert, metrics=["loud_metrics:shouting"])
    assert scored.metrics["shouting"] == 2  # the mean over both sentences
    assert (label_of("shouting"), range_of("shouting")) == ("Shouting", (0, 1000))
    assert "shouting" not in metric_names()
    with pytest.raises(GradleakError, match="is no metric"):
        score(guess("ROSA"), TRUTH, tiny_bert, metrics=["loud_metrics:silence"])
    with pytest.raises(GradleakError, match="there is no module 'quiet_metrics'"):
        score(guess("ROSA"), TRUTH, tiny_bert, metrics=["quiet_metrics:shouting"])


def test_one_that_was_registered_is_always_measured(tiny_bert, monkeypatch):
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS._entries))
    monkeypatch.setattr(METRICS, "_loaded", dict(METRICS._loaded))
    METRICS.register(own("vowels", lambda pair: sum(c in "aeiou" for c in pair.guess.text)))
    assert metric_names("text")[-1] == "vowels"
    assert score(guess("rosa"), TRUTH, tiny_bert).metrics["vowels"] == 1
    assert "vowels" in as_csv(named_rows([sample_results()])).splitlines()[0]
