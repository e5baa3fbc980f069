"""Secure aggregation: the attacker sees the mean of several clients' updates, and all their texts are the truth."""

import math

import pytest
import torch
from tiny import secret_of, tiny_model

from gradleak import Client, GradleakError, audit
from gradleak.audits.spec import AuditSpec
from gradleak.clients.strength import norm
from gradleak.report.wording import threat_model
from gradleak.verdict.ceilings import judge_ceilings

TEXTS = ["rain fell on the town", "a small dog ran home", "we meet at nine", "the loan was refused"]
LABELS = [0, 1, 1, 0]


def test_gradients_add_up_to_that_of_all_sentences(tiny_bert):
    together = Client(tiny_bert, aggregate=2).update(TEXTS, LABELS)
    plain = Client(tiny_bert).update(TEXTS, LABELS)
    assert together.manifest.clients == 2
    assert together.known.batch_size == 4
    assert all(torch.allclose(together.tensors[name], own, atol=1e-6) for name, own in plain.tensors.items())


@pytest.mark.parametrize("rule", ["fedavg:epochs=2,batch=1,lr=0.05", "adamw:epochs=1,batch=1,lr=1e-3"])
def test_every_client_trains_on_its_own_part(tiny_bert, rule):
    together = Client(tiny_bert, client=rule, aggregate=2).update(TEXTS, LABELS, secret_of(1))
    own = [Client(tiny_bert, client=rule).update(TEXTS[i : i + 2], LABELS[i : i + 2]) for i in (0, 2)]
    for name, tensor in together.tensors.items():
        assert torch.allclose(tensor, (own[0].tensors[name] + own[1].tensors[name]) / 2, atol=1e-6)


def test_every_client_draws_noise_of_its_own(tiny_bert):
    quiet = Client(tiny_bert).update(TEXTS, LABELS).tensors
    for clients in (1, 2, 4):
        sent = Client(tiny_bert, defenses=["noise:sigma=0.1"], aggregate=clients).update(TEXTS, LABELS).tensors
        added = torch.cat([(sent[name] - own).flatten() for name, own in quiet.items()])
        assert float(added.std()) == pytest.approx(0.1 / math.sqrt(clients), rel=0.05)


def test_what_cannot_be_shared_is_refused(tiny_bert):
    with pytest.raises(GradleakError, match="equal parts"):
        Client(tiny_bert, aggregate=3).update(TEXTS, LABELS)
    with pytest.raises(GradleakError, match="pack"):
        Client(tiny_bert, client="fedsgd:pack=32", aggregate=2)


def test_an_audit_is_about_the_sentences_of_all_clients(tiny_bert):
    """Its update is that of one batch (above): aggregation hides who wrote a sentence, not the sentence."""
    results = audit(tiny_bert, attack="bag", batch_size=1, aggregate=3, trials=2, candidates=2)
    assert (results.scenario.clients, results.scenario.batch_size) == (3, 1)
    assert all(len(trial.truth) == 3 for trial in results.trials)
    alone = audit(tiny_bert, attack="bag", batch_size=3, trials=2)
    assert [trial.truth for trial in alone.trials] == [trial.truth for trial in results.trials]
    assert alone.found == results.found
    assert "mean of 3 clients' updates" in " ".join(threat_model(results.scenario))
    listed = results.trials[0].candidates.candidates
    assert sum(each.member for each in listed) == 3, "a server with candidates is asked about the texts of all"


def test_signal_and_noise_are_those_of_the_mean(tiny_bert):
    results = audit(
        tiny_bert, attack="bag", batch_size=2, aggregate=4, trials=1, defenses=["noise:sigma=0.01"], data="builtin"
    )
    (trial,) = results.trials
    size = sum(parameter.numel() for parameter in tiny_bert.parameters().values())
    assert trial.noise == pytest.approx(0.01 * math.sqrt(size / 4), rel=0.05)
    quiet = Client(tiny_bert).update(trial.truth, trial.labels)
    assert trial.signal == pytest.approx(norm(quiet.tensors), rel=1e-4)


def test_the_ceiling_counts_the_noise_of_all_clients(tiny_bert):
    spec = {"attack": "bag", "trials": 1, "batch_size": 1, "defenses": ["localdp:epsilon=8"]}
    alone, many = (judge_ceilings(audit(tiny_bert, **spec, **more).scenario) for more in ({}, {"aggregate": 4}))
    assert all(one.success > other.success for one, other in zip(alone, many, strict=True))


def test_private_examples_are_counted_by_client():
    assert AuditSpec(batch_size=4).examples == 4
    assert AuditSpec(batch_size=4, aggregate=2).examples == 8
    with pytest.raises(GradleakError):
        audit(tiny_model("bert", "classification"), batch_size=100, aggregate=3, trials=1)
