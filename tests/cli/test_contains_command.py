"""`gradleak contains`: what it writes and shows, what it masks, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run
from tiny import tiny_model

from gradleak import Client
from gradleak.data.texts import read_data

TEXTS = [row.text for row in read_data()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, an update of its, candidates and public text."""
    folder = tmp_path_factory.mktemp("contains")
    model = tiny_model("gpt2", "causal-lm")
    model.module.save_pretrained(folder / "model")
    model.tokenizer.save_pretrained(folder / "model")
    Client(model).update(TEXTS[:3]).save(folder / "update")
    (folder / "candidates.txt").write_text("\n".join(TEXTS[:6]))
    (folder / "public.txt").write_text("\n".join(TEXTS[6:]))
    (folder / "empty.txt").write_text("\n")
    (folder / "long.txt").write_text("word " * 300)
    return folder


def asked(place: Path, texts: str, *more: str, model: str = "model") -> list[str]:
    files = ["--texts", str(place / texts), "--public", str(place / "public.txt")]
    where = ["--model", str(place / model), "--out", str(place / "out")]
    return ["contains", str(place / "update"), *where, *files, *more]


def test_candidates_are_shown_and_written(place: Path) -> None:
    ended = run(*asked(place, "candidates.txt", "--task", "lm", "--references", "100"))
    assert ended.code == 0, ended.err
    assert "Confirmed at 1 % false alarms" in ended.out
    assert "cannot be shown" in ended.out
    written = json.loads((place / "out" / "contains.json").read_text())
    scores = [each["score"] for each in written["candidates"]]
    assert min(scores[:3]) > max(scores[3:])
    assert [each["text"] for each in written["candidates"]] == TEXTS[:6]


def test_nothing_private_is_shown_under_redact(place: Path) -> None:
    ended = run(*asked(place, "candidates.txt", "--task", "lm", "--references", "50", "--redact"))
    assert ended.code == 0, ended.err
    written = (place / "out" / "contains.json").read_text()
    assert not any(text[:12] in ended.out + ended.err + written for text in TEXTS[:6])


@pytest.mark.parametrize(
    ("texts", "more", "why"),
    [
        ("empty.txt", ("--task", "lm"), "holds no texts"),
        ("none.txt", ("--task", "lm"), "no data file"),
        ("long.txt", ("--task", "lm"), "takes at most"),
        ("candidates.txt", ("--task", "classification"), "loaded for classification"),
        ("candidates.txt", ("--task", "lm", "--references", "3"), "references"),
    ],
)
def test_what_is_wrong_is_one_line(place: Path, tmp_path: Path, texts: str, more: tuple[str, ...], why: str) -> None:
    ended = run(*asked(place, texts, *more, "--out", str(tmp_path / "out")))
    assert ended.refused
    assert why in ended.err
    assert not (tmp_path / "out").exists()


def test_images_have_no_candidates(place: Path, tmp_path: Path) -> None:
    ended = run(*asked(place, "candidates.txt", "--out", str(tmp_path / "out"), "--model", "lenet"))
    assert ended.refused
    assert "for text models" in ended.err
