"""Adapters that a plain peft script left: converted whatever their names and form, or refused in one line."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny import TEXTS, tiny_model

from gradleak import GradleakError, load_model, load_update
from gradleak.cli import app
from gradleak.models.adapter_names import plain_name, spellings
from gradleak.models.load import save_model
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.integrations.form import Form, bare

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

LR, STEPS, WEIGHTS, CONFIG = 2e-4, 2, "adapter_model.safetensors", "adapter_config.json"
RULE = f"adamw:lr={LR},epochs={STEPS},batch={len(TEXTS)}"
KINDS = {
    "plain": {},
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True, "lora_alpha": 32},
    "named": {"name": "hospital"},
    "head": {"modules_to_save": ["lm_head"]},
    "biases": {"target_modules": "all-linear"},
}


def trained(place: Path, *, base: Path, name: str = "default", **changes) -> Path:
    """What a script of someone else's does: adapters, some steps of AdamW, `save_pretrained` before and after."""
    module = transformers.AutoModelForCausalLM.from_pretrained(base)
    config = {"task_type": "CAUSAL_LM", "r": 4, "target_modules": ["q_proj", "v_proj"], **changes}
    torch.manual_seed(3)
    module = peft.get_peft_model(module, peft.LoraConfig(**config), adapter_name=name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    tokenizer.pad_token = tokenizer.eos_token
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    module.save_pretrained(place / "before")
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=LR)
    for _ in range(STEPS):
        optimizer.zero_grad()
        module(**inputs, labels=labels).loss.backward()
        optimizer.step()
    module.save_pretrained(place / "after")
    return place


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    model = tiny_model("llama", "causal-lm", width=32)
    return save_model(model.module, model.tokenizer, tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="module")
def left(tmp_path_factory, base):
    """A training of each kind, made on first use."""

    @functools.cache
    def of(kind: str) -> Path:
        return trained(tmp_path_factory.mktemp(kind), base=base, **KINDS[kind])

    return of


def convert(*words):
    app([str(word) for word in ("convert", *words)], standalone_mode=False)


@pytest.mark.parametrize("kind", KINDS)
def test_what_peft_saves_is_converted(left, base, tmp_path, kind):
    place = left(kind)
    out = tmp_path / "update"
    files = ("--before", place / "before", "--after", place / "after")
    convert("--model", base, *files, "--client", RULE, "--sentences", len(TEXTS), "--out", out)
    model = load_model(tmp_path / "update.model")
    update = load_update(out, model)
    assert update.manifest.client == ClientRule.parse(RULE)
    assert update.manifest.notes == ()
    inner = "hospital" if kind == "named" else "."
    held = [load_file(place / when / inner / WEIGHTS) for when in ("before", "after")]
    moved = {plain_name(name): held[0][name] - tensor for name, tensor in held[1].items()}
    found = {f"base_model.model.{plain_name(name)}": tensor for name, tensor in update.tensors.items()}
    assert found.keys() == {name for name, tensor in moved.items() if bool((tensor != 0).any())}
    assert all(torch.equal(tensor, moved[name]) for name, tensor in found.items())
    assert json.loads((tmp_path / "update.model" / CONFIG).read_text())["base_model_name_or_path"] == str(base)


def test_a_converted_update_is_attacked(left, base, tmp_path):
    place = left("plain")
    convert("--model", place / "before", "--after", place / "after", "--client", RULE, "--out", tmp_path / "update")
    assert not (tmp_path / "update.model").exists()  # the model given is where the training began
    words = (
        "attack",
        tmp_path / "update",
        "--model",
        place / "before",
        "--budget",
        "8s",
        "--out",
        tmp_path / "found",
    )
    app([str(word) for word in words], standalone_mode=False)
    assert (tmp_path / "found" / "results.json").is_file()


def test_weight_files_alone(left, base, tmp_path):
    """With the settings beside one of them, or as the adapters of the model."""
    place = left("plain")
    torch.save(load_file(place / "after" / WEIGHTS), tmp_path / "after.pt")
    start = place / "before" / WEIGHTS
    convert("--model", base, "--before", start, "--after", tmp_path / "after.pt", "--client", RULE, "--out",
            tmp_path / "one")  # fmt: skip
    convert(
        "--model", place / "before", "--after", tmp_path / "after.pt", "--client", RULE, "--out", tmp_path / "two"
    )
    one, two = (load_update(tmp_path / name) for name in ("one", "two"))
    assert one.tensors.keys() == two.tensors.keys()
    assert all(torch.equal(two.tensors[name], tensor) for name, tensor in one.tensors.items())
    shutil.copy(start, tmp_path / "before.safetensors")
    refused("is known from it alone", tmp_path, "--model", base, "--before", tmp_path / "before.safetensors",
            "--after", tmp_path / "after.pt", "--client", RULE)  # fmt: skip


