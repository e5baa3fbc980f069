"""A gradient that is written as it is made has the numbers of one that is made as a whole, and leaves no file."""

import tempfile

import pytest
import torch
from tiny import TEXTS, secret_of, tiny_model

from gradleak import Client, GradleakError, attack, load_update
from gradleak.clients import streaming
from gradleak.core.tensor_files import MappedTensors


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Everything counts as large, and temporary files go to a folder of the test's own."""
    monkeypatch.setattr(streaming, "STREAMED_FROM", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("family", "task"), [("llama", "causal-lm"), ("gpt2", "causal-lm"), ("bert", "classification")]
)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"client": "fedsgd:mode=train"},
        {"client": "fedsgd:wire=bf16"},
        {"defenses": ["frozen"]},
        {"observe": "layer:1"},
        {"defenses": ["frozen"], "observe": "layer:2"},
    ],
)
def test_the_numbers_and_their_order_are_the_same(small, monkeypatch, family, task, how):
    model = tiny_model(family, task)
    classes = None if task == "causal-lm" else [0, 1, 1]
    streamed = Client(model, **how).update(TEXTS, classes, secret_of(1))
    assert isinstance(streamed.tensors, MappedTensors)
    assert not list(small.iterdir())
    monkeypatch.setattr(streaming, "STREAMED_FROM", 1 << 60)
    whole = Client(model, **how).update(TEXTS, classes, secret_of(1))
    assert streamed.manifest == whole.manifest
    assert list(streamed.tensors) == list(whole.tensors)
    assert all(torch.equal(streamed.tensors[name], tensor) for name, tensor in whole.tensors.items())
    assert all(parameter.grad is None for parameter in model.parameters().values())


@pytest.mark.parametrize("how", [{"client": "fedavg"}, {"client": "fedsgd:clip=1"}, {"defenses": ["noise:sigma=0.1"]},
                                 {"defenses": ["dpsgd:clip=1,noise=1"]}])  # fmt: skip
def test_what_is_needed_as_a_whole_is_made_as_a_whole(small, how):
    assert not Client(tiny_model("bert", "classification"), **how).streams


def test_nothing_left_is_an_error_of_one_line(small):
    with pytest.raises(GradleakError, match="nothing of 'regex:word_embeddings' is left"):
        Client(tiny_model("bert", "classification"), defenses=["frozen"], observe="regex:word_embeddings").update(
            TEXTS, [0, 1, 1]
        )


def test_saved_and_attacked_as_any_other(small, monkeypatch, tmp_path):
    model = tiny_model("llama", "causal-lm", layers=2, width=64)
    update = Client(model).update(TEXTS[:1])
    monkeypatch.setattr("gradleak.core.tensor_files.MAPPED_FROM", 1)
    loaded = load_update(update.save(tmp_path / "update"), model)
    assert isinstance(loaded.tensors, MappedTensors)
    (found,) = attack(loaded, model, "exact")
    assert [sentence.certified for sentence in found.sentences] == [True]
    assert found.sentences == attack(update, model, "exact")[0].sentences


def test_a_disk_without_room_is_refused_before_the_work(small, monkeypatch):
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(streaming.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(GradleakError, match=r"needs .* GB on the disk, and .* set TMPDIR"):
        Client(tiny_model("bert", "classification")).update(TEXTS, [0, 1, 1])
    assert not list(small.iterdir())
