"""Model folders that are not in order: one clear line each, and shards and old weight files that are."""

import json

import pytest
import torch
from tiny import TEXTS, tiny_model, tiny_tokenizer
from torch import nn

from gradleak import Client, GradleakError, ImageClient, load_model
from gradleak.models.load import load_text_model, save_model


@pytest.fixture
def folder(tmp_path):
    return save_model(tiny_model("bert", "classification").module, tiny_tokenizer("bert"), tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"{", r"cannot read .*config\.json: it is not JSON"),
        ("config.json", b'{"model_type": "bert", "hidden_size": "wide"}', "cannot load model"),
        ("config.json", b'{"model_type": "mixtral"}', "'mixtral' are not listed.*experts"),
        ("tokenizer.json", b"{", "cannot load the tokenizer"),
        ("tokenizer_config.json", b"[]", "cannot load the tokenizer"),
        ("model.safetensors", b"", "is not a safetensors file, or it is cut short"),
        ("model.safetensors", b"\xff" * 64, "is not a safetensors file, or it is cut short"),
        ("adapter_config.json", b"{", r"cannot read .*adapter_config\.json"),
        ("adapter_config.json", b'{"peft_type": "LORA"}', "does not say which model it is for"),
    ],
)
def test_broken_files_are_said_in_one_line(folder, file, content, message):
    if file.startswith("adapter"):
        pytest.importorskip("peft")
    (folder / file).write_bytes(content)
    with pytest.raises(GradleakError, match=message) as error:
        load_model(folder)
    assert "\n" not in str(error.value)


def test_a_tokenizer_with_more_tokens_than_the_model_is_said(folder):
    module = tiny_model("bert", "classification").module
    module.resize_token_embeddings(40)
    save_model(module, tiny_tokenizer("bert"), folder)
    with pytest.raises(GradleakError, match=r"text 1 has the token \d+, and .* knows 40 tokens"):
        load_model(folder).encode(TEXTS)


def test_one_output_is_no_classifier(folder):
    with pytest.raises(GradleakError, match="2 to 100,000 classes"):
        load_model(folder, num_labels=1)
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(GradleakError, match=r"has shape \[2, 16\], its config\.json asks for \[3, 16\]"):
        load_model(folder)


@pytest.mark.parametrize("form", ["shards", "bin"])
def test_shards_and_old_weight_files_load_as_well(folder, form):
    module = tiny_model("bert", "classification").module
    (folder / "model.safetensors").unlink()
    if form == "bin":
        torch.save(module.state_dict(), folder / "pytorch_model.bin")
    else:
        module.save_pretrained(folder, max_shard_size="10KB")
        assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert load_model(folder).fingerprint == tiny_model("bert", "classification").fingerprint


def test_the_model_says_what_it_reads(tiny_bert):
    image = load_model("lenet:size=8,seed=2")
    assert (image.modality, image.name, image.shape) == ("images", "lenet:size=8,seed=2", (3, 8, 8))
    assert tiny_bert.modality == "text"
    assert load_model(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), shape=(3, 2, 2), name="mine").name == "mine"


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        ("lenet", {"task": "classification"}, "'task' is for text models; lenet reads images"),
        ("lenet:5", {}, "'5' is not of the form key=value"),
        ("lenet", {"shape": (3, 8, 8)}, "'shape' is for a torch module"),
        ("minilm:seed=1", {}, "unknown key 'seed'; it has no settings"),
        (nn.Linear(3, 2), {}, "needs the shape of its images"),
        (nn.Linear(3, 2), {"shape": (3, 2, 2), "tokenizer": "any"}, "'tokenizer' is for text models"),
        (7, {}, "int is not a Hugging Face model, nor a torch module"),
    ],
)
def test_settings_of_another_kind_of_model_are_refused(source, settings, message):
    with pytest.raises(GradleakError, match=message):
        load_model(source, **settings)


def test_clients_and_text_code_refuse_the_other_kind(tiny_bert):
    with pytest.raises(GradleakError, match="lenet reads images, and a text model is needed here"):
        load_text_model("lenet")
    with pytest.raises(GradleakError, match="Client is for text; lenet reads images"):
        Client(load_model("lenet"))
    with pytest.raises(GradleakError, match="ImageClient is for images; model object reads sentences"):
        ImageClient(tiny_bert)
