"""The fused cross-entropy against autograd on whole logits."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak.attacks.inversion.table_loss import table_cross_entropy


@settings(max_examples=40)
@given(
    rows=st.integers(1, 150), words=st.integers(2, 40), biased=st.booleans(), scale=st.sampled_from([0.1, 3.0, 60.0])
)
def test_value_and_derivatives_are_those_of_autograd(rows, words, biased, scale):
    generator = torch.Generator().manual_seed(rows * 100 + words)
    states = (scale * torch.randn(rows, 5, generator=generator, dtype=torch.float64)).requires_grad_()
    table = torch.randn(words, 5, generator=generator, dtype=torch.float64)
    bias = torch.randn(words, generator=generator, dtype=torch.float64).requires_grad_() if biased else None
    targets = torch.randint(words, (rows,), generator=generator)
    weights = torch.rand(rows, generator=generator, dtype=torch.float64)
    logits = states @ table.T + (0 if bias is None else bias)
    wanted = (weights * F.cross_entropy(logits, targets, reduction="none")).sum()
    found = table_cross_entropy(states, table, targets, weights, bias)
    assert torch.allclose(found, wanted)
    leaves = [states] if bias is None else [states, bias]
    for mine, theirs in zip(
        torch.autograd.grad(3 * found, leaves), torch.autograd.grad(3 * wanted, leaves), strict=True
    ):
        assert torch.allclose(mine, theirs, atol=1e-10)
