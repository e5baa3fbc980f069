"""Names of other tools: each parameter is found once, and what is none is refused."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_model

from gradleak import GradleakError
from gradleak.updates.integrations.form import Form, bare, difference


def test_a_state_dict_gives_the_parameters(tiny):
    form = Form.of(tiny.module)
    found = form.named(tiny.module.state_dict())
    assert found.keys() == dict(tiny.module.named_parameters()).keys()
    assert form.task == tiny.task
    assert form.family == tiny.adapter.family.name


@pytest.mark.parametrize("prefix", ["model.", "module.", "_orig_mod.", "base_model.model.", "net.model.module."])
def test_wrappers_may_put_names_before(tiny_bert, prefix):
    form = Form.of(tiny_bert.module)
    wrapped = {prefix + name: tensor for name, tensor in tiny_bert.module.state_dict().items()}
    assert form.named(wrapped).keys() == form.parameters.keys()


def test_numbered_tensors_follow_the_state_dict_or_the_parameters(tiny):
    form = Form.of(tiny.module)
    named = dict(tiny.module.named_parameters())
    for tensors in (list(tiny.module.state_dict().values()), list(named.values())):
        found = form.named({str(i): tensor for i, tensor in enumerate(tensors)})
        assert all(torch.equal(found[name], tensor) for name, tensor in named.items())
    with pytest.raises(GradleakError, match="without names"):
        form.named({"0": torch.zeros(1)})


def test_adapters_are_found_under_the_names_peft_saves(tiny_bert):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    adapted = peft.get_peft_model(tiny_model("bert", "classification").module, config)
    form = Form.of(adapted)
    trained = {name for name, p in bare(adapted).named_parameters() if p.requires_grad}
    assert form.named(peft.get_peft_model_state_dict(adapted)).keys() == trained


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.update({"decoder.weight": torch.zeros(2)}), "no parameter of the bert model"),
        (lambda t: t.update({"classifier.bias": torch.zeros(3)}), r"has shape \[3\]"),
        (lambda t: t.update({"model.classifier.bias": torch.zeros(2)}), "occurs twice"),
        (lambda t: t.clear(), "no parameter of the model among"),
    ],
)
def test_what_does_not_fit_is_refused(tiny_bert, change, message):
    tensors = dict(tiny_bert.module.state_dict())
    change(tensors)
    with pytest.raises(GradleakError, match=message):
        Form.of(tiny_bert.module).named(tensors)


@functools.cache
def small_form():
    return Form.of(tiny_model("bert", "classification", layers=1, width=4).module)


@given(st.dictionaries(st.text(max_size=20) | st.just("classifier.bias"), st.integers(0, 3), max_size=4))
def test_any_names_are_found_or_refused(tables):
    form = small_form()
    try:
        found = form.named({name: torch.zeros(size) for name, size in tables.items()})
    except GradleakError as error:
        assert "\n" not in str(error)
    else:
        assert all(tuple(tensor.shape) == form.parameters[name] for name, tensor in found.items())


def test_a_difference_needs_the_same_weights_and_some_that_moved():
    one = {"a": torch.ones(2)}
    with pytest.raises(GradleakError, match="no weight has moved"):
        difference(one, one)
    with pytest.raises(GradleakError, match="not among those before"):
        difference(one, {"b": torch.ones(2)})
