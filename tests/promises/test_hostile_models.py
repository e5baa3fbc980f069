"""Odd and hostile model folders end in one line, quickly, and take no memory."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CASES, TEXTS, tiny_model, tiny_tokenizer

from gradleak import GradleakError, audit, load_model
from gradleak.core.peak import peak_memory
from gradleak.models.load import save_model

# What a refusal may take beyond what the process has already.
SECONDS, MEGABYTES = 5.0, 300.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Every family and task, saved once."""
    place = tmp_path_factory.mktemp("models")
    return {
        case: save_model(tiny_model(*case).module, tiny_tokenizer(case[0]), place / "-".join(case)) for case in CASES
    }


@pytest.fixture
def folder(folders: dict[tuple[str, str], Path], tmp_path: Path) -> Path:
    return shutil.copytree(folders["bert", "classification"], tmp_path / "model")


def outcome(source: Any, **how: Any) -> str:
    """The line in which a model is refused, or "" for one that works; neither takes long or much."""
    began, used = time.monotonic(), memory_now()
    with peak_memory(torch.device("cpu")) as peak:
        try:
            model = load_model(source, **how)
            batch = model.encode(TEXTS[:1])
            labels = batch.ids if model.task == "causal-lm" else torch.tensor([1])
            model.batch_loss(batch, labels).backward()
            line = ""
        except GradleakError as error:
            line = str(error)
            assert line
            assert "weights_only" not in line
    assert time.monotonic() - began < SECONDS
    assert peak.megabytes is not None
    assert peak.megabytes - used < MEGABYTES
    return line


