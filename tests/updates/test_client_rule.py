"""Client rules as texts."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradleak import GradleakError
from gradleak.core.client_presets import PRESETS
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.manifest import Manifest


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fedprox", "client 'fedprox': no such rule or preset"),
        ("fedavg:epoch=2", "unknown key 'epoch'; did you mean 'epochs'"),
        ("fedavg:lr=0", "client 'fedavg': lr"),
        ("fedavg:lr", "not of the form key=value"),
        ("fedsgd:epochs=3", "epochs belongs to local steps: fedavg, adam, adamw"),
        ("fedsgd:wd=0.1", "wd belongs to local steps"),
        ("adamw:momentum=0.9", "momentum belongs to fedavg, not to adamw"),
        ("fedavg:betas=0.5/0.9", "betas belongs to adam and adamw, not to fedavg"),
        ("adam:betas=0.9", "client 'adam': betas"),
        ("adam:betas=0.9/1", "betas lie from 0 to below 1"),
        ("adamw:steps=3,epochs=2", "give either steps or epochs"),
        ("adamw:clip=inf", "client 'adamw': clip"),
        ("adamw:schedule=step", "client 'adamw': schedule"),
        ("adamw:precision=int8", "client 'adamw': precision"),
        ("fedsgd:marker=Answer:", "marker belongs to loss=completion"),
        ("flowertune:r=4", "client 'flowertune': unknown key 'r'"),
    ],
)
def test_bad_rules_are_refused_in_one_line(spec, message):
    with pytest.raises(GradleakError, match=message) as error:
        ClientRule.parse(spec)
    assert "\n" not in str(error.value)


POSITIVE = st.floats(min_value=1e-12, max_value=10, allow_subnormal=False)
SHARE = st.floats(min_value=0, max_value=0.999)


@st.composite
def rules(draw):
    """Any rule that can be."""
    name = draw(st.sampled_from(["fedsgd", "fedavg", "adam", "adamw"]))
    of_all = {
        "mode": st.sampled_from(["eval", "train"]),
        "clip": st.none() | st.floats(min_value=1e-6, max_value=1e6),
        "precision": st.sampled_from(["fp32", "bf16", "fp16"]),
        "wire": st.sampled_from(["fp32", "bf16", "fp16"]),
        "loss": st.sampled_from(["all", "completion"]),
    }
    of_local = {
        "batch": st.integers(1, 64),
        "lr": POSITIVE,
        "accumulate": st.integers(1, 8),
        "wd": SHARE,
        "decay": st.sampled_from(["all", "matrices"]),
        "schedule": st.sampled_from(["constant", "linear", "cosine"]),
        "warmup": st.integers(0, 20),
        draw(st.sampled_from(["steps", "epochs"])): st.integers(1, 100),
    }
    of_one = {"fedavg": {"momentum": SHARE}, "fedsgd": {}}.get(
        name, {"betas": st.tuples(SHARE, SHARE), "eps": st.floats(min_value=1e-12, max_value=1)}
    )
    chosen = {**of_all, **({} if name == "fedsgd" else of_local), **of_one}
    values = {key: draw(values) for key, values in chosen.items() if draw(st.booleans())}
    if values.get("loss") == "completion":
        values["marker"] = draw(st.sampled_from(["### Response:", "A: =", "[/INST]", "Ans 'wer'"]))
    if draw(st.booleans()):
        values |= {"pack": draw(st.integers(2, 4096)), "packing": draw(st.sampled_from(["bfd", "wrapped"]))}
        own = draw(st.sampled_from([None, "across"] + (["own"] if name == "fedsgd" or "steps" in values else [])))
        values["pack_attention"] = own if name == "fedsgd" or "steps" in values else "across"
    return ClientRule(name=name, **values)


@given(rules())
def test_a_rules_text_and_its_json_are_the_rule(rule):
    assert ClientRule.parse(str(rule)) == rule
    assert str(ClientRule.parse(str(rule))) == str(rule)
    assert ClientRule.model_validate_json(rule.model_dump_json()) == rule


@given(rules(), st.integers(1, 50))
def test_every_step_has_its_mini_batches_and_its_size(rule, sentences):
    steps = list(rule.mini_batches(sentences))
    assert len(steps) == rule.count_steps(sentences) == len(rule.rates(sentences))
    assert all(1 <= len(step) <= rule.accumulate for step in steps)
    if rule.local and rule.steps is None:
        seen = [n for step in steps for part in step for n in range(part.start, part.stop)]
        assert seen == [*range(sentences)] * rule.epochs
    assert all(0 <= rate <= rule.lr * (1 + 1e-12) for rate in rule.rates(sentences))


@given(st.text(max_size=40))
def test_any_text_is_a_rule_or_an_error_of_one_line(text):
    try:
        ClientRule.parse(f"adamw:{text}")
    except GradleakError as error:
        assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize("marker", ["a,b", " a", "a\nb", "", "x" * 101])
def test_a_marker_is_one_that_can_be_written(marker):
    with pytest.raises(ValueError, match="marker"):
        ClientRule(loss="completion", marker=marker)


def test_presets_are_rules_whose_settings_can_be_changed():
    for name in PRESETS:
        rule = ClientRule.parse(name)
        assert ClientRule.parse(str(rule)) == rule
    changed = ClientRule.parse("flowertune:steps=2,lr=1e-3")
    assert (changed.steps, changed.lr, changed.batch) == (2, 1e-3, 16)
    assert ClientRule.parse("flowertune:epochs=2").count_steps(32) == 4


def test_adamw_decays_as_torchs_unless_told_not_to():
    assert ClientRule.parse("adamw").wd == 0.01
    assert ClientRule.parse("adamw:wd=0").wd == 0.0
    assert str(ClientRule.parse("adamw:wd=0")) == "adamw:epochs=1,batch=1,lr=5e-05,wd=0"
    assert ClientRule.parse("adam").wd == 0.0


def test_a_manifest_from_before_these_settings_still_loads():
    old = {"name": "fedavg", "mode": "eval", "epochs": 2, "batch": 4, "lr": 0.01}
    manifest = Manifest.model_validate_json(json.dumps({"task": "causal-lm", "family": "gpt2", "client": old}))
    assert str(manifest.client) == "fedavg:epochs=2,batch=4,lr=0.01"
    assert manifest.client.plain


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_schedules_are_those_of_the_library(schedule, warmup):
    torch = pytest.importorskip("torch")
    get_scheduler = pytest.importorskip("transformers").get_scheduler
    rule = ClientRule.parse(f"adamw:lr=0.1,steps=10,schedule={schedule},warmup={warmup}")
    name = "constant_with_warmup" if schedule == "constant" else schedule
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    library = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=10)
    for rate in rule.rates(5):
        assert math.isclose(rate, library.get_last_lr()[0], abs_tol=1e-12)
        optimizer.step()
        library.step()
