"""What lies beside weights: read if it can be, told, overruled by options, and never able to act."""

from __future__ import annotations

import json
import os
import pickle
import pickletools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import TrainingArguments

from gradleak import GradleakError
from gradleak.core.foreign import read_fields
from gradleak.core.plain_fields import plain_fields
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.found_settings import ARGUMENTS, PROJECT, STATE, settings_beside
from gradleak.updates.rule_options import RuleOptions

FLOWERTUNE = """
[tool.flwr.app.config]
model.name = "mistralai/Mistral-7B-v0.3"
model.lora.peft-lora-r = 32
train.learning-rate-max = 5e-5
train.learning-rate-min = 1e-6
train.training-arguments.learning-rate = ""
train.training-arguments.per-device-train-batch-size = 16
train.training-arguments.gradient-accumulation-steps = 1
train.training-arguments.num-train-epochs = 3
train.training-arguments.max-steps = 10
train.training-arguments.lr-scheduler-type = "constant"
num-server-rounds = 200
"""


def arguments(folder, **changes):
    given = {"learning_rate": 2e-4, "per_device_train_batch_size": 4, "max_steps": 6, **changes}
    torch.save(TrainingArguments(output_dir=str(folder), use_cpu=True, **given), folder / ARGUMENTS)


def state(folder, **entries):
    (folder / STATE).write_text(json.dumps({"global_step": 6, "max_steps": 6, "epoch": 2.0, **entries}))


def built(folder, sentences=None, client=None, **options):
    return RuleOptions(client, options, sentences).rule(settings_beside(folder))


def test_trainers_settings_make_the_rule(tmp_path):
    arguments(tmp_path, weight_decay=0.1, gradient_accumulation_steps=2, adam_beta2=0.95, warmup_steps=2)
    rule = "adamw:steps=6,batch=4,accumulate=2,lr=2e-4,wd=0.1,decay=matrices,clip=1,betas=0.9/0.95"
    found = built(tmp_path)
    assert found.rule == ClientRule.parse(f"{rule},schedule=linear,warmup=2")
    assert found.exact
    (line,) = found.read
    assert line.startswith("read from training_args.bin: lr=0.0002, batch=4, accumulate=2, steps=6, wd=0.1")
    assert line in found.notes


def test_the_state_says_how_far_it_came(tmp_path):
    arguments(tmp_path, lr_scheduler_type="constant")
    state(tmp_path, global_step=4, epoch=2.0)
    found = built(tmp_path, sentences=8)
    assert found.rule == ClientRule.parse("adamw:epochs=2,batch=4,lr=2e-4,wd=0,clip=1")
    assert [line.partition(":")[0] for line in found.read] == [f"read from {name}" for name in (STATE, ARGUMENTS)]
    with pytest.raises(GradleakError, match="4 steps of 4 sentences are more than 2 passes over 4 have: 2"):
        built(tmp_path, sentences=4)


def test_a_part_of_a_schedule_is_its_mean_and_noted(tmp_path):
    arguments(tmp_path)
    state(tmp_path, global_step=3)
    found = built(tmp_path)
    assert (found.rule.steps, found.rule.schedule) == (3, "constant")
    assert found.rule.lr == pytest.approx(2e-4 * (6 + 5 + 4) / 18)
    assert any("their mean is taken" in note for note in found.notes)
    assert not found.exact


def test_the_state_alone_leaves_the_step_size_open_unless_it_was_constant(tmp_path):
    rows = [{"learning_rate": rate, "step": step} for step, rate in enumerate((2e-4, 1e-4), 1)]
    state(tmp_path, log_history=rows, train_batch_size=2)
    with pytest.raises(GradleakError, match="step size of the training is not known"):
        built(tmp_path)
    state(tmp_path, log_history=[{**row, "learning_rate": 3e-4} for row in rows], train_batch_size=2)
    assert built(tmp_path).rule == ClientRule.parse("adamw:steps=6,batch=2,lr=3e-4,wd=0,clip=1")


