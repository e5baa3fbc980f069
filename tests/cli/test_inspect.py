"""`gradleak models inspect`: what is shown of a model, as a table, as JSON and as a declaration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run
from tiny import tiny_model, unlisted_model

from gradleak import TextModel
from gradleak.models.families import FAMILIES, Family


def saved(model: TextModel, folder: Path) -> str:
    model.module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.usefixtures("wide")
def test_an_unlisted_model_is_shown(tmp_path: Path) -> None:
    folder = saved(unlisted_model("stablelm", "causal-lm"), tmp_path / "model")
    shown = run("models", "inspect", folder)
    assert shown.code == 0
    for said in (
        "stablelm (found by structure)", "decoder", "2 layers, width 16", "model.layers.0.self_attn.q_proj",
        "16 x 16", "runs beside the attention", "LayerNorm", "layer_norm", "film",
    ):  # fmt: skip
        assert said in shown.out
    told = json.loads(run("models", "inspect", folder, "--json").out)
    assert told["roles"]["value"] == {"path": "model.layers.0.self_attn.v_proj", "shape": [8, 16], "rows": None}
    assert told["declared"] == "found"
    assert told["attacks"]["exact"] == ""
    assert "train-inverter" in told["attacks"]["lti"]


def test_the_declaration_can_be_kept_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = unlisted_model("falcon", "causal-lm")
    folder = saved(model, tmp_path / "model")
    source = run("models", "inspect", folder, "--declaration").out
    scope: dict[str, Family] = {}
    exec(source, scope)
    assert scope["FALCON"] == model.adapter.family
    (tmp_path / "kept_falcon.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    again = run("models", "inspect", folder, "--family", "kept_falcon:FALCON", "--json")
    assert json.loads(again.out)["declared"] == "own"


@pytest.mark.usefixtures("wide")
def test_listed_families_adapters_and_shared_parts(tmp_path: Path) -> None:
    folder = saved(tiny_model("gpt2", "causal-lm"), tmp_path / "model")
    shown = run("models", "inspect", folder, "--lora", "r=2")
    whole = " ".join(shown.out.split())  # a long name of the folder breaks the line
    for said in ("gpt2 (a listed family)", "block 2 of 3", "r=2,alpha=4", "transformer.wte.weight = lm_head.weight"):
        assert said in whole
    declared: dict[str, Family] = {}
    exec(run("models", "inspect", folder, "--declaration").out, declared)
    assert declared["GPT2"] == FAMILIES.get("gpt2")


def test_images_and_nonsense_are_answered_politely(tmp_path: Path) -> None:
    assert "an image model" in run("models", "inspect", "lenet").out
    assert run("models", "inspect", "lenet", "--declaration").refused
    assert run("models", "inspect", str(tmp_path)).refused
    assert run("models", "inspect", "lenet", "--declaration", "--json").refused
    assert run("models", "inpsect").refused
    assert "roberta" in run("models").out
