"""DP-SGD against a plain loop over sentences, and its ε against another accountant."""

from __future__ import annotations

from random import Random

import pytest
import torch
from tiny import CASES, TEXTS, secret_of, tiny_model

from gradleak import Client, GradleakError, TextModel
from gradleak.clients.training import plain_gradient
from gradleak.core.secret import generator
from gradleak.defenses.accounting import spent
from gradleak.defenses.dpsgd import DpSgd
from gradleak.report.wording import threat_model
from gradleak.updates.client_rule import ClientRule

LABELS = [0, 1, 1]
# Families with parameters that Opacus reads wrongly or not at all: relative positions, positions beside a mask.
INSEPARABLE = {"mpnet": "relative_attention_bias", "opt": "embed_positions", "deberta-v2": "encoder.LayerNorm"}
# (noise multiplier, sample rate, steps, δ) and ε by the PLD accountant of dp-accounting 0.6.0:
#   accountant = pld.PLDAccountant()
#   accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps); accountant.get_epsilon(delta)
GOLDEN = [
    ((1.0, 0.01, 1000, 1e-5), 1.8282436455855091),
    ((0.5, 32 / 67349, 2000, 1e-5), 2.4627334272753543),
    ((4.0, 0.02, 500, 1e-6), 0.4654752371188796),
]


def clipped_by_a_loop(model: TextModel, labels: list[int] | None, clip: float) -> dict[str, torch.Tensor]:
    """The mean of single sentences' gradients, each at most `clip` long."""
    singles = [Client(model).update([text], labels and labels[i : i + 1]).tensors for i, text in enumerate(TEXTS)]
    norms = [sum(float(t.double().square().sum()) for t in single.values()) ** 0.5 for single in singles]
    factors = [min(1.0, clip / norm) for norm in norms]
    names = {name for single in singles for name in single}
    return {n: sum(f * s[n] for f, s in zip(factors, singles, strict=True)) / len(TEXTS) for n in names}  # type: ignore[misc]


@pytest.mark.parametrize("clip", [0.5, 1000.0])
def test_clipping_is_that_of_a_plain_loop(any_tiny: TextModel, clip: float) -> None:
    labels = LABELS if any_tiny.task == "classification" else None
    if clip > 1 and (any_tiny.family, any_tiny.task) not in CASES:
        pytest.skip("one limit is enough for further families")
    if any_tiny.family in INSEPARABLE:
        with pytest.raises(
            GradleakError, match=f"cannot separate what single sentences add to .*{INSEPARABLE[any_tiny.family]}"
        ):
            Client(any_tiny, defenses=[DpSgd(noise=0, clip=clip)]).update(TEXTS, labels)
        return
    found = Client(any_tiny, defenses=[DpSgd(noise=0, clip=clip)]).update(TEXTS, labels).tensors
    expected = clipped_by_a_loop(any_tiny, labels, clip)
    assert set(found) == set(expected)
    # Gemma's scaled embeddings make larger entries, whose rounding is larger too.
    relative = 0 if (any_tiny.family, any_tiny.task) in CASES else 1e-4
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=relative, atol=1e-6)


@pytest.mark.parametrize("task", ["masked-lm", "token-classification", "multi-label", "regression"])
def test_clipping_is_that_of_a_plain_loop_for_every_task(task: str) -> None:
    """The sentences of one batch as the client made them: hidden tokens are drawn for all at once."""
    model = tiny_model("bert", task)
    rng, goal = Random(2), model.goal
    labels = [goal.drawn_label(model, text, rng) for text in TEXTS] if goal.labelled else None
    drawn = generator(secret_of(3).child("targets"))
    batch, targets = goal.examples(model, TEXTS, goal.labels(model, TEXTS, labels), ClientRule(mask=0.5), drawn)
    client = Client(model, client="fedsgd:mask=0.5", defenses=["dpsgd:noise=0,clip=0.5"])
    found = client.update(TEXTS, labels, secret_of(3)).tensors
    names = list(model.parameters())
    alone = [slice(i, i + 1) for i in range(len(TEXTS))]
    singles = [plain_gradient(model, batch.part(one), targets[one], names) for one in alone]
    norms = [sum(float(t.double().square().sum()) for t in single.values()) ** 0.5 for single in singles]
    assert set(found) == set(singles[0])
    for name, tensor in found.items():
        clipped = [min(1.0, 0.5 / norm) * single[name] for norm, single in zip(norms, singles, strict=True)]
        torch.testing.assert_close(tensor, sum(clipped) / len(TEXTS), rtol=1e-4, atol=1e-6)