def test_a_flower_project_above_the_weights(tmp_path):
    (tmp_path / PROJECT).write_text(FLOWERTUNE)
    place = tmp_path / "results" / "today" / "peft_1"
    place.mkdir(parents=True)
    found = built(place)
    assert found.rule == ClientRule.parse("adamw:steps=10,batch=16,lr=5e-5,wd=0,clip=1")
    assert any("first round" in note for note in found.notes)
    (tmp_path / PROJECT).write_text("[tool.flwr.app.config]\nlocal-epochs = 2\nbatch-size = 8\nlearning_rate = 0.1\n")
    assert built(place, optimizer="sgd").rule == ClientRule.parse("fedavg:epochs=2,batch=8,lr=0.1")
    (tmp_path / PROJECT).write_text("[tool.other]\nlr = 1\n")
    assert settings_beside(place) == []


def test_options_win_over_files(tmp_path):
    arguments(tmp_path)
    found = built(tmp_path, lr=1e-3, optimizer="sgd", clip=0.0, schedule="constant", epochs=2)
    assert found.rule == ClientRule.parse("fedavg:epochs=2,batch=4,lr=1e-3")
    assert "lr=" not in found.read[0]
    assert built(tmp_path, client="fedavg:lr=0.1").rule == ClientRule.parse("fedavg:lr=0.1")
    assert built(tmp_path, client="fedavg:lr=0.1").read == ()


def test_an_optimiser_that_no_rule_describes_is_noted(tmp_path):
    arguments(tmp_path, optim="adafactor")
    found = built(tmp_path)
    assert (found.rule.name, found.exact) == ("fedavg", False)
    assert any("trained with adafactor" in note for note in found.notes)


# --- hostile files ------------------------------------------------------------------------------------


class Hostile:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.system, (f"touch {self.place}",)


def test_a_pickle_of_settings_cannot_act(tmp_path):
    """Not even a class is looked up: what the file calls is a thing that keeps its arguments."""
    for write in (lambda what, file: file.write_bytes(pickle.dumps(what)), torch.save):
        write({"learning_rate": 0.5, "other": Hostile(tmp_path / "called")}, tmp_path / ARGUMENTS)
        assert read_fields(tmp_path / ARGUMENTS)["learning_rate"] == 0.5
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (ARGUMENTS, b"\x80\x04"), (ARGUMENTS, b"x" * (2 << 20)), (ARGUMENTS, b"PK\x03\x04"), (STATE, b"{"),
        (STATE, b"[" * 100_000), (PROJECT, b"[tool"), (PROJECT, b"\xff"), (PROJECT, b"a = " + b"[" * 5000),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_noted(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    (found,) = settings_beside(tmp_path)
    assert found.settings == {}
    assert found.notes == (f"{name} beside the weights cannot be read, and is not used",)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(
    ["learning_rate", "global_step", "max_steps", "epoch", "train_batch_size", "log_history", "optim", "weight_decay",
     "lr_scheduler_type", "per_device_train_batch_size", "adam_beta1", "adam_beta2", "_n_gpu", "warmup_steps"]
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(keys, values, max_size=6))
def test_any_values_make_a_rule_or_one_line(tmp_path, monkeypatch, held):
    (tmp_path / STATE).write_text(json.dumps(held))
    (tmp_path / ARGUMENTS).write_bytes(b"")
    monkeypatch.setattr("gradleak.updates.found_settings.read_fields", lambda file: held)
    try:
        rule = built(tmp_path).rule
    except GradleakError as error:
        assert "\n" not in str(error)
    else:
        assert ClientRule.parse(str(rule)).name == rule.name


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_pickle_gives_plain_values_or_an_error(tmp_path, data):
    whole = bytearray(pickle.dumps({"learning_rate": 0.1, "at": {"a": [1, 2]}, "optim": os.getcwd}, protocol=2))
    assert pickletools.optimize(bytes(whole))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / ARGUMENTS).write_bytes(bytes(whole))
    try:
        found = plain_fields(tmp_path / ARGUMENTS)
    except Exception as error:
        assert str(error) or type(error).__name__
    else:
        assert all(isinstance(value, bool | int | float | str) for value in found.values())
