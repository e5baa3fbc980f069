"""Defences as federated frameworks deploy them: against plain formulas, and their own code where it is installed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradleak.core.secret import Secret
from gradleak.defenses import parse_defenses
from gradleak.defenses.tree import changed_nodes, prefix_nodes


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


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5000))
def test_nodes_of_a_prefix_hold_every_round_once(rounds):
    held = [place << height | leaf for height, place in prefix_nodes(rounds) for leaf in range(1 << height)]
    assert held == list(range(rounds))
    joins, leave = changed_nodes(rounds)
    assert sorted([*prefix_nodes(rounds - 1), joins]) == sorted([*prefix_nodes(rounds), *leave])


def test_noise_of_a_tree_is_taken_back():
    """The sum of the first eight updates has the noise of one node; each alone has that of one to four."""
    (tree,) = parse_defenses(["tree:noise=0.5,norm=2"])
    zeros, shared = {"a": torch.zeros(100, 200)}, Secret.draw()
    rounds = [tree.in_round(number, 8, shared) for number in range(1, 9)]
    sent = [each.apply(zeros, None, torch.Generator())["a"] for each in rounds]
    for each, own in zip(rounds, sent, strict=True):
        assert float(own.std()) == pytest.approx(each.noise_std(None, 1), rel=0.03)
    assert [round(each.noise_std(None, 1) ** 2) for each in rounds] == [1, 2, 1, 3, 1, 2, 1, 4]
    for number in range(1, 9):
        total = torch.stack(sent[:number]).sum(dim=0)
        assert float(total.std()) == pytest.approx(np.sqrt(len(prefix_nodes(number))), rel=0.03)
    # Alone, as an audit makes it, an update of the same round has noise of the same size.
    (alone,) = parse_defenses(["tree:noise=0.5,norm=2,round=8"])
    assert float(alone.apply(zeros, None, torch.Generator())["a"].std()) == pytest.approx(2, rel=0.03)


def test_what_a_tree_promises_is_what_another_accountant_says():
    accounting = pytest.importorskip("dp_accounting")
    for rounds in (1, 7, 8, 100, 1024):
        (tree,) = parse_defenses([f"tree:noise=6,rounds={rounds},round={rounds}"])
        # Twice the noise there: with a sentence and without it an update is twice the norm apart.
        theirs = accounting.rdp.RdpAccountant(neighboring_relation=accounting.NeighboringRelation.REPLACE_SPECIAL)
        theirs.compose(accounting.SingleEpochTreeAggregationDpEvent(3.0, rounds))
        epsilon = theirs.get_epsilon(1e-5)
        noise, seen = tree.promise().training
        assert seen == rounds
        ours = accounting.rdp.RdpAccountant(neighboring_relation=accounting.NeighboringRelation.REPLACE_SPECIAL)
        ours.compose(accounting.GaussianDpEvent(noise))
        assert ours.get_epsilon(1e-5) == pytest.approx(epsilon, rel=1e-6)


def test_an_adaptive_norm_depends_on_the_round():
    tensors = drawn(6)
    norm = float(torch.cat([tensor.flatten() for tensor in tensors.values()]).norm())
    first = defended(f"adaptiveclip:norm={norm / 2}", tensors)
    assert all(torch.allclose(first[name], tensor / 2) for name, tensor in tensors.items())
    later = defended(f"adaptiveclip:norm={norm / 2},round=6", tensors)
    assert all(torch.allclose(later[name], tensor / 2 * np.exp(-0.5)) for name, tensor in tensors.items())


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10**6), st.sampled_from(["float16", "bfloat16", "blockwise8", "float4", "normfloat4", "adaquant"])
)
def test_a_format_moves_no_number_by_more_than_it_may(seed, kind):
    tensors = drawn(seed, zeros=0.2)
    worst = {"float16": 2**-11, "bfloat16": 2**-8, "blockwise8": 0.0071, "float4": 1 / 6, "normfloat4": 0.152}
    for name, own in defended(f"wire:format={kind}", tensors).items():
        largest = float(tensors[name].abs().max())
        assert float((own - tensors[name]).abs().max()) <= worst.get(kind, 1.0) * largest
        assert kind == "adaquant" or bool((own[tensors[name] == 0] == 0).all())


@pytest.mark.parametrize("kind", ["blockwise8", "float4", "normfloat4"])
def test_formats_against_bitsandbytes(kind):
    theirs = pytest.importorskip("bitsandbytes.functional")
    tensors = {"a": 0.02 * torch.randn(70, 130, generator=torch.Generator().manual_seed(1)), "b": torch.zeros(100)}
    for name, own in defended(f"wire:format={kind}", tensors).items():
        if kind == "blockwise8":
            expected = theirs.dequantize_blockwise(*theirs.quantize_blockwise(tensors[name]))
        else:
            packed = theirs.quantize_4bit(tensors[name], quant_type="fp4" if kind == "float4" else "nf4")
            expected = theirs.dequantize_4bit(*packed).view(own.shape)
        # A number in the middle between two may be rounded either way, and in eight bits bitsandbytes' search for the
        # nearest one is rough on processors.
        other = ~torch.isclose(own, expected, atol=1e-7)
        assert float(other.float().mean()) < 3e-3
        assert float((own - expected).abs().max()) <= (0.015 if kind == "blockwise8" else 0.34) * float(
            own.abs().max()
        )


def test_adaquant_against_nvflare():
    theirs = pytest.importorskip("nvflare.app_opt.pt.quantization.ada_quant").AdaQuantizer()
    # Where the range of a tensor is below 2e-4, theirs (2.9) has no bit left and divides by zero.
    for scale in (0.1, 1.0, 100.0):
        tensor = scale * drawn(7)["a"]
        packed, state = theirs.quantize(tensor)
        expected = theirs.dequantized(torch.as_tensor(packed), state).float()
        sent = defended("wire:format=adaquant", {"a": tensor})["a"]
        assert torch.allclose(sent, expected, atol=1e-6 * scale)


def test_an_adaptive_norm_against_flower():
    theirs = pytest.importorskip("flwr.supercore.differential_privacy")
    from flwr.serverapp.strategy import DifferentialPrivacyClientSideAdaptiveClipping as Strategy

    tensors = drawn(8)
    before = [np.ones(tensor.shape, dtype=np.float32) for tensor in tensors.values()]
    for initial in (0.1, 10.0):
        server = Strategy(object(), 0.0, 1, initial_clipping_norm=initial)
        for number in range(1, 8):
            after = [own + tensor.numpy() for own, tensor in zip(before, tensors.values(), strict=True)]
            clipped = theirs.compute_adaptive_clip_model_update(after, before, server.clipping_norm)
            sent = defended(f"adaptiveclip:norm={initial},round={number}", tensors)
            for own, was, name in zip(after, before, tensors, strict=True):
                assert np.allclose(own - was, sent[name].numpy(), atol=1e-6)
            server._geometric_update(float(clipped))


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
