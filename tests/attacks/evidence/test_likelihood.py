from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny import TEXTS, tiny_model

from gradleak import Client
from gradleak.attacks.evidence.likelihood import Batches, Likelihood, log_likelihood

SIGMA = 0.01


def _guesses(model):
    """Two texts as one batch: as they are, and with their second tokens exchanged."""
    batch = model.encode(TEXTS[:2])
    ids, mask = (each[None].repeat(2, 1, 1) for each in (batch.ids, batch.mask))
    ids[1, :, 2] = ids[1, :, 2].flip(0)
    labels = None if model.goal.autoregressive else [0, 1]
    targets = torch.stack([model.goal.targets(labels, own, model.goal.outputs(model)) for own in ids])
    return Batches(ids, mask, targets)


def _noisy(model):
    update = Client(model).update(TEXTS[:2], [0, 1] if model.goal.labelled else None)
    generator = torch.Generator().manual_seed(0)
    tensors = {n: t + SIGMA * torch.randn(t.shape, generator=generator) for n, t in update.tensors.items()}
    return dataclasses.replace(update, tensors=tensors)


@pytest.mark.parametrize(("family", "task"), [("bert", "classification"), ("gpt2", "causal-lm")])
def test_it_is_the_density_of_gaussian_noise(family, task):
    model = tiny_model(family, task)
    guesses, update = _guesses(model), _noisy(model)
    expected = []
    for ids, mask, targets in zip(guesses.ids, guesses.mask, guesses.targets, strict=True):
        loss = model.loss(targets, ids=ids, mask=mask)
        gradients = dict(
            zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters().values())), strict=True)
        )
        gains = [t.square().sum() - (t - gradients[n]).square().sum() for n, t in update.tensors.items()]
        expected.append(torch.stack(gains).sum() / (2 * SIGMA**2))
    found = log_likelihood(update, model, guesses, SIGMA)
    assert torch.allclose(found, torch.stack(expected), rtol=1e-3, atol=0.5)
    assert found[0] > found[1] + 10


def test_of_a_gradient_that_was_clipped_any_size_is_as_likely():
    model = tiny_model("bert", "classification")
    update = Client(model).update(TEXTS[:2], [0, 1])
    for size in (1.0, 0.1):
        tensors = {name: size * tensor for name, tensor in update.tensors.items()}
        whole = sum(float(tensor.square().sum()) for tensor in tensors.values()) / (2 * SIGMA**2)
        found = Likelihood(model, tensors, SIGMA, any_size=True).values(_guesses(model))
        assert found[0] == pytest.approx(whole, rel=1e-3)
        assert found[1] < found[0]


def test_derivatives_are_those_of_finite_differences():
    model = tiny_model("bert", "classification")
    guesses, update = _guesses(model).take(slice(1, 2)), _noisy(model)
    likelihood = Likelihood(model, update.tensors, SIGMA)
    slopes = likelihood.slopes(guesses)
    assert torch.allclose(slopes.values, likelihood.values(guesses), rtol=1e-4)
    token, slope = int(guesses.ids[0, 0, 9]), slopes.by_input[0, 0, 9]
    assert (guesses.ids == token).sum() == 1  # its row of the table is this place's alone
    values = []
    for move in (1.0, -1.0):
        with torch.no_grad():
            model.token_embedding[token] += move * 0.01 * slope / slope.norm()
            values.append(float(likelihood.values(guesses)))
            model.token_embedding[token] -= move * 0.01 * slope / slope.norm()
    assert (values[0] - values[1]) / 0.02 == pytest.approx(float(slope.norm()), rel=0.02)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_beginnings_are_as_likely_as_sentences_that_end_there(family):
    model = tiny_model(family, "causal-lm")
    update = Client(model).update(TEXTS[:1])
    last = model.adapter.parts[-1]["ffn_out"].weight_name
    likelihood = Likelihood(model, update.tensors, SIGMA, parameters=[last])
    sentences = [tuple(ids) for ids in model.tokenize(TEXTS[:2])]

    def batches(some):
        padded = model.pad(some)
        ids, mask = padded.ids[:, None], padded.mask[:, None]
        return Batches(ids, mask, ids)

    found = likelihood.beginnings(batches(sentences))
    assert found.shape == (2, max(map(len, sentences)))
    for row, tokens in zip(found, sentences, strict=True):
        assert not row[0].isfinite()
        assert not row[len(tokens) :].isfinite().any()
        cut = [tokens[:length] for length in range(2, len(tokens) + 1)]
        assert torch.allclose(row[1 : len(tokens)], likelihood.values(batches(cut)), rtol=1e-3, atol=1e-3)
    assert int(found[0].argmax()) == len(sentences[0]) - 1
