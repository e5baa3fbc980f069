"""Files of other training: read in a process of their own, converted or refused."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tiny import TEXTS, tiny_model

from gradleak import Client, GradleakError, load_model, load_update
from gradleak.cli import app
from gradleak.core.foreign import read_foreign
from gradleak.core.tensor_files import read_header
from gradleak.core.unpack import unpack
from gradleak.models.load import save_model
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.convert import SPLIT, convert_gradient, convert_weights
from gradleak.updates.integrations.recording import optimizer_note

LABELS = [0, 1, 1]
RULE = ClientRule.parse("fedavg:epochs=2,batch=3,lr=0.1")


def moved(model, rule=RULE):
    """The state dict of the model after local training, and the update that we would have made of it."""
    update = Client(model, client=rule).update(TEXTS, LABELS)
    state = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    for name, tensor in update.tensors.items():
        state[name] -= tensor
    return state, update


@pytest.fixture(scope="module")
def model():
    return tiny_model("bert", "classification")


def command(*words):
    app([str(word) for word in ("convert", *words)], standalone_mode=False)


def test_weights_before_and_after(model, tmp_path):
    folder = save_model(model.module, model.tokenizer, tmp_path / "model")
    after, ours = moved(model)
    torch.save(model.module.state_dict(), tmp_path / "before.pt")
    save_file(after, tmp_path / "after.safetensors")
    pair = [
        "--before",
        tmp_path / "before.pt",
        "--after",
        tmp_path / "after.safetensors",
        "--out",
        tmp_path / "update",
    ]
    for words, message in (
        (pair[:2] + pair[4:], "either --before and --after"),
        ([*pair, "--gradient", tmp_path / "after.pt"], "either --before and --after"),
        (pair, "with --lr and --steps"),
        (["--gradient", tmp_path / "after.pt", "--lr", 0.1, *pair[4:]], "either --before and --after"),
    ):
        with pytest.raises(GradleakError, match=message):
            command("--model", folder, *words)
    command("--model", folder, *pair, "--lr", 0.1, "--steps", 2, "--batch-size", 3, "--optimizer", "adamw")
    assert not (tmp_path / "update.model").exists()
    update = load_update(tmp_path / "update", model)
    assert update.manifest.client == RULE
    assert update.manifest.notes == (SPLIT, *optimizer_note("adamw"))
    assert update.known == ours.known
    assert update.local_steps == ours.local_steps == 2
    for name, tensor in update.tensors.items():
        assert torch.allclose(tensor, ours.tensors[name], atol=1e-6), name


def test_weights_that_are_not_the_models_come_with_a_model(model, tmp_path):
    start = tiny_model("bert", "classification", seed=5)
    after, _ = moved(start)
    torch.save({"epoch": 3, "state_dict": start.module.state_dict()}, tmp_path / "before.pt")
    torch.save({"model_state_dict": after}, tmp_path / "after.pt")
    folder, new = convert_weights(
        model, tmp_path / "before.pt", tmp_path / "after.pt", tmp_path / "update", lr=0.1, steps=2
    )
    assert new == tmp_path / "update.model"
    load_update(folder, load_model(new))
    with pytest.raises(GradleakError, match="other weights"):
        load_update(folder, model)


def test_a_gradient_listed_as_autograd_gives_it(model, tmp_path):
    ours = Client(model).update(TEXTS, LABELS)
    assert list(ours.tensors) == list(dict(model.module.named_parameters()))
    torch.save(tuple(ours.tensors.values()), tmp_path / "gradient.pt")
    update = load_update(convert_gradient(model, tmp_path / "gradient.pt", tmp_path / "u", batch_size=3), model)
    assert update.manifest == ours.manifest
    assert all(torch.equal(update.tensors[name], tensor) for name, tensor in ours.tensors.items())


class Hostile:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.system, (f"touch {self.place}",)


def test_a_pickle_that_calls_is_refused_and_does_not_call(tmp_path):
    with (tmp_path / "bad.pt").open("wb") as stream:
        pickle.dump({"classifier.bias": Hostile(tmp_path / "called")}, stream)
    with pytest.raises(GradleakError, match="more than tensors"):
        unpack(tmp_path / "bad.pt", tmp_path / "plain.safetensors")
    torch.save({"classifier.bias": Hostile(tmp_path / "called")}, tmp_path / "worse.pt")
    with pytest.raises(GradleakError, match=r"cannot read .*worse\.pt: .") as caught:
        read_foreign([tmp_path / "worse.pt"])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "called").exists()


def test_a_small_file_that_unfolds_into_gigabytes_is_refused(tmp_path):
    """One number, expanded to 16 GB by its strides."""
    torch.save({"classifier.bias": torch.zeros(1).expand(4 << 30)}, tmp_path / "wide.pt")
    assert (tmp_path / "wide.pt").stat().st_size < 10_000
    with pytest.raises(GradleakError, match="more memory than a file of its size should"):
        read_foreign([tmp_path / "wide.pt"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": 3}, "'a' is a int"),
        ({3: torch.zeros(1)}, "'3' is a Tensor, not a tensor with a name"),
        ([torch.zeros(1), None], "'1' is a NoneType"),
        (torch.zeros(3), "it holds a Tensor"),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, "of type torch.complex64"),
        ({"a": torch.zeros(2, dtype=torch.int64)}, "no floating-point tensor"),
    ],
)
def test_contents_that_are_no_weights(tmp_path, content, message):
    torch.save(content, tmp_path / "file.pt")
    with pytest.raises(GradleakError, match=message):
        unpack(tmp_path / "file.pt", tmp_path / "plain.safetensors")


def test_files_that_are_not_there_or_of_another_kind(tmp_path):
    with pytest.raises(GradleakError, match="there is no file"):
        read_foreign([tmp_path / "none.pt"])
    (tmp_path / "weights.zip").write_bytes(b"PK")
    with pytest.raises(GradleakError, match=r"is not a \.safetensors, \.pt"):
        read_foreign([tmp_path / "weights.zip"])


def test_files_of_another_model_are_named(model, tmp_path):
    other = tiny_model("gpt2", "causal-lm")
    torch.save(other.module.state_dict(), tmp_path / "other.pt")
    with pytest.raises(GradleakError, match=r"other\.pt: .* no parameter of the bert model"):
        convert_gradient(model, tmp_path / "other.pt", tmp_path / "update")
    bad = {name: torch.full_like(p, float("nan")) for name, p in model.module.named_parameters()}
    save_file(bad, tmp_path / "bad.safetensors")
    with pytest.raises(GradleakError, match=r"bad\.safetensors: .* NaN or infinite"):
        convert_gradient(model, tmp_path / "bad.safetensors", tmp_path / "update")
    assert not (tmp_path / "update").exists()


scalars = st.one_of(st.none(), st.integers(-9, 9), st.text(max_size=5), st.booleans())
tensors = st.sampled_from([torch.zeros(2), torch.ones(2, 3), torch.zeros(0), torch.zeros(2, dtype=torch.int32)])
contents = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=contents, wrapped=st.booleans())
def test_any_content_is_unpacked_or_refused(tmp_path, content, wrapped):
    """Within this process, since it is the same code; what is written is plain tensors and nothing else."""
    source, target = tmp_path / "any.pt", tmp_path / "any.safetensors"
    torch.save(OrderedDict(state_dict=content) if wrapped else content, source)
    target.unlink(missing_ok=True)
    try:
        unpack(source, target)
    except GradleakError as error:
        assert "\n" not in str(error)
        assert not target.exists()
    else:
        assert target.exists()


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_unpacked_or_refused(tmp_path, data):
    """Any error is the file's; what is not an error left tensors. The process turns errors into one line."""
    source, target = tmp_path / "damaged.pt", tmp_path / "damaged.safetensors"
    torch.save({"a": torch.ones(4), "b": torch.zeros(2, 2)}, source)
    whole = bytearray(source.read_bytes())
    if data.draw(st.booleans()):
        whole = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for _ in range(data.draw(st.integers(1, 4)) if whole else 0):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    source.write_bytes(bytes(whole))
    target.unlink(missing_ok=True)
    try:
        unpack(source, target)
    except Exception as error:
        assert str(error) or type(error).__name__
    else:
        read_header(target)
