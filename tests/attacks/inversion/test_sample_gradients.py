"""Per-sample gradients and defences in a batch, against a client that sends one sentence at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_model

from gradleak import Client, GradleakError
from gradleak.attacks.inversion.defended import check_learnable, defend
from gradleak.attacks.inversion.sample_gradients import SampleGradients
from gradleak.defenses import parse_defenses
from gradleak.defenses.prune import magnitude_limit, magnitude_limits

TEXTS = ["Rosa moved to ward six.", "The loan was refused."]


@pytest.fixture(scope="module")
def model():
    return tiny_model("gpt2", "causal-lm")


def together(model, texts, labels=None):
    batch = model.encode(texts)
    targets = batch.ids if labels is None else torch.tensor(labels)
    return SampleGradients(model, list(model.parameters())).of(batch, targets)


def test_gradients_are_what_single_clients_send(tiny):
    labels = [0, 1] if tiny.task == "classification" else None
    found = together(tiny, TEXTS, labels)
    for number, text in enumerate(TEXTS):
        alone = Client(tiny).update([text], None if labels is None else labels[number : number + 1]).tensors
        assert set(alone) == set(found)
        for name, tensor in alone.items():
            assert torch.allclose(found[name][number], tensor, atol=1e-6), name


def test_parts_are_the_whole(model, monkeypatch):
    monkeypatch.setattr("gradleak.attacks.inversion.sample_gradients.AT_ONCE", 1)
    batch = model.encode(TEXTS)
    gradients = SampleGradients(model, list(model.parameters()))
    pieces, whole = list(gradients.parts(batch, batch.ids)), gradients.of(batch, batch.ids)
    assert len(pieces) == 2
    for name, tensor in whole.items():
        assert torch.allclose(torch.cat([piece[name] for piece in pieces]), tensor, atol=1e-6)


@pytest.mark.parametrize(
    "specs",
    ["sign", "prune:ratio=0.99", "prune:ratio=0.3", "quantize:bits=4", "layers:send=1", "sign prune:ratio=0.7"],
)
def test_defences_on_many_updates_are_those_on_single_ones(model, specs):
    defenses, found = parse_defenses(specs.split()), together(model, TEXTS)
    sent = defend(found, defenses, model, torch.Generator().manual_seed(0))
    for number in range(len(TEXTS)):
        alone = {name: tensor[number] for name, tensor in found.items()}
        for defense in defenses:
            alone = defense.apply(alone, model, torch.Generator().manual_seed(0))
        assert set(alone) == set(sent)
        assert all(torch.equal(sent[name][number], tensor) for name, tensor in alone.items())


@pytest.mark.parametrize(("spec", "size"), [("noise:sigma=0.01", 0.01), ("mask:ratio=0.5", None)])
def test_random_defences_differ_between_updates(model, spec, size):
    found = {name: torch.cat([tensor[:1]] * 2) for name, tensor in together(model, TEXTS).items()}
    sent = defend(found, parse_defenses([spec]), model, torch.Generator().manual_seed(0))
    assert any(not torch.equal(tensor[0], tensor[1]) for tensor in sent.values())
    if size:
        noise = torch.cat([(sent[name] - tensor).flatten() for name, tensor in found.items()])
        assert abs(float(noise.std()) / size - 1) < 0.05


@settings(max_examples=60)
@given(
    values=st.lists(st.floats(0, 4, width=16), min_size=1, max_size=400),
    repeats=st.integers(1, 8),
    ratio=st.floats(0.01, 0.999),
)
def test_limits_are_exact_with_ties_and_uneven_samples(values, repeats, ratio):
    sizes = torch.tensor(values * repeats)
    found = magnitude_limits(torch.stack([sizes, sizes.sort().values]), ratio)
    assert found.tolist() == [magnitude_limit({"all": sizes}, ratio)] * 2


def test_what_cannot_be_put_on_top_is_refused():
    with pytest.raises(GradleakError, match="dpsgd"):
        check_learnable(parse_defenses(["dpsgd:noise=1"]))


def test_a_frozen_output_layer_changes_nothing(model):
    """Its loss is computed another way; the gradients of what is left are the same."""
    table = model.module.transformer.wte.weight
    batch = model.encode(TEXTS)
    whole = together(model, TEXTS)
    table.requires_grad_(False)
    try:
        found = SampleGradients(model, list(model.parameters())).of(batch, batch.ids)
    finally:
        table.requires_grad_(True)
    assert set(whole) - set(found) == {"transformer.wte.weight"}
    assert all(torch.allclose(tensor, whole[name], atol=1e-6) for name, tensor in found.items())
