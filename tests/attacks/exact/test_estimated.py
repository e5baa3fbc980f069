"""Recovery after a first step of AdamW or of SGD, by torch's own optimisers on a tiny encoder."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from tiny import TEXTS, tiny_model

from gradleak import Client, TextModel, attack
from gradleak.attacks.exact.estimated import EstimatedRecovery, can_estimate
from gradleak.attacks.exact.recovery import Recovered
from gradleak.attacks.spans.certify import Certificate
from gradleak.core.budget import Budget
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.gradient import undo, with_rounding
from gradleak.updates.manifest import Known, Manifest
from gradleak.updates.update import Update

RULE = ClientRule(name="adamw", lr=2e-2, batch=2)


def sent_by(model: TextModel, texts: list[str], labels: list[int], rule: ClientRule = RULE) -> Update:
    """The weights before minus those after torch's AdamW over the texts, in batches."""
    local = model.copied().module.eval()
    weights = dict(local.named_parameters())
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    kind = torch.optim.AdamW if rule.name == "adamw" else torch.optim.SGD
    optimiser = kind(weights.values(), lr=rule.lr, weight_decay=rule.wd)
    for first in range(0, len(texts), rule.batch):
        batch = model.encode(texts[first : first + rule.batch])
        logits = local(input_ids=batch.ids, attention_mask=batch.mask.long()).logits
        optimiser.zero_grad()
        F.cross_entropy(logits, torch.tensor(labels[first : first + rule.batch])).backward()
        optimiser.step()
    moved = {name: before[name] - weight.detach() for name, weight in weights.items() if weight.grad is not None}
    known = Known(batch_size=len(texts))
    manifest = Manifest(task=model.task, family=model.family, client=rule, known=known)
    return Update(moved, manifest)


@pytest.fixture(scope="module")
def model() -> TextModel:
    return tiny_model("bert", "classification", layers=3, width=96)


def test_sentences_come_back_and_are_proved(model: TextModel) -> None:
    (found,) = attack(sent_by(model, TEXTS[:2], [0, 1]), model, "exact", budget=60)
    assert sorted(s.text for s in found.sentences) == sorted(model.decode(model.content(t)) for t in _rows(model))
    assert all(sentence.certified for sentence in found.sentences)
    assert sorted(found.labels or []) == [0, 1]


@pytest.mark.parametrize("rate", [1e-3, 1e-2])
def test_a_step_of_sgd_sent_as_rounded_weights(model: TextModel, rate: float) -> None:
    """At the smaller step size rounding hides the rank of the gradient, which without its errors shows nothing."""
    update = sent_by(model, TEXTS, [0, 1, 1], ClientRule(name="fedavg", lr=rate, batch=3))
    (found,) = attack(update, model, "exact", budget=60)
    assert sorted(s.text for s in found.sentences) == sorted(model.decode(model.content(t)) for t in _rows(model, 3))
    assert all(sentence.certified for sentence in found.sentences)
    assert sorted(found.labels or []) == [0, 1, 1]


@pytest.mark.parametrize(
    "rule", [ClientRule(name="fedavg", lr=1e-3, batch=2), ClientRule(name="fedavg", lr=0.1, batch=2)]
)
def test_errors_of_a_plain_step_are_those_of_rounding(model: TextModel, rule: ClientRule) -> None:
    """Against a gradient that was never rounded, over all entries; small weights, which a step makes large, too."""
    undone = with_rounding(undo(sent_by(model, TEXTS[:2], [0, 1], rule), model), model)
    assert undone.errors is not None
    exact = Client(model).update(TEXTS[:2], [0, 1]).tensors
    for name in ("bert.encoder.layer.0.attention.self.value.weight", "bert.encoder.layer.1.output.dense.weight"):
        apart = (undone.gradient.tensors[name] - exact[name]) / undone.errors[name]
        assert 0.95 < float(apart.square().mean().sqrt()) < 1.05
        assert float((apart.abs() > 1.8).float().mean()) < 1e-2  # they are spread evenly, up to the root of three


