"""Optimisers undone, against plain torch loops on a model of two tables and a bias."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak import GradleakError
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.gradient import Undone, undo
from gradleak.updates.manifest import Known, Manifest
from gradleak.updates.update import Update

TOUCHED = [1, 4, 5]


class Weights:
    """As much of a target as undoing looks at."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.module = torch.nn.Module()  # no norms among its parts
        self.weights = {
            "table": 0.05 * torch.randn(9, 6, generator=generator),
            "matrix": 0.05 * torch.randn(8, 6, generator=generator),
            "bias": 0.05 * torch.randn(8, generator=generator),
        }

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return {name: torch.nn.Parameter(weight.clone()) for name, weight in self.weights.items()}


def gradients_of(scale: float, seed: int = 1) -> dict[str, torch.Tensor]:
    """A gradient whose table has only some rows, with entries of very unequal sizes."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"table": (9, 6), "matrix": (8, 6), "bias": (8,)}
    drawn = {
        name: scale * torch.randn(size, generator=generator) * torch.rand(size, generator=generator) ** 2
        for name, size in sizes.items()
    }
    drawn["table"][[row for row in range(9) if row not in TOUCHED]] = 0
    return drawn


def trained_by_torch(model: Weights, rule: ClientRule, steps: list[dict[str, torch.Tensor]]) -> Update:
    """What a client sends that takes these gradients with torch's own optimiser."""
    weights = model.parameters()
    kept = [w for w in weights.values() if rule.decay == "matrices" and w.dim() < 2]
    groups = [
        {"params": [w for w in weights.values() if not any(w is k for k in kept)], "weight_decay": rule.wd},
        {"params": kept, "weight_decay": 0.0},
    ]
    if rule.name == "fedavg":
        optimiser = torch.optim.SGD(groups, lr=rule.lr, momentum=rule.momentum)
    else:
        kind = torch.optim.AdamW if rule.name == "adamw" else torch.optim.Adam
        optimiser = kind(groups, lr=rule.lr, betas=rule.betas, eps=rule.eps)
    for rate, gradients in zip(rule.rates(len(steps)), steps, strict=True):
        for group in optimiser.param_groups:
            group["lr"] = rate
        for name, weight in weights.items():
            weight.grad = gradients[name].clone()
        if rule.clip is not None:
            torch.nn.utils.clip_grad_norm_(weights.values(), rule.clip)
        optimiser.step()
    moved = {name: (model.weights[name] - weight.detach()) for name, weight in weights.items()}
    manifest = Manifest(task="classification", family="bert", client=rule, known=Known(batch_size=len(steps)))
    return Update(moved, manifest)


def undone(model: Weights, update: Update) -> Undone:
    return undo(update, model)  # type: ignore[arg-type]


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() * b.double()).sum() / (a.double().norm() * b.double().norm()))


@settings(max_examples=30, deadline=None)
@given(
    lr=st.floats(1e-6, 1e-2),
    wd=st.sampled_from([0.0, 0.01, 0.3]),
    beta=st.floats(0.0, 0.99),
    decay=st.sampled_from(["all", "matrices"]),
    steps=st.integers(1, 4),
    schedule=st.sampled_from(["constant", "linear"]),
)
def test_rows_that_no_token_touched_are_exactly_zero(lr, wd, beta, decay, steps, schedule) -> None:
    model = Weights()
    rule = ClientRule(name="adamw", lr=lr, wd=wd, betas=(beta, 0.999), decay=decay, schedule=schedule, batch=1)
    update = trained_by_torch(model, rule, [gradients_of(1e-3, seed) for seed in range(steps)])
    found = undone(model, update)
    rows = found.gradient.tensors["table"].abs().sum(dim=1)
    assert (rows > 0).nonzero()[:, 0].tolist() == TOUCHED
    assert found.kind == ("first step" if steps == 1 else "normalised sum")
    assert (found.errors is not None) == (steps == 1)


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["adam", "adamw"]),
    lr=st.floats(1e-5, 1e-2),
    wd=st.sampled_from([0.0, 0.01]),
    beta=st.floats(0.0, 0.99),
)
def test_the_first_step_gives_sizes_back(name, lr, wd, beta) -> None:
    """Gradients that rounding does not saturate come back within their errors."""
    model, true = Weights(), gradients_of(1e-8)
    if name == "adam":  # L2 decay is added to the gradient, and drowns one this small
        wd = 0.0
    rule = ClientRule(name=name, lr=lr, wd=wd, betas=(beta, 0.999))
    found = undone(model, trained_by_torch(model, rule, [true]))
    assert found.errors is not None
    for key, gradient in found.gradient.tensors.items():
        off = (gradient - true[key]).abs()
        assert bool((off <= 4 * found.errors[key] + 1e-5 * true[key].abs() + 1e-14).all()), key
        assert cosine(gradient, true[key]) > 0.99


