"""One harness for every layer rule and activation: the gradient it reads off a pass is autograd's, row by row."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.pytorch_utils import Conv1D

from gradleak.matching.activations import DERIVATIVES, smooth
from gradleak.matching.capture import Capture
from gradleak.matching.distances import Distance
from gradleak.matching.factored import Factors, TableRows, inner, squared_norm
from gradleak.matching.normalisation import normalise
from gradleak.matching.rules import rule_for
from gradleak.models.families.gpt2 import GPT2
from gradleak.models.families.llama import LLAMA

ROWS, BATCH, TOKENS, WIDTH = 3, 2, 5, 6


def vectors(*shape):
    return torch.randn(ROWS * BATCH, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def indices(size):
    return torch.randint(0, size, (ROWS * BATCH, TOKENS), generator=torch.Generator().manual_seed(1))


class Tied(nn.Module):
    """A table that is read at the input and multiplied with at the output."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, WIDTH)
        self.head = nn.Linear(WIDTH, 9, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids)))


LAYERS = {
    "linear": (lambda: nn.Linear(WIDTH, 4), lambda: vectors(TOKENS, WIDTH)),
    "linear without bias": (lambda: nn.Linear(WIDTH, 4, bias=False), lambda: vectors(TOKENS, WIDTH)),
    "linear on one vector": (lambda: nn.Linear(WIDTH, 4), lambda: vectors(WIDTH)),
    "conv1d": (lambda: Conv1D(4, WIDTH), lambda: vectors(TOKENS, WIDTH)),
    "layer norm": (lambda: nn.LayerNorm(WIDTH), lambda: vectors(TOKENS, WIDTH)),
    "rms norm": (lambda: nn.RMSNorm(WIDTH, eps=1e-6), lambda: vectors(TOKENS, WIDTH)),
    "embedding": (lambda: nn.Embedding(7, WIDTH), lambda: indices(7)),
    "embedding with padding": (lambda: nn.Embedding(7, WIDTH, padding_idx=2), lambda: indices(7)),
    "embedding read once for all": (lambda: nn.Embedding(7, WIDTH), lambda: indices(7)[:1]),
    "convolution": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), lambda: vectors(2, 7, 8)),
    "used twice": (lambda: nn.Sequential(*[nn.Linear(WIDTH, WIDTH)] * 2), lambda: vectors(TOKENS, WIDTH)),
    "tied": (Tied, lambda: indices(9)),
}


def losses_of(module, x):
    """Any smooth function of the outputs that treats rows apart."""
    y = module(x)
    y = y.expand(ROWS * BATCH, *y.shape[1:])
    weights = torch.linspace(-1, 1, y[0].numel(), dtype=y.dtype).view(y[0].shape)
    return (torch.sin(y) * weights).reshape(ROWS, -1).sum(dim=1)


@pytest.mark.parametrize("name", LAYERS)
def test_rule_reads_every_rows_gradient(name):
    make, inputs = LAYERS[name]
    torch.manual_seed(0)
    module = make().double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    x = inputs()
    if x.is_floating_point():
        x.requires_grad_()
    names = [n for n, _ in module.named_parameters()]
    capture = Capture(module, names, GPT2.rules)
    gradients, _ = capture.gradients(lambda: losses_of(module, x), ROWS, BATCH, differentiable=False)
    assert set(gradients.factored) | set(gradients.small) == set(names)
    per_row = losses_of(module, x)
    for n, parameter in module.named_parameters():
        for row in range(ROWS):
            (expected,) = torch.autograd.grad(per_row[row], parameter, retain_graph=True)
            if n in gradients.small:
                got = gradients.small[n][row]
            else:
                got = sum(each.dense()[row] for each in gradients.factored[n]).view_as(parameter)
            torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
        if n in gradients.factored:
            dense = sum(each.dense() for each in gradients.factored[n])
            expected = dense.square().sum(dim=(1, 2))
            torch.testing.assert_close(squared_norm(gradients.factored[n]), expected, rtol=1e-9, atol=1e-12)


def test_the_librarys_rms_norm():
    module = LlamaRMSNorm(WIDTH)
    nn.init.normal_(module.weight)
    x = vectors(TOKENS, WIDTH).float().requires_grad_()
    gradients, _ = Capture(module, ["weight"], LLAMA.rules).gradients(
        lambda: losses_of(module, x), ROWS, BATCH, differentiable=False
    )
    for row in range(ROWS):
        (expected,) = torch.autograd.grad(losses_of(module, x)[row], module.weight)
        torch.testing.assert_close(gradients.small["weight"][row], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"groups": 2}, {"padding": "same"}, {"padding": 1, "padding_mode": "circular"}])
def test_convolutions_that_are_not_linear_on_patches_have_no_rule(options):
    assert rule_for(nn.Conv2d(2, 4, 3, **options)) is None


@pytest.mark.parametrize("kinds", [("f", "f"), ("r", "r"), ("r", "f"), ("f", "r")])
def test_inner_products_of_factored_gradients(kinds):
    generator = torch.Generator().manual_seed(0)

    def make(kind, tokens):
        right = torch.randn(2, tokens, 4, generator=generator, dtype=torch.float64)
        if kind == "f":
            return Factors(torch.randn(2, tokens, 5, generator=generator, dtype=torch.float64), right)
        return TableRows(torch.randint(0, 5, (2, tokens), generator=generator), right, 5)

    a, b = make(kinds[0], 3), make(kinds[1], 6)
    torch.testing.assert_close(inner(a, b), (a.dense() * b.dense()).sum(dim=(1, 2)))


@pytest.mark.parametrize("name", DERIVATIVES)
def test_activation_derivatives(name):
    """First and second derivatives equal those of the library's own function."""
    from transformers import activations

    kind = getattr(activations, name, None) or getattr(nn, name)
    module = kind()
    x = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
    plain = module(x)
    ours = smooth(module, (x,), plain)
    assert ours is not None
    output_gradient = torch.cos(torch.arange(101, dtype=torch.float64)).requires_grad_()
    for function in (plain, ours):
        (first,) = torch.autograd.grad(function, x, output_gradient, create_graph=True)
        second = torch.autograd.grad((first * first.detach().sin()).sum(), [x, output_gradient])
        if function is plain:
            expected = (first, *second)
        else:
            for got, wanted in zip((first, *second), expected, strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)


def test_layer_norm_has_both_derivatives():
    x = vectors(TOKENS, WIDTH).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: normalise(x, 1e-5), x)
    assert torch.autograd.gradgradcheck(lambda x: normalise(x, 1e-5), x)


@given(
    st.sampled_from(["cosine", "l2", "l2+l1", "sign"]),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(0, 1000),
)
def test_slope_of_a_distance_is_its_derivative(name, rows, size, seed):
    dummy, target = torch.randn(2, rows, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    distance = Distance(name)
    leaf = dummy.clone().requires_grad_()
    expected = distance.from_dense(leaf, target)
    (slope,) = torch.autograd.grad(expected.sum(), leaf)
    gradients = torch.empty_like(dummy)
    torch.testing.assert_close(distance.in_place(dummy.clone(), target), expected.detach())
    torch.testing.assert_close(distance.in_place(dummy, target, gradients), expected.detach())
    torch.testing.assert_close(gradients, slope)
