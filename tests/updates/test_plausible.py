"""Whether a rule can have made an update: what optimisers really do passes, what they cannot do is refused."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TEXTS, tiny_model

from gradleak import GradleakError, load_update
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.manifest import Known, Manifest
from gradleak.updates.plausible import check_made, check_plausible, largest_ratio, moved_like_adam
from gradleak.updates.update import Update

LABELS = torch.tensor([0, 1, 1])
KINDS = {"fedavg": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@functools.cache
def model():
    return tiny_model("bert", "classification", width=32)


@functools.cache
def trained(name, steps, dtype=torch.float32, clip=None, **options):
    """Weights before minus after some steps of torch's own optimiser, and the weights before.

    They are kept in the precision and computed with in fp32: not every processor multiplies in bf16.
    """
    module = model().copied().module
    module.load_state_dict({name: weight.to(dtype) for name, weight in module.state_dict().items()})
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    optimizer = KINDS[name](module.parameters(), **options)
    batch = model().tokenizer(TEXTS, padding=True, return_tensors="pt")
    for _ in range(steps):
        optimizer.zero_grad()
        module(**batch, labels=LABELS).loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        module.load_state_dict({name: weight.to(dtype) for name, weight in module.state_dict().items()})
    return {name: before[name] - weight.detach() for name, weight in module.named_parameters()}, before


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(list(KINDS)), st.integers(1, 6), st.sampled_from([1e-5, 5e-5, 1e-3]),
    st.sampled_from([0.0, 0.01, 0.1]), st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from([None, 1.0, 0.01]),
)  # fmt: skip
def test_what_optimisers_do_is_possible(name, steps, lr, wd, dtype, clip):
    moved, before = trained(name, steps, dtype, clip, lr=lr, weight_decay=wd)
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    settings = {"name": name, "steps": steps, "lr": lr, "wd": wd, "clip": clip, "precision": precision}
    check_plausible(moved, before, ClientRule.model_validate(settings))


@pytest.mark.parametrize(
    ("made", "rule", "message"),
    [
        (
            ("adamw", 1, {"lr": 1e-4, "weight_decay": 0}),
            "adamw:steps=1,lr=5e-5,wd=0",
            "1 step of it lead 5e-05 far at most",
        ),
        (("adam", 5, {"lr": 1e-4}), "adam:steps=2,lr=1e-4", "2 steps of it lead"),
        (("fedavg", 1, {"lr": 0.1}), "adamw:steps=1,lr=5e-5,wd=0", "is lr, wd or the number of steps right"),
        (("adamw", 2, {"lr": 5e-5, "weight_decay": 0}), "adamw:steps=2,lr=5e-5", "stayed as they were"),
        (("adamw", 2, {"lr": 5e-5, "weight_decay": 0.1}), "adamw:steps=2,lr=5e-5", "it was about wd=0.1"),
        (
            ("adamw", 2, {"lr": 5e-5}),
            "adamw:steps=2,lr=5e-5,wd=0",
            "decay takes 0; with this lr it was about wd=0.00",
        ),
        (("fedavg", 2, {"lr": 0.1}), "fedavg:steps=2,lr=0.1,wd=0.1", "no token touched stayed"),
        (("fedavg", 2, {"lr": 0.1}), "fedavg:steps=2,lr=0.1,clip=0.001", "clipping leaves at most 0.0002"),
    ],
)
def test_what_a_rule_cannot_do_is_refused(made, rule, message):
    name, steps, options = made
    with pytest.raises(GradleakError, match=message) as caught:
        check_plausible(*trained(name, steps, **options), ClientRule.parse(rule))
    assert "\n" not in str(caught.value)


def test_decay_of_the_wrong_sign_is_refused():
    moved, before = trained("adamw", 1, lr=5e-5, weight_decay=0.1)
    grown = {name: tensor - 2 * 5e-5 * 0.1 * before[name] for name, tensor in moved.items()}
    with pytest.raises(GradleakError, match="no token touched grew by 5e-06 of themselves; decay takes 5e-06"):
        check_plausible(grown, before, ClientRule.parse("adamw:steps=1,lr=5e-5,wd=0.1"))


def test_a_gradient_is_no_longer_than_it_was_clipped_to():
    rule, weights = ClientRule.parse("fedsgd:clip=1"), {"a": torch.zeros(4)}
    check_plausible({"a": torch.full((4,), 0.5)}, weights, rule)
    with pytest.raises(GradleakError, match="its norm is 1"):
        check_plausible({"a": torch.full((4,), 0.6)}, weights, rule)


def test_weights_sent_in_less_precision_are_no_contradiction():
    """A client that does not say that it rounds: what it sends shows it."""
    moved, before = trained("adamw", 2, lr=5e-5)
    rounded = {name: before[name] - (before[name] - tensor).bfloat16().float() for name, tensor in moved.items()}
    check_plausible(rounded, before, ClientRule.parse("adamw:steps=2,lr=5e-5"))


@given(
    st.lists(st.floats(-100, 100), min_size=1, max_size=12), st.floats(0, 0.99), st.floats(0.01, 0.9999)
)  # fmt: skip
def test_no_gradients_lead_further_than_the_bound(gradients, first, second):
    mean = square = 0.0
    for step, gradient in enumerate(gradients, 1):
        mean = first * mean + (1 - first) * gradient
        square = second * square + (1 - second) * gradient**2
        ratio = abs(mean / (1 - first**step)) / (math.sqrt(square / (1 - second**step)) + 1e-8)
        assert ratio <= largest_ratio(step, (first, second)) * (1 + 1e-6)


def test_an_update_is_looked_at_when_it_is_loaded(tmp_path):
    moved, _ = trained("adamw", 2, lr=5e-5)
    claims = {"task": "classification", "family": "bert", "known": Known(batch_size=3)}
    rules = {lr: ClientRule.parse(f"adamw:epochs=2,batch=3,lr={lr}") for lr in (5e-5, 1e-5)}
    load_update(Update(moved, Manifest(**claims, client=rules[5e-5])).save(tmp_path / "right"), model())
    wrong = Update(moved, Manifest(**claims, client=rules[1e-5])).save(tmp_path / "wrong")
    with pytest.raises(GradleakError, match="cannot have made this update"):
        load_update(wrong, model())
    for more in ({"defenses": ("noise:sigma=0.1",)}, {"clients": 3}, {"notes": ("roughly",)}):
        load_update(Update(moved, Manifest(**claims, client=rules[1e-5], **more)).save(tmp_path / "other"), model())


@pytest.mark.parametrize("rule", ["fedsgd", "fedavg:lr=0.1", "adamw:lr=5e-5"])
def test_weights_are_no_gradient_and_no_difference(rule):
    """What a client sends that was taken for the other kind: weights for a gradient, a difference for weights."""
    moved, before = trained("fedavg", 1, lr=0.1)
    client = ClientRule.parse(rule)
    claims = Manifest(task="classification", family="bert", client=client, known=Known(batch_size=3))
    wrong = {name: before[name] - tensor for name, tensor in moved.items()}
    with pytest.raises(GradleakError, match="nearly the model's weights"):
        check_made(wrong, before, claims)
    with pytest.raises(GradleakError, match="nearly the model's weights"):
        check_made(wrong, before, claims.model_copy(update={"defenses": ("sign",)}))
    if rule != "adamw:lr=5e-5":
        check_made(moved, before, claims)


def test_a_wrong_step_size_is_named_beside_a_wrong_decay():
    moved, before = trained("adamw", 2, lr=5e-5, weight_decay=0.01)
    rule = ClientRule.parse("adamw:steps=2,batch=2,lr=1e-5")
    with pytest.raises(GradleakError, match=r"wd=0\.0\d+, with this wd about lr=[45]\.?\d*e-05"):
        check_plausible(moved, before, rule, 4)


@pytest.mark.parametrize("steps", [1, 4])
def test_adams_steps_are_told_from_those_of_sgd(steps):
    """Who leaves --optimizer out gets SGD, and adapters are nearly always trained by AdamW."""
    for name in ("adam", "adamw", "fedavg"):
        moved, _ = trained(name, steps, lr=2e-4)
        assert moved_like_adam(moved, ClientRule.parse(f"fedavg:steps={steps},batch=3,lr=2e-4"), 3) == (
            name != "fedavg"
        )
    assert not moved_like_adam(moved, ClientRule.parse(f"adamw:steps={steps},batch=3,lr=2e-4"), 3)
