"""dp-check: planted mistakes are found, right implementations pass, and what it counts is what it says."""

import csv
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_dp import BatchClipped, DividedTwice, GroupClipped, HandMade, SeedReused, Unclipped
from tiny import tiny_model

from gradleak import Client, GradleakError
from gradleak.audits.dp.bounds import chance_of_guesses, least_epsilon, least_loss
from gradleak.audits.dp.check import check_updates
from gradleak.audits.dp.sources import check_client, check_recorded, farthest
from gradleak.audits.dp.subject import promised, promised_loss
from gradleak.audits.dp.training import check_training
from gradleak.audits.spec import AuditSpec
from gradleak.defenses import parse_defenses
from gradleak.defenses.base import Promise

SHAPES = {"first": 500, "second": 300, "third": 300}
OTHERS = 3


def sent_by(defense, seed):
    """A check of an implementation on gradients that are drawn: two opposite candidates, three others."""
    draw = torch.Generator().manual_seed(seed)
    rows = [{name: torch.randn(size, generator=draw) for name, size in SHAPES.items()} for _ in range(1 + OTHERS)]
    candidates = [rows[0], {name: -tensor for name, tensor in rows[0].items()}]

    def send(number):
        batch = [candidates[number], *rows[1:]]
        total = defense.clipped_sum(batch)
        return {
            name: (tensor + defense.deviation(name, batch) * defense.drawn(tensor, name, draw)) / len(batch)
            for name, tensor in total.items()
        }

    expected = defense.noise * defense.clip / (1 + OTHERS)
    return check_updates(
        send, candidates, 1 / defense.noise, updates=300, noise=expected, clip=defense.clip, seed=seed
    )


@pytest.mark.parametrize("mistake", [Unclipped, BatchClipped, GroupClipped, SeedReused, DividedTwice])
@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_a_planted_mistake_is_found(mistake, noise):
    found = sent_by(mistake(noise=noise), seed=1)
    assert found.broken
    assert found.lines()[0].startswith("BROKEN")


def test_a_right_one_passes():
    """Each is called broken with a chance of 1 %; measure_dp_check.py counts more of them."""
    checks = [sent_by(HandMade(noise=1.0), seed) for seed in range(8)]
    assert sum(found.broken for found in checks) <= 1
    # Opposite candidates are the worst case: what is measured comes near to what is promised.
    assert sum(found.least for found in checks) / len(checks) > 0.6


def test_noise_shared_by_tensors_is_found():
    class OneStream(HandMade):
        def drawn(self, tensor, name, generator):
            if name == "first":
                return torch.randn(tensor.shape, generator=generator)
            if name == "second":
                self.__dict__["kept"] = torch.randn(tensor.shape, generator=generator)
            return self.__dict__["kept"]

    found = sent_by(OneStream(noise=1.0), seed=3)
    assert any("the same noise" in line for line in found.findings)


@pytest.mark.parametrize(("family", "task"), [("bert", "classification"), ("llama", "causal-lm")])
def test_a_client_as_it_is_audited(family, task):
    model = tiny_model(family, task)
    spec = AuditSpec(batch_size=2, data="builtin")
    right = check_client(spec, updates=40, model=model, defenses=[HandMade(clip=0.05, noise=1.0)])
    assert not right.broken
    assert right.noise == pytest.approx(1, abs=0.1)
    wrong = check_client(spec, updates=40, model=model, defenses=[SeedReused(clip=0.05, noise=1.0)])
    assert wrong.broken


def test_recorded_updates_with_their_candidates(tmp_path):
    model = tiny_model("bert", "classification")
    model.module.save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    client = Client(model, defenses=[Unclipped(clip=0.01, noise=1.0)])
    texts, rng = ["rain fell on the town", "a small dog ran home"], random.Random(0)
    with (tmp_path / "updates.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["update", "text", "label"])
        for number in range(40):
            inside = rng.randrange(2)
            update = client.update([texts[inside], "we meet at nine"], [inside, 0])
            update.save(tmp_path / f"update-{number}")
            table.writerow([f"update-{number}", texts[inside], inside])
    spec = AuditSpec(model=str(tmp_path / "model"), batch_size=2)
    assert check_recorded(tmp_path / "updates.csv", spec, noise=1.0).broken
    (tmp_path / "empty.csv").write_text("text\nx\n")
    with pytest.raises(GradleakError, match="column 'update'"):
        check_recorded(tmp_path / "empty.csv", spec, noise=1.0)


def test_a_whole_training_in_one_run():
    model, spec = tiny_model("bert", "classification"), AuditSpec()
    right = check_training(spec, examples=40, rounds=2, model=model, defenses=[HandMade(clip=0.05, noise=8.0)])
    assert not right.broken
    wrong = check_training(spec, examples=40, rounds=2, model=model, defenses=[Unclipped(clip=1e-3, noise=8.0)])
    assert wrong.broken
    assert wrong.least > wrong.promised


def test_noise_on_the_whole_update_is_promised_once_however_often_an_example_is_seen():
    (local,) = parse_defenses(["localdp:clipping_norm=0.5,epsilon=4"])
    spec = AuditSpec(batch_size=2, client="fedavg:epochs=4,batch=2,lr=0.1")
    found = check_client(spec, updates=32, model=tiny_model("bert", "classification"), defenses=[local])
    assert found.promised == pytest.approx(1 / local.promise().noise)
    assert promised_loss(Promise(1.0), spec.rule.times_seen(2)) == 2


def test_a_multiplier_that_is_given_changes_the_noise_alone():
    whole = promised(parse_defenses(["localdp"]), 3.0)
    assert (whole.noise, whole.whole) == (3.0, True)
    assert promised([], 2.0).noise == 2.0


def test_nothing_to_check_is_said():
    with pytest.raises(GradleakError, match="promises"):
        check_client(AuditSpec(defenses=("noise:sigma=0.1",)))
    with pytest.raises(GradleakError, match="no promise"):
        check_updates(lambda _: {}, [{}, {}], 0.0)
    with pytest.raises(GradleakError, match="two candidates"):
        check_updates(lambda _: {}, [{}], 1.0)


def test_guesses_against_the_paper():
    """Steinke, Nasr and Jagielski, Appendix D: 75 of 100 right at ε = ln 3 and δ = 0."""
    assert chance_of_guesses(100, 75, 100, math.log(3), 0.0) == pytest.approx(0.553, abs=1e-3)


def test_guesses_of_randomised_response_are_never_excluded():
    """The mechanism with the most leakage that ε allows: every coin is told right with e^ε / (1 + e^ε)."""
    rng, epsilon = random.Random(0), 1.0
    share = 1 / (1 + math.exp(-epsilon))
    counts = [sum(rng.random() < share for _ in range(50)) for _ in range(400)]
    excluded = sum(least_epsilon(50, right, 50, 0.0, sure=0.95) > epsilon for right in counts)
    assert excluded <= 32  # of 20 expected at most


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 400), st.integers(2, 64), st.data())
def test_more_right_answers_never_show_less(tries, candidates, data):
    right = data.draw(st.integers(0, tries))
    own = least_loss(right, tries, candidates)
    assert 0 <= own < 20
    if right < tries:
        assert own <= least_loss(right + 1, tries, candidates)


def test_the_farthest_are_chosen():
    points = [{"x": torch.tensor([value])} for value in (0.0, 1.0, 5.0, -4.0)]
    assert sorted(farthest(points, 2)) == [2, 3]
    assert len(farthest(points, 9)) == 4