def test_several_steps_and_several_clients_have_no_known_errors(model: TextModel) -> None:
    rule = ClientRule(name="fedavg", lr=1e-3, batch=1)
    undone = undo(sent_by(model, TEXTS[:2], [0, 1], rule), model)
    assert with_rounding(undone, model) is undone
    update = sent_by(model, TEXTS[:2], [0, 1], rule.model_copy(update={"batch": 2}))
    mean = dataclasses.replace(update, manifest=update.manifest.model_copy(update={"clients": 2}))
    undone = undo(mean, model)
    assert with_rounding(undone, model) is undone


def test_auto_does_it_by_itself(model: TextModel) -> None:
    (found,) = attack(sent_by(model, TEXTS[:1], [1]), model, "auto", budget=60)
    assert [sentence.stage for sentence in found.sentences if sentence.certified] == ["exact"]
    assert len(found.sentences) == 1


def test_wrong_sentences_are_never_proved(model: TextModel) -> None:
    """A batch of which one token is another explains less than its errors allow."""
    undone = undo(sent_by(model, TEXTS[:2], [0, 1]), model)
    assert can_estimate(model, undone)
    rows = _rows(model)
    for number, labels in ((None, [0, 1]), (None, [1, 1]), (0, [0, 1]), (1, [0, 1])):
        changed = [list(row) for row in rows]
        if number is not None:
            changed[number][2] = changed[number][3]
        recovery = EstimatedRecovery(model, undone, torch.Generator(), Budget())
        recovery.recovered = [
            Recovered(row, Certificate(0.0, 1.0, False), label, 0.5)
            for row, label in zip(changed, labels, strict=True)
        ]
        recovery.replay()
        proved = all(sentence.certificate.holds for sentence in recovery.recovered)
        assert proved == (number is None and labels == [0, 1])


def test_nothing_is_proved_where_errors_cover_every_entry(model: TextModel) -> None:
    """There is nothing left that wrong sentences could miss."""
    undone = undo(sent_by(model, TEXTS[:2], [0, 1]), model)
    assert undone.errors is not None
    covered = dataclasses.replace(undone, errors={name: 1e9 + error for name, error in undone.errors.items()})
    recovery = EstimatedRecovery(model, covered, torch.Generator(), Budget())
    recovery.recovered = [Recovered(row, Certificate(0.0, 1.0, False), 0, 0.5) for row in _rows(model)]
    recovery.replay()
    assert not any(sentence.certificate.holds for sentence in recovery.recovered)


def test_tokens_after_several_steps_are_exact(model: TextModel) -> None:
    update = sent_by(model, TEXTS, [0, 1, 1], RULE.model_copy(update={"batch": 1}))
    (found,) = attack(update, model, "bag")
    wanted = {token for text in TEXTS for token in model.content(model.tokenizer(text)["input_ids"])}
    assert set(found.bag) == set(map(str, model.tokenizer.convert_ids_to_tokens(sorted(wanted))))


def test_several_steps_say_what_is_in_the_way(model: TextModel) -> None:
    update = sent_by(model, TEXTS, [0, 1, 1], RULE.model_copy(update={"batch": 1}))
    (found,) = attack(update, model, "exact", budget=20)
    assert not found.sentences
    assert any("3 steps of AdamW" in note and "cannot be undone" in note for note in found.notes)


def test_dropout_and_defences_are_left_to_others(model: TextModel) -> None:
    update = sent_by(model, TEXTS[:2], [0, 1])
    noisy = update.manifest.model_copy(update={"defenses": ("noise:sigma=0.001",)})
    train = update.manifest.model_copy(update={"client": RULE.model_copy(update={"mode": "train"})})
    for manifest in (noisy, train):
        assert not can_estimate(model, undo(dataclasses.replace(update, manifest=manifest), model))


def _rows(model: TextModel, count: int = 2) -> list[list[int]]:
    return [model.tokenizer(text)["input_ids"] for text in TEXTS[:count]]