def test_clipping_binds(tiny_bert: TextModel) -> None:
    update = Client(tiny_bert, defenses=["dpsgd:noise=0,clip=0.01"]).update(TEXTS[:1], [0])
    norm = sum(float(t.square().sum()) for t in update.tensors.values()) ** 0.5
    assert norm == pytest.approx(0.01, rel=1e-3)


def test_noise_has_its_size_differs_by_call_and_repeats_by_seed(tiny_bert: TextModel) -> None:
    name = "bert.embeddings.word_embeddings.weight"
    plain = Client(tiny_bert, defenses=["dpsgd:noise=0,clip=0.5"]).update(TEXTS, LABELS).tensors[name]
    noisy = Client(tiny_bert, defenses=["dpsgd:noise=2,clip=0.5"])
    first, again, other = (noisy.update(TEXTS, LABELS, secret_of(seed)).tensors[name] for seed in (1, 1, 2))
    assert float((first - plain).std()) == pytest.approx(2 * 0.5 / len(TEXTS), rel=0.05)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    gradient = DpSgd(noise=1.0).gradient(torch.Generator().manual_seed(0))
    batch, labels = tiny_bert.encode(TEXTS), torch.tensor(LABELS)
    one, two = (gradient(tiny_bert, batch, labels, [name])[name] for _ in range(2))
    assert not torch.equal(one, two)


def test_the_model_is_left_as_it_was(tiny_bert: TextModel) -> None:
    before = {name: p.detach().clone() for name, p in tiny_bert.parameters().items()}
    Client(tiny_bert, defenses=["frozen", "dpsgd:noise=1"]).update(TEXTS, LABELS)
    assert list(before) == list(tiny_bert.parameters())
    assert not tiny_bert.module.training
    assert not any(hasattr(p, "grad_sample") or p.grad is not None for p in tiny_bert.parameters().values())


def test_frozen_parameters_do_not_count_in_the_norm(tiny_bert: TextModel) -> None:
    update = Client(tiny_bert, defenses=["frozen", "dpsgd:noise=0,clip=0.01"]).update(TEXTS[:1], [0])
    assert "bert.embeddings.word_embeddings.weight" not in update.tensors
    norm = sum(float(t.square().sum()) for t in update.tensors.values()) ** 0.5
    assert norm == pytest.approx(0.01, rel=1e-3)


def test_local_steps_are_private_each(tiny_bert: TextModel) -> None:
    """Two steps of FedAvg move the weights by two clipped and noised gradients."""
    rule = "fedavg:batch=1,lr=0.1"
    update = Client(tiny_bert, client=rule, defenses=["dpsgd:noise=0,clip=0.01"]).update(TEXTS[:2], LABELS[:2])
    norm = sum(float(t.double().square().sum()) for t in update.tensors.values()) ** 0.5
    assert norm <= 0.1 * 2 * 0.01 * 1.001


def test_it_comes_before_what_changes_the_update(tiny_bert: TextModel) -> None:
    for chain in (["sign", "dpsgd:noise=1"], ["dpsgd:noise=1", "dpsgd:noise=1"]):
        with pytest.raises(GradleakError, match="works on single sentences' gradients"):
            Client(tiny_bert, defenses=chain).update(TEXTS, LABELS)
    signs = Client(tiny_bert, defenses=["dpsgd:noise=1", "sign"]).update(TEXTS, LABELS)
    assert all(set(t.unique().tolist()) <= {-1.0, 0.0, 1.0} for t in signs.tensors.values())


@pytest.mark.parametrize(("setting", "expected"), GOLDEN)
def test_epsilon_is_that_of_another_accountant(setting: tuple[float, float, int, float], expected: float) -> None:
    assert spent(*setting).epsilon == pytest.approx(expected, rel=0.01)


def test_noise_can_be_chosen_by_epsilon() -> None:
    defense = DpSgd(epsilon=3.0, rows=1000, batch=10, steps=200)
    reached = spent(defense.multiplier, 0.01, 200, 1e-5).epsilon
    assert 2.9 < reached <= 3.0
    assert (defense.guarantee() or "").startswith("ε = ")
    assert DpSgd(noise=1.0).guarantee() is None


def test_the_report_tells_the_guarantee() -> None:
    from sample import sample_results  # the results other tests of the report use

    results = sample_results()
    scenario = results.scenario.model_copy(update={"defenses": ["dpsgd:noise=1,rows=1000,batch=10,steps=100"]})
    assert any("δ = 1e-05" in line for line in threat_model(scenario))


def test_mpnet_works_with_its_bias_frozen() -> None:
    model = tiny_model("mpnet", "classification")
    name = next(n for n in model.parameters() if "relative_attention_bias" in n)
    update = Client(model, defenses=[f"frozen:parts=none,names={name}", "dpsgd:noise=0"]).update(TEXTS, LABELS)
    assert name not in update.tensors