def memory_now() -> float:
    """Megabytes that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


# --- the device and the number of classes ---------------------------------------------------------------


@pytest.mark.parametrize(
    "device", ["meta", "cuda:99", "", "gpu", "cpu:-3", "xla", "hpu", "maia", "mps:7", "\n", "lazy"]
)
def test_a_device_that_cannot_compute_is_refused(folder, device):
    assert f"device {device!r} cannot be used here" in outcome(folder, device=device)
    assert f"device {device!r} cannot be used here" in outcome("lenet", device=device)


@pytest.mark.parametrize("count", [99_999_999, 10**15, 10**30, 0, -1, 1, True, 2.5, "3"])
def test_a_number_of_classes_that_no_classifier_has(folder, count):
    assert "classes" in outcome(folder, num_labels=count)


def test_classes_are_checked_against_the_free_memory(folder, monkeypatch):
    from gradleak.core import memory

    assert outcome(folder, num_labels=50_000) == ""
    monkeypatch.setattr(memory, "_allowance", 1 << 20)
    assert "free" in outcome(folder, num_labels=50_000)


def test_data_of_the_other_kind_is_told_from_a_broken_file(tmp_path):
    for data, model, said in (
        ("texts.csv", "lenet", "lenet reads images, and texts.csv holds texts"),
        ("builtin", "lenet", "lenet reads images"),
        ("images.npz", "minilm", "images.npz holds images, and minilm reads text"),
    ):
        with pytest.raises(GradleakError, match=said):
            audit(model, data=data, trials=1)


# --- config.json ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 0}, "layers"),
        ({"num_hidden_layers": 1_000_000}, "1,000,000 layers"),
        ({"num_hidden_layers": 10**18}, "layers"),
        ({"num_hidden_layers": -2}, "layers"),
        ({"num_hidden_layers": True}, "layers"),
        ({"num_hidden_layers": "2"}, "layers"),
        ({"architectures": 5}, "architectures"),
        ({"architectures": "BertModel"}, "architectures"),
        ({"architectures": [5]}, "architectures"),
        ({"problem_type": 7}, "problem_type"),
        ({"hidden_size": -16}, ""),
        ({"hidden_size": 0}, ""),
        ({"intermediate_size": 10**12}, "parameters"),
        ({"vocab_size": 10**11}, "parameters"),
        ({"vocab_size": 10**30}, ""),
        ({"vocab_size": 500_000_000}, "parameters"),
        ({"num_labels": 99_999_999}, "classes"),
        ({"id2label": {"0": "a"}, "label2id": {"a": 0}}, "has shape [2, 16]"),
        ({"id2label": [1, 2]}, ""),
        ({"num_attention_heads": 3}, ""),
        ({"model_type": ["bert"]}, "model_type"),
        ({"model_type": 5}, "model_type"),
        ({"model_type": "nothing"}, "'nothing' are not supported"),
        ({"layer_norm_eps": float("nan")}, "finite"),
        ({"hidden_act": "os.system"}, ""),
        ({"transformers_weights": "../../other.safetensors"}, None),
        ({"auto_map": {"AutoConfig": "evil.Evil", "AutoModelForSequenceClassification": "evil.Evil"}}, None),
        ({"return_dict": False}, None),
    ],
)
def test_configurations_end_in_a_model_or_one_line(folder, changes, said):
    edit(folder / "config.json", **changes)
    line = outcome(folder)
    if said is not None:
        assert line
        assert said in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "config.json"),
        ("[]", "config.json"),
        ("5", "config.json"),
        ("[" * 100_000, "config.json"),
        ('{"model_type": "bert", "model_type": "gpt2"}', "'model_type' twice"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "config.json"),
        ('{"architectures": ["\\ud800"]}', "config.json"),
    ],
)
def test_a_broken_config(folder, text, said):
    (folder / "config.json").write_text(text)
    assert said in outcome(folder)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-3, 80) | st.floats() | st.text(max_size=8)
    | st.sampled_from([10**9, 10**18, 2**31, "bert", "gpt2", "relu", "float16", "int8", "longrope", "rope_type"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


@given(data=st.data())
@settings(max_examples=120)
def test_any_value_in_any_field_of_a_config(folders, data):
    case = data.draw(st.sampled_from(CASES))
    file = folders[case] / "config.json"
    whole = file.read_text()
    fields = [*sorted(json.loads(whole)), "num_labels", "return_dict", "quantization_config", "dtype"]
    changes = data.draw(st.dictionaries(st.sampled_from(fields), ANY, min_size=1, max_size=2))
    try:
        edit(file, **changes)
        outcome(folders[case])
    finally:
        file.write_text(whole)


@given(data=st.data())
@settings(max_examples=60)
def test_any_value_in_any_field_of_a_tokenizer(folders, data):
    folder = folders[data.draw(st.sampled_from([("bert", "classification"), ("gpt2", "causal-lm")]))]
    file = folder / data.draw(st.sampled_from(["tokenizer.json", "tokenizer_config.json"]))
    whole = file.read_text()
    fields = [*sorted(json.loads(whole)), "auto_map", "model_max_length", "tokenizer_class"]
    try:
        edit(file, **{data.draw(st.sampled_from(fields)): data.draw(ANY)})
        outcome(folder)
    finally:
        file.write_text(whole)


# --- weight files ---------------------------------------------------------------------------------------


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def header(text: str) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        file.write_bytes(struct.pack("<Q", len(text)) + text.encode())

    return write


def replaced_by(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        file.unlink()
        make(file)

    return write


@pytest.mark.parametrize(
    "spoil",
    [
        cut,
        header('{"a": {"dtype": "F32", "shape": [1000000000, 1000], "data_offsets": [0, 4000000000000]}}'),
        header('{"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, "a": 5}'),
        header("{}"),
        replaced_by(os.mkfifo),
        replaced_by(lambda file: file.symlink_to("/dev/zero")),
        replaced_by(lambda file: file.symlink_to("/dev/null")),
        replaced_by(Path.mkdir),
        Path.unlink,
    ],
)
def test_spoilt_weight_files(folder, spoil):
    spoil(folder / "model.safetensors")
    assert "safetensors" in outcome(folder)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
)
def test_a_pipe_or_a_device_in_place_of_a_file(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert name in outcome(folder)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    assert name in outcome(folder)


@pytest.fixture
def shards(folder: Path) -> Path:
    (folder / "model.safetensors").unlink()
    tiny_model("bert", "classification").module.save_pretrained(folder, max_shard_size="10KB")
    return folder


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("place", ["../secret.safetensors", "/etc/passwd", "inside/a.safetensors", "..", "", 5, None])
def test_an_index_that_points_outside(shards, place):
    (shards.parent / "secret.safetensors").write_bytes((next(shards.glob("model-*"))).read_bytes())
    index = json.loads((shards / INDEX).read_text())
    first = next(iter(index["weight_map"]))
    edit(shards / INDEX, weight_map={**index["weight_map"], first: place})
    assert INDEX in outcome(shards)


def test_an_index_whose_files_are_not_there_or_hold_something_else(shards):
    whole = (shards / INDEX).read_text()
    edit(shards / INDEX, weight_map={**json.loads(whole)["weight_map"], "more": "model-9.safetensors"})
    assert "model-9.safetensors" in outcome(shards)
    (shards / INDEX).write_text(whole.replace('"weight_map": {', '"weight_map": {}, "weight_map": {', 1))
    assert "twice" in outcome(shards)
    for text in ("[]", "{}", '{"weight_map": 5}', '{"weight_map": {}}'):
        (shards / INDEX).write_text(text)
        assert INDEX in outcome(shards)
    (shards / INDEX).write_text(whole)
    assert outcome(shards) == ""
    next(shards.glob("model-*")).unlink()
    assert "safetensors" in outcome(shards)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    ("content", "said"),
    [({"a": Evil()}, "more than tensors"), ({"a.weight": torch.zeros(2).to(torch.int8)}, "int8")],
)
def test_old_weight_files(folder, content, said, tmp_path, monkeypatch):
    """Read in a process of their own, which takes seconds to start."""
    monkeypatch.chdir(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(GradleakError, match=rf"pytorch_model\.bin: .*{said}") as error:
        load_model(folder)
    assert "weights_only" not in str(error.value)
    assert not Path("evil").exists()


# --- tokenizers and adapters ----------------------------------------------------------------------------


def test_a_missing_or_broken_tokenizer(folder):
    whole = (folder / "tokenizer.json").read_bytes()
    for content in (b"", b"{}", b"[]", whole[:-50], b"\xff\xfe"):
        (folder / "tokenizer.json").write_bytes(content)
        assert "tokenizer" in outcome(folder)
    (folder / "tokenizer.json").unlink()
    assert "tokenizer" in outcome(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base_model_name_or_path": "SELF"}, "adapter"),
        ({"base_model_name_or_path": 5}, "base_model_name_or_path"),
        ({"r": 10**12}, "r"),
        ({"r": 0}, ""),
        ({"r": -1}, ""),
        ({"rank_pattern": {"query": 10**9}}, ""),
        ({"peft_type": 5}, ""),
        ({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 10**9}, "LoRA"),
        ({"megatron_config": {"a": 1}, "megatron_core": "this"}, ""),
        ({"target_modules": 5}, ""),
    ],
)
def test_hostile_adapters(folder, tmp_path, changes, said):
    peft = pytest.importorskip("peft")
    below = load_model(folder).module
    lora = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
    adapter = tmp_path / "adapter"
    peft.get_peft_model(below, lora).save_pretrained(adapter)
    assert outcome(adapter) == ""
    changes = {name: str(adapter) if value == "SELF" else value for name, value in changes.items()}
    edit(adapter / "adapter_config.json", **changes)
    line = outcome(adapter)
    assert line
    assert said in line
