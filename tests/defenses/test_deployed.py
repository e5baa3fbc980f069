"""Defences as federated frameworks deploy them: against plain formulas, and their own code where it is installed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak.defenses import parse_defenses


def defended(spec, tensors, seed=0):
    (defense,) = parse_defenses([spec])
    return defense.apply(tensors, None, torch.Generator().manual_seed(seed))


def drawn(seed, zeros=0.0):
    draw = torch.Generator().manual_seed(seed)
    made = {"a": 0.02 * torch.randn(20, 30, generator=draw), "b": 0.01 * torch.randn(40, generator=draw)}
    return {name: torch.where(torch.rand(t.shape, generator=draw) < zeros, 0.0, t) for name, t in made.items()}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 100), st.floats(1e-3, 0.1))
def test_percentile_is_numpys(seed, percentile, gamma):
    tensors = drawn(seed)
    sent = defended(f"percentile:percentile={percentile},gamma={gamma}", tensors)
    cutoff = np.percentile(np.concatenate([np.abs(t.numpy()).ravel() for t in tensors.values()]), percentile)
    for name, tensor in tensors.items():
        expected = np.clip(np.where(np.abs(tensor.numpy()) < cutoff, 0, tensor.numpy()), -gamma, gamma)
        near = np.isclose(np.abs(tensor.numpy()), cutoff, rtol=1e-5)  # in single precision either side may be taken
        assert np.allclose(np.where(near, 0, sent[name].numpy()), np.where(near, 0, expected))


def test_a_percentile_of_mostly_zeros_leaves_everything():
    tensors = drawn(1, zeros=0.5)
    sent = defended("percentile:gamma=1", tensors)
    assert all(torch.equal(sent[name], tensor) for name, tensor in tensors.items())


def test_svt_sends_a_tenth_cut_off():
    tensors = drawn(2)
    sent = torch.cat([tensor.flatten() for tensor in defended("svt", tensors).values()])
    assert 0.05 < float((sent != 0).float().mean()) <= 0.1
    assert float(sent.abs().max()) <= 1.001e-5
    generous = defended(
        "svt:epsilon=1e9,release=1e9,gamma=1,fraction=1", tensors
    )  # with replacement: some are left out
    for name, tensor in tensors.items():
        kept = generous[name] != 0
        assert torch.allclose(generous[name][kept], tensor[kept], atol=1e-4)


def test_whole_updates_are_clipped_and_noised():
    tensors = drawn(3)
    norm = float(torch.cat([tensor.flatten() for tensor in tensors.values()]).norm())
    clipped = defended(f"clip:norm={norm / 2}", tensors)
    assert all(torch.allclose(clipped[name], tensor / 2) for name, tensor in tensors.items())
    assert all(
        torch.equal(tensor, tensors[name]) for name, tensor in defended(f"clip:norm={2 * norm}", tensors).items()
    )
    (local,) = parse_defenses(["localdp:clipping_norm=0.5,sensitivity=0.1,epsilon=2,delta=1e-4"])
    noise = 0.1 * np.sqrt(2 * np.log(1.25 / 1e-4)) / 2
    assert local.noise_std(None, 1) == pytest.approx(noise)
    many = local.apply({"a": torch.zeros(200, 500)}, None, torch.Generator().manual_seed(0))["a"]
    assert float(many.std()) == pytest.approx(noise, rel=0.02)
    assert local.promise().noise == pytest.approx(noise / (2 * 0.5))
    assert local.promise().whole


def test_percentile_against_nvflare():
    filters = pytest.importorskip("nvflare.app_common.filters.percentile_privacy")
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable

    tensors = drawn(4)
    theirs = DXO(DataKind.WEIGHT_DIFF, data={name: tensor.numpy().copy() for name, tensor in tensors.items()})
    filters.PercentilePrivacy(percentile=30, gamma=0.015).process_dxo(theirs, Shareable(), FLContext())
    sent = defended("percentile:percentile=30,gamma=0.015", tensors)
    assert all(np.allclose(theirs.data[name], sent[name].numpy()) for name in tensors)


def test_clipping_and_noise_against_flower():
    theirs = pytest.importorskip("flwr.supercore.differential_privacy")
    tensors = drawn(5)
    before = [np.ones(tensor.shape, dtype=np.float32) for tensor in tensors.values()]
    after = [own + tensor.numpy() for own, tensor in zip(before, tensors.values(), strict=True)]
    theirs.compute_clip_model_update(after, before, 0.1)
    sent = defended("clip:norm=0.1", tensors)
    for own, was, name in zip(after, before, tensors, strict=True):
        assert np.allclose(own - was, sent[name].numpy(), atol=1e-6)
