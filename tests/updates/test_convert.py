"""Files of other training: read in a process of their own, converted or refused."""

from __future__ import annotations

import json
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
from gradleak.updates.convert import convert_gradient, convert_weights
from gradleak.updates.rule_options import SPLIT, RuleOptions, optimizer_note

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
        (pair[:2] + pair[4:], "either --after, and --before"),
        ([*pair, "--gradient", tmp_path / "after.pt"], "either --after, and --before"),
        (pair, "the step size of the training is not known"),
        ([*pair, "--lr", 0.1], "give --steps or --epochs"),
        ([*pair, "--lr", 0.1, "--client", "fedavg:steps=2"], "give it or --lr, not both"),
        ([*pair, "--client", "fedsgd"], "sends a gradient"),
        (["--gradient", tmp_path / "after.pt", "--lr", 0.1, *pair[4:]], "--lr belongs to weights"),
        (["--gradient", tmp_path / "after.pt", "--client", "adamw", *pair[4:]], "sends weights"),
    ):
        with pytest.raises(GradleakError, match=message):
            command("--model", folder, *words)
    command("--model", folder, *pair, "--lr", 0.1, "--steps", 2, "--batch-size", 3, "--optimizer", "lion")
    assert not (tmp_path / "update.model").exists()
    update = load_update(tmp_path / "update", model)
    assert update.manifest.client == RULE
    assert update.manifest.notes == (*optimizer_note("lion"), SPLIT)
    assert update.known == ours.known
    assert update.local_steps == ours.local_steps == 2
    for name, tensor in update.tensors.items():
        assert torch.allclose(tensor, ours.tensors[name], atol=1e-6), name


def test_dropout_that_nobody_spoke_of_is_pointed_out(model, tmp_path, capsys):
    """Own training calls model.train() as a rule; without --dropout the attack would look for another update."""
    folder = save_model(model.module, model.tokenizer, tmp_path / "model")
    torch.save(moved(model)[0], tmp_path / "after.pt")
    torch.save(moved(model)[1].tensors, tmp_path / "gradient.pt")
    weights = ("--after", tmp_path / "after.pt", "--batch-size", 3)
    for number, (words, told) in enumerate(
        (
            ((*weights, "--lr", 0.1, "--epochs", 2), True),
            ((*weights, "--lr", 0.1, "--epochs", 2, "--dropout"), False),
            ((*weights, "--client", str(RULE)), True),
            ((*weights, "--client", f"{RULE},mode=eval"), False),
            (("--gradient", tmp_path / "gradient.pt"), True),
            (("--gradient", tmp_path / "gradient.pt", "--dropout"), False),
        )
    ):
        command("--model", folder, *words, "--out", tmp_path / f"update{number}")
        assert ("convert again with --dropout" in " ".join(capsys.readouterr().out.split())) == told, words


def test_steps_of_adam_that_are_said_to_be_of_sgd_are_pointed_out(model, tmp_path, capsys):
    folder = save_model(model.module, model.tokenizer, tmp_path / "model")
    torch.save(moved(model, ClientRule.parse("adamw:epochs=2,batch=3,lr=1e-3,wd=0"))[0], tmp_path / "after.pt")
    words = ("--model", folder, "--after", tmp_path / "after.pt", "--lr", 1e-3, "--epochs", 2, "--batch-size", 3)
    command(*words, "--out", tmp_path / "sgd")
    assert "--optimizer adamw" in capsys.readouterr().out
    command(*words, "--optimizer", "adamw", "--weight-decay", 0, "--out", tmp_path / "adamw")
    assert "--optimizer adamw" not in capsys.readouterr().out


