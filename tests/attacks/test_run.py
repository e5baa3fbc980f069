"""Running an attack: checks, portions, and what it costs, the same for all of them."""

import time

import pytest
from blobs import blobs, small_model
from tiny import TEXTS

from gradleak import Client, GradleakError, ImageClient, attack
from gradleak.attacks import ATTACKS, IMAGE_ATTACKS, attacks_for
from gradleak.attacks.base import Attack, AttackContext, Reconstruction
from gradleak.attacks.images.base import ImageAttack
from gradleak.attacks.run import run_attack
from gradleak.core.budget import Budget


class Recorder(Attack):
    """Notes what it is given."""

    name, summary = "recorder", "notes what it is given"

    def __init__(self, options=None):
        super().__init__(options)
        self.seen = []

    def run(self, updates, model, context):
        self.seen.append(context)
        time.sleep(0.02 * context.before)
        return [Reconstruction() for _ in updates]


class Single(Recorder):
    at_once = 1


class Pairs(Recorder):
    at_once = 2


class OfImages(ImageAttack):
    name, summary, needs_auxiliary = "of-images", "gives nothing", True

    def run(self, updates, model, context):
        return [Reconstruction() for _ in updates]


@pytest.fixture
def updates(tiny_bert):
    return [Client(tiny_bert).update([text], [0]) for text in TEXTS[:3]]


def test_portions_have_their_seeds_their_share_and_their_cost(tiny_bert, updates):
    method = Single()
    found = run_attack(method, updates, tiny_bert, AttackContext([7, 8, 9], Budget(seconds=300, steps=30)))
    assert [list(own.seeds) for own in method.seen] == [[7], [8], [9]]
    assert [(own.before, own.after, own.total) for own in method.seen] == [(0, 2, 3), (1, 1, 3), (2, 0, 3)]
    assert [own.budget.steps for own in method.seen] == [10, 15, 30]  # each its share of what the others left
    assert method.seen[0].budget.seconds == pytest.approx(100, rel=0.01)
    assert found[1].seconds >= 0.02  # what its own portion slept at least
    assert found[2].seconds >= 0.04
    assert all(answer.peak_memory_mb > 0 for answer in found)


def test_updates_attacked_together_share_the_cost(tiny_bert, updates):
    method, budget = Recorder(), Budget()
    found = run_attack(method, updates, tiny_bert, AttackContext([7, 8, 9], budget))
    (own,) = method.seen
    assert (own.before, own.after, own.budget) == (0, 0, budget)
    assert len({answer.seconds for answer in found}) == 1
    method = Pairs()
    run_attack(method, updates, tiny_bert, AttackContext([7, 8, 9]))
    assert [list(own.seeds) for own in method.seen] == [[7, 8], [9]]
    assert run_attack(method, [], tiny_bert, AttackContext([])) == []


def test_what_cannot_be_attacked_is_refused(tiny_bert, updates):
    class Short(Recorder):
        name = "short"

        def run(self, updates, model, context):
            return []

    image = small_model()
    sent = [ImageClient(image).update(blobs(1))]
    for method, model, given, context, message in (
        (Recorder(), tiny_bert, updates, AttackContext([1]), "as many seeds as updates: 3, not 1"),
        (Short(), tiny_bert, updates, AttackContext([1, 2, 3]), "'short' gave 0 answers to 3 updates"),
        (Recorder(), image, sent, AttackContext([1]), "recorder attacks models of text"),
        (OfImages(), tiny_bert, updates, AttackContext([1, 2, 3]), "of-images attacks models of images"),
        (OfImages(), image, sent, AttackContext([1]), "needs auxiliary images"),
        (OfImages(), image, sent, AttackContext([1], auxiliary=blobs(2, side=8)), "images"),
        (Recorder(), tiny_bert, sent, AttackContext([1]), "image-classification model"),
    ):
        with pytest.raises(GradleakError, match=message):
            run_attack(method, given, model, context)


def test_the_default_follows_the_model(tiny_bert, updates, tmp_path, monkeypatch):
    assert attacks_for("text") is ATTACKS
    assert attacks_for("images") is IMAGE_ATTACKS
    (found,) = attack(updates[0], tiny_bert, budget="60s", steps=1, prior="none")
    assert {sentence.stage for sentence in found.sentences} <= {"exact", "subspace", "lamp-cos"}
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path))
    image = small_model()
    sent = ImageClient(image).update(blobs(1))
    (found,) = attack(sent, image, auxiliary=blobs(40, seed=1), budget=60, steps=2, hidden=8, batch=8)
    assert len(found.images) == 1


def test_attacks_say_which_prior_they_guess_from():
    priors = {name: ATTACKS.get(name)().prior for name in ATTACKS.names()}
    assert {name for name, prior in priors.items() if prior == "ngram"} == {
        "auto", "control", "lamp-cos", "lamp-l2", "lamp-l2l1", "subspace",
    }  # fmt: skip
    assert set(priors.values()) == {"ngram", "none"}
    assert ATTACKS.get("lamp-cos").from_settings({"prior": "smollm2"}).prior == "smollm2"


def test_budgets_are_taken_as_text_and_numbers():
    budget = Budget(steps=3)
    assert Budget.of(budget) is budget
    for wrong in ("soon", -1, float("inf"), float("nan")):
        with pytest.raises(GradleakError, match="is not a"):
            Budget.of(wrong)
