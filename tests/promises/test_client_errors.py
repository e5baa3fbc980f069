"""Rules, adapters and files of clients that cannot be: each is one line, exit code 2, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run
from safetensors.torch import load_file, save_file
from tiny import tiny_model

from gradleak.models.load import load_model, save_model

pytest.importorskip("peft")

RULE = "adamw:lr=1e-3,steps=1,batch=2,wd=0"


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Models, adapters of theirs, an update and texts, each under its name."""
    place = tmp_path_factory.mktemp("files")
    for name, family, task, width in (
        ("classifier", "bert", "classification", 32),
        ("lm", "llama", "causal-lm", 32),
        ("wide", "llama", "causal-lm", 48),
    ):
        model = tiny_model(family, task, width=width)
        save_model(model.module, model.tokenizer, place / name)
    for name, base, rank in (("rank4", "lm", 4), ("rank2", "lm", 2), ("for-wide", "wide", 4)):
        adapted = load_model(place / base, lora=f"r={rank},b=0.02")
        save_model(adapted.module, adapted.tokenizer, place / name)
    captured = run("capture", "--model", place / "lm", "--batch-size", 2, "--client", RULE, "--out", place / "update")
    assert captured.code == 0, captured.err
    # Ten times as far as one step of this size leads.
    tensors = {name: 10 * tensor for name, tensor in load_file(place / "update" / "update.safetensors").items()}
    (place / "far").mkdir()
    save_file(tensors, place / "far" / "update.safetensors")
    (place / "far" / "manifest.json").write_bytes((place / "update" / "manifest.json").read_bytes())
    # A first step of a warm-up has size 0: no weight moves.
    (place / "still").mkdir()
    (place / "still" / "update.safetensors").write_bytes((place / "update" / "update.safetensors").read_bytes())
    manifest = json.loads((place / "update" / "manifest.json").read_text())
    (place / "still" / "manifest.json").write_text(
        json.dumps(manifest | {"client": manifest["client"] | {"warmup": 1}})
    )
    (place / "plain.txt").write_text("Rosa moved to ward six.\nThe loan was refused.\n" * 4)
    return place


AUDIT = "audit --out out --model {0}/"
CASES = {
    # --client
    "lr is no number": (AUDIT + "lm --client adamw:lr=nan", "lr"),
    "lr is infinite": (AUDIT + "lm --client adamw:lr=inf", "lr"),
    "lr is below zero": (AUDIT + "lm --client fedavg:lr=-1", "lr"),
    "no steps": (AUDIT + "lm --client adamw:steps=0", "steps"),
    "half a step": (AUDIT + "lm --client adamw:steps=1.5", "steps"),
    "a preset misspelt": (AUDIT + "lm --client flowertun", "flowertune"),
    "a rule misspelt": (AUDIT + "lm --client adamv:lr=1", "adamw"),
    "a setting misspelt": (AUDIT + "lm --client adamw:lrr=1", "lr"),
    "steps and epochs": (AUDIT + "lm --client adamw:steps=2,epochs=2", "either steps or epochs"),
    "steps of a gradient": (AUDIT + "lm --client fedsgd:steps=2", "local steps"),
    "momentum of adamw": (AUDIT + "lm --client adamw:momentum=0.9", "momentum"),
    "one beta": (AUDIT + "lm --client adamw:betas=0.9", "betas"),
    "a beta of one": (AUDIT + "lm --client adamw:betas=0.9/1", "betas"),
    "an unknown precision": (AUDIT + "lm --client adamw:wire=int4", "wire"),
    "clipping to nothing": (AUDIT + "lm --client adamw:clip=0", "clip"),
    "a preset's setting": (AUDIT + "lm --client flowertune:steps=0", "steps"),
    # --lora
    "rank 0": (AUDIT + "lm --lora r=0", "r"),
    "a rank that is no number": (AUDIT + "lm --lora r=many", "r"),
    "alpha is no number": (AUDIT + "lm --lora r=2,alpha=nan", "alpha"),
    "no such part": (AUDIT + "lm --lora targets=foo", "foo"),
    "no part": (AUDIT + "lm --lora targets=", "has no part"),
    "a preset without adapters": (AUDIT + "lm --lora nvflare-ner", "preset with adapters"),
    "adapters on images": ("audit --out out --model lenet --lora r=2", "lenet"),
    "adapters on adapters": (AUDIT + "rank4 --lora r=2", "has adapters already"),
    # convert
    "another base": (
        "convert --out out --model {0}/wide --before {0}/rank4 --after {0}/rank4 --client " + RULE, "another base",
    ),
    "another family": (
        "convert --out out --model {0}/classifier --before {0}/rank4 --after {0}/rank4 --client " + RULE, "rank4",
    ),
    "before and after of other ranks": (
        "convert --out out --model {0}/lm --before {0}/rank4 --after {0}/rank2 --client " + RULE, "r is 4",
    ),
    "before and after of other bases": (
        "convert --out out --model {0}/lm --before {0}/rank4 --after {0}/for-wide --client " + RULE, "shape",
    ),
    "a rule that sends gradients": (
        "convert --out out --model {0}/lm --before {0}/rank4 --after {0}/rank4 --client fedsgd", "gradient",
    ),
    # updates
    "further than the rule leads": ("attack {0}/far --out out --model {0}/lm", "cannot have made this update"),
    "moved by steps of size 0": ("attack {0}/still --out out --model {0}/lm", "cannot have made this update"),
    "adapters that the update lacks": ("attack {0}/update --out out --model {0}/rank4", "does not fit"),
    # completions
    "completions of a classifier": (AUDIT + "classifier --client fedsgd:loss=completion", "completion"),
    "texts without the marker": (
        AUDIT + "lm --data {0}/plain.txt --client fedsgd:loss=completion", "'### Response:'",
    ),
    "a marker without completions": (AUDIT + "lm --client fedsgd:marker=A", "loss=completion"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_in_one_line(case, files, tmp_path, monkeypatch):
    command, says = CASES[case]
    monkeypatch.chdir(tmp_path)
    before = sorted(files.rglob("*"))
    ended = run(*command.format(files).split())
    assert ended.code == 2, (ended.code, ended.err)
    assert len(ended.lines) == 1, ended.err
    assert ended.lines[0].startswith("gradleak: ")
    assert says in ended.lines[0]
    assert len(ended.lines[0]) < 600
    assert not list(tmp_path.iterdir())
    assert sorted(files.rglob("*")) == before