def test_weights_that_are_not_the_models_come_with_a_model(model, tmp_path):
    start = tiny_model("bert", "classification", seed=5)
    after, _ = moved(start)
    torch.save({"epoch": 3, "state_dict": start.module.state_dict()}, tmp_path / "before.pt")
    torch.save({"model_state_dict": after}, tmp_path / "after.pt")
    options = RuleOptions(settings={"lr": 0.1, "steps": 2})
    done = convert_weights(model, tmp_path / "before.pt", tmp_path / "after.pt", tmp_path / "update", options)
    assert done.model == tmp_path / "update.model"
    load_update(done.update, load_model(done.model))
    with pytest.raises(GradleakError, match="other weights"):
        load_update(done.update, model)


def test_without_weights_before_the_training_began_with_the_model(model, tmp_path):
    after, ours = moved(model)
    save_file(after, tmp_path / "after.safetensors")
    options = RuleOptions("fedavg:epochs=2,batch=3,lr=0.1", sentences=3)
    done = convert_weights(model, None, tmp_path / "after.safetensors", tmp_path / "update", options)
    assert done.model is None
    update = load_update(done.update, model)
    assert update.manifest == ours.manifest
    assert all(torch.allclose(tensor, ours.tensors[name], atol=1e-6) for name, tensor in update.tensors.items())


@pytest.mark.parametrize("form", ["sharded", "sharded .bin", ".bin", ".pt", ".pth", "bf16", "fp16", "both"])
def test_a_folder_holds_weights_in_any_form(model, tmp_path, form):
    """The same update comes out, up to the precision that the folder has."""
    after, ours = moved(model)
    whole, halves = tmp_path / "after", (dict(list(after.items())[::2]), dict(list(after.items())[1::2]))
    whole.mkdir()
    torch.save({"exp_avg": torch.ones(2)}, whole / "optimizer.pt")  # no weights, though it ends like some
    if form.startswith("sharded"):
        kind, write = (".bin", torch.save) if ".bin" in form else (".safetensors", save_file)
        stem = "pytorch_model" if kind == ".bin" else "model"
        names = [f"{stem}-{number}{kind}" for number in (1, 2)]
        for part, name in zip(halves, names, strict=True):
            write(part, whole / name)
        table = {name: file for part, file in zip(halves, names, strict=True) for name in part}
        (whole / f"{stem}{kind}.index.json").write_text(json.dumps({"weight_map": table}))
    elif form in ("bf16", "fp16"):
        kind = torch.bfloat16 if form == "bf16" else torch.float16
        save_file({name: tensor.to(kind) for name, tensor in after.items()}, whole / "model.safetensors")
    elif form == "both":
        save_file(after, whole / "model.safetensors")
        torch.save(after, whole / "pytorch_model.bin")
    else:
        torch.save(after, whole / ("pytorch_model.bin" if form == ".bin" else f"weights{form}"))
    options = RuleOptions("fedavg:epochs=2,batch=3,lr=0.1", sentences=3)
    done = convert_weights(model, None, whole, tmp_path / "update", options)
    assert (done.rule.wire, done.rule.precision) == ((form, "fp32") if form in ("bf16", "fp16") else ("fp32", "fp32"))
    error = {"bf16": 2e-2, "fp16": 2e-3}.get(form, 1e-6)
    update = load_update(done.update, model)
    assert all(torch.allclose(tensor, ours.tensors[name], atol=error) for name, tensor in update.tensors.items())


def test_a_folder_without_weights_or_with_two_kinds_is_refused(model, tmp_path):
    after, _ = moved(model)
    (tmp_path / "empty").mkdir()
    two = tmp_path / "two"
    two.mkdir()
    save_file(after, two / "model.safetensors")
    torch.save({name: tensor + 1 for name, tensor in after.items()}, two / "pytorch_model.bin")
    options = RuleOptions("fedavg:epochs=2,batch=3,lr=0.1", sentences=3)
    for place, message in ((tmp_path / "empty", "holds no weights"), (two, "which disagree; name the one you mean")):
        with pytest.raises(GradleakError, match=message):
            convert_weights(model, None, place, tmp_path / "update", options)
    assert not (tmp_path / "update").exists()


@pytest.mark.own_process
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


@pytest.mark.own_process
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


@pytest.mark.own_process
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