def test_large_entries_keep_their_sign_and_a_lower_bound() -> None:
    model, true = Weights(), gradients_of(1e-2)
    found = undone(model, trained_by_torch(model, ClientRule(name="adamw", lr=5e-5), [true]))
    assert found.errors is not None
    matrix, wanted = found.gradient.tensors["matrix"], true["matrix"]
    clear = found.errors["matrix"] < 0.3 * matrix.abs()
    assert bool((matrix.sign() == wanted.sign()).all())
    assert bool((matrix.abs()[~clear] < 2 * wanted.abs()[~clear]).all())
    assert bool((matrix[clear] / wanted[clear] - 1).abs().max() < 1)
    assert any("only a sign" in note for note in found.notes)


def test_l2_decay_of_adam_is_taken_out_of_the_first_step() -> None:
    model, true = Weights(), gradients_of(1e-7)
    update = trained_by_torch(model, ClientRule(name="adam", lr=1e-2, wd=1e-6), [true])
    found = undone(model, update).gradient.tensors["table"]
    assert (found.abs().sum(dim=1) > 0).nonzero()[:, 0].tolist() == TOUCHED
    assert cosine(found, true["table"]) > 0.99


@settings(max_examples=20, deadline=None)
@given(momentum=st.floats(0.0, 0.95), wd=st.sampled_from([0.0, 0.01]), steps=st.integers(1, 5))
def test_momentum_and_decay_of_sgd(momentum, wd, steps) -> None:
    """The same gradient in every step comes back whatever momentum did with it."""
    model, true = Weights(), gradients_of(1.0)
    rule = ClientRule(name="fedavg", lr=1e-3, momentum=momentum, wd=wd, batch=1)
    found = undone(model, trained_by_torch(model, rule, [true] * steps))
    assert found.kind == "mean gradient"
    for name, tensor in found.gradient.tensors.items():
        torch.testing.assert_close(tensor, true[name], rtol=1e-2, atol=1e-3)
    rows = found.gradient.tensors["table"].abs().sum(dim=1)
    assert (rows > 0).nonzero()[:, 0].tolist() == TOUCHED


def test_clipping_only_scales() -> None:
    model, true = Weights(), gradients_of(1e-4)
    found = undone(model, trained_by_torch(model, ClientRule(name="adamw", lr=1e-2, clip=1e-7), [true]))
    assert cosine(found.gradient.tensors["matrix"], true["matrix"]) > 0.999
    assert any("only scales" in note for note in found.notes)


def test_what_the_rule_cannot_have_made_is_refused() -> None:
    model, true = Weights(), gradients_of(1e-2)
    update = trained_by_torch(model, ClientRule(name="adamw", lr=1e-3), [true])
    client = update.manifest.client.model_copy(update={"lr": 1e-4})
    forged = Update(update.tensors, update.manifest.model_copy(update={"client": client}))
    with pytest.raises(GradleakError, match="the rule cannot have made this update"):
        undone(model, forged)
    # Without a batch size there may have been more steps than one.
    open_size = Update(update.tensors, forged.manifest.model_copy(update={"known": Known()}))
    assert undone(model, open_size).kind == "normalised sum"


def test_a_step_of_size_zero_is_refused() -> None:
    model, true = Weights(), gradients_of(1e-2)
    rule = ClientRule(name="adamw", lr=1e-3, warmup=1)
    with pytest.raises(GradleakError, match=r"step size of adamw is 0.* 1 step"):
        undone(model, trained_by_torch(model, rule, [true]))


def test_half_precision_on_the_wire_leaves_untouched_rows_zero() -> None:
    model, true = Weights(), gradients_of(1e-8)
    rule = ClientRule(name="adamw", lr=1e-2, wire="bf16")
    sent = trained_by_torch(model, rule, [true])
    rounded = {name: tensor.bfloat16().float() for name, tensor in sent.tensors.items()}
    found = undone(model, Update(rounded, sent.manifest)).gradient.tensors
    assert (found["table"].abs().sum(dim=1) > 0).nonzero()[:, 0].tolist() == TOUCHED
    assert cosine(found["matrix"], true["matrix"]) > 0.98
    assert math.isfinite(float(found["matrix"].norm()))
