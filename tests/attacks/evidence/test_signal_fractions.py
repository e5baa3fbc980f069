"""What an attacker knows of the rounding in a FedAvg update."""

from __future__ import annotations

import torch

from gradleak import Client, TextModel
from gradleak.attacks.evidence.signal_fractions import _error_powers, signal_fractions
from gradleak.updates.gradient import as_gradient

TEXTS, LABELS = ["She sold the house in May.", "They never answered."], [0, 1]


def test_a_gradient_has_no_rounding(tiny_bert: TextModel) -> None:
    assert signal_fractions(Client(tiny_bert).update(TEXTS, LABELS), tiny_bert) is None


def test_shares_tell_which_parameters_are_drowned(tiny_bert: TextModel) -> None:
    """Where the share is high the difference points along the gradient, where it is low it does not."""
    gradient = Client(tiny_bert).update(TEXTS, LABELS).tensors
    sent = Client(tiny_bert, client="fedavg:batch=1,lr=3e-7").update(TEXTS, LABELS)
    shares = signal_fractions(sent, tiny_bert)
    assert shares is not None
    approximate = as_gradient(sent, tiny_bert).tensors
    apart = {
        name: 1 - float(torch.cosine_similarity(gradient[name].flatten(), approximate[name].flatten(), dim=0))
        for name in gradient
    }
    # The keys' bias has no gradient to speak of: a common shift of all keys changes nothing.
    compared = [name for name in gradient if "key.bias" not in name]
    clear = [apart[name] for name in compared if shares[name] > 0.9]
    drowned = [apart[name] for name in compared if shares[name] < 0.1]
    assert clear
    assert drowned
    assert max(clear) < 0.1 < sum(drowned) / len(drowned)


def test_larger_steps_leave_more_signal(tiny_bert: TextModel) -> None:
    totals = []
    for lr in ("1e-6", "1e-4", "1e-2"):
        shares = signal_fractions(Client(tiny_bert, client=f"fedavg:lr={lr}").update(TEXTS, LABELS), tiny_bert)
        assert shares is not None
        totals.append(sum(shares.values()))
    assert totals == sorted(totals)
    assert totals[0] < totals[2]


def test_coarser_numbers_leave_less_signal(tiny_bert: TextModel) -> None:
    """By rounding of what is sent, and of the weights while they are trained."""
    for rule in ("fedsgd:", "fedavg:lr=1e-2,"):
        totals = []
        for format_ in ("wire=bf16", "wire=fp16", "precision=bf16,wire=bf16"):
            sent = Client(tiny_bert, client=f"{rule}{format_}").update(TEXTS, LABELS)
            shares = signal_fractions(sent, tiny_bert)
            assert shares is not None
            totals.append(sum(shares.values()))
        assert totals[2] <= totals[0] <= totals[1]


def test_the_expected_rounding_is_the_rounding_that_happened(tiny_bert: TextModel) -> None:
    plain, sent = (
        Client(tiny_bert, client=f"fedavg:lr=1e-2{wire}").update(TEXTS, LABELS) for wire in ("", ",wire=bf16")
    )
    errors = _error_powers(sent, tiny_bert)
    for name, tensor in sent.tensors.items():
        happened = float((tensor - plain.tensors[name]).square().mean())
        if tensor.numel() > 100 and happened:
            assert 0.5 < errors[name] / happened < 2, name