def refused(message, tmp_path, *words):
    """One line that names what is wrong, and nothing written."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(GradleakError, match=message) as caught:
        convert(*words, "--out", tmp_path / "refused")
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_adapters_of_another_base_or_rank_are_refused(left, base, tmp_path):
    place = left("plain")
    rule = ("--client", RULE)
    wide = tiny_model("llama", "causal-lm", width=48)
    other = save_model(wide.module, wide.tokenizer, tmp_path / "wide")
    files = ("--before", place / "before", "--after", place / "after")
    refused("does not fit its model: .* is it for another base, or rank", tmp_path, "--model", other, *files, *rule)
    encoder = tiny_model("bert", "classification")
    bert = save_model(encoder.module, encoder.tokenizer, tmp_path / "bert")
    refused("Target modules", tmp_path, "--model", bert, *files, *rule)
    small = trained(tmp_path / "small", base=base, r=2)
    for words in (
        ("--model", base, "--before", place / "before", "--after", small / "after"),
        ("--model", place / "before", "--after", small / "after"),
    ):
        refused("not of one training: r is 4 .* and 2", tmp_path, *words, *rule)
    (small / "after" / CONFIG).unlink()
    refused(r"shape \[2, 32\], the model's has \[4, 32\]", tmp_path, "--model", place / "before", "--after",
            small / "after", *rule)  # fmt: skip
    refused("begin with random factors", tmp_path, "--model", base, "--after", place / "after", *rule)
    refused("holds adapters and .* does not", tmp_path, "--model", base, "--before", base, "--after", place / "after",
            *rule)  # fmt: skip


def test_an_adapters_folder_must_hold_one_set_of_weights(left, base, tmp_path):
    place = left("plain")
    folder = shutil.copytree(place / "after", tmp_path / "after")
    rule = ("--model", base, "--before", place / "before", "--client", RULE)
    held = load_file(folder / WEIGHTS)
    torch.save(held, folder / "adapter_model.bin")
    convert(*rule, "--after", folder, "--out", tmp_path / "same")
    torch.save({name: tensor + 1 for name, tensor in held.items()}, folder / "adapter_model.bin")
    refused("which disagree", tmp_path, *rule, "--after", folder)
    for name in ("one", "two"):
        shutil.copytree(place / "after", tmp_path / "several" / name)
    refused("holds 2 adapters: one, two", tmp_path, *rule, "--after", tmp_path / "several")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (f"adamw:lr={LR / 2},epochs=2,batch=3", "cannot have made this update: .* is lr, wd or the number of steps"),
        (f"adamw:lr={LR},epochs=1,batch=3", "cannot have made this update"),
        (f"adam:lr={LR},steps=3,epochs=2,batch=3", "give either steps or epochs"),
    ],
)
def test_a_rule_that_cannot_have_made_it_is_refused(left, base, tmp_path, rule, message):
    place = left("plain")
    refused(message, tmp_path, "--model", place / "before", "--after", place / "after", "--client", rule,
            "--sentences", 3)  # fmt: skip


def test_more_steps_than_the_passes_have_are_refused(left, base, tmp_path):
    place = left("plain")
    options = ("--optimizer", "adam", "--lr", LR, "--steps", 3, "--epochs", 2, "--batch", 3, "--sentences", 3)
    refused("3 steps of 3 sentences are more than 2 passes over 3 have: 2", tmp_path, "--model", place / "before",
            "--after", place / "after", *options)  # fmt: skip


# --- names --------------------------------------------------------------------------------------------


@functools.cache
def adapted_form(dora: bool, name: str):
    module = tiny_model("llama", "causal-lm", layers=1, width=8).module
    config = peft.LoraConfig(
        r=2, target_modules=["q_proj", "embed_tokens"], modules_to_save=["lm_head"], use_dora=dora
    )
    if dora:
        config.target_modules = {"q_proj"}  # the library has no such embeddings
    wrapped = peft.get_peft_model(module, config, adapter_name=name)
    state = peft.get_peft_model_state_dict(wrapped, adapter_name=name, save_embedding_layers=False)
    return Form.of(wrapped), state, {n for n, p in bare(wrapped).named_parameters() if p.requires_grad}


names = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True).filter(lambda name: name not in ("weight", "bias"))


@settings(max_examples=60, deadline=None)
@given(
    st.booleans(), st.sampled_from(["default", "mine"]), names,
    st.sampled_from(["", "model.", "base_model.model.", "module.base_model.model."]), st.booleans(),
)  # fmt: skip
def test_every_spelling_of_a_name_is_found(dora, own, other, prefix, with_name):
    """Whatever the adapter is called in the file and in the model, and whatever stands before."""
    form, state, wanted = adapted_form(dora, own)
    spelt = {}
    for name, tensor in state.items():
        rest = name.removeprefix("base_model.model.")
        if with_name and "lora_" in rest:
            head, _, last = rest.partition(".weight")
            weight = ".weight" if last or rest.endswith(".weight") or "magnitude" in rest else ""
            rest = f"{head}.{other}{weight}"
        elif with_name:
            head, _, last = rest.rpartition(".")
            rest = f"{head}.modules_to_save.{other}.{last}"
        spelt[prefix + rest] = tensor
    found = form.named(spelt)
    assert found.keys() == wanted
    assert {plain_name(name): tuple(t.shape) for name, t in found.items()} == {
        plain_name(name).removeprefix("base_model.model."): tuple(t.shape) for name, t in state.items()
    }


@given(st.text(max_size=60))
def test_any_name_has_spellings(name):
    assert name in spellings(name) or any(each in name for each in ("lora_", "modules_to_save"))


def test_names_with_the_adapters_load_as_a_model(left, tmp_path):
    """Tools that save the state dict themselves keep the adapter's name."""
    folder = shutil.copytree(left("head") / "before", tmp_path / "spelt")
    held = load_file(folder / WEIGHTS)
    spelt = {name.replace(".weight", ".mine.weight") if "lora_" in name else name: t for name, t in held.items()}
    save_file({name.removeprefix("base_model.model."): tensor for name, tensor in spelt.items()}, folder / WEIGHTS)
    assert load_model(folder).fingerprint == load_model(left("head") / "before").fingerprint
