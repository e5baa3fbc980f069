"""Signal and noise of an update: what the settings make expect is what was really added."""

import math

import pytest
from blobs import blobs
from tiny import secret_of

from gradleak import Client, ImageClient, load_model
from gradleak.clients.strength import norm, strength
from gradleak.defenses.dpsgd import DpSgd

TEXTS, LABELS = ["We moved him to ward six.", "The loan was refused."], [0, 1]


def measured(model, defenses, rule="fedsgd", observe="all"):
    client = Client(model, client=rule, defenses=defenses, observe=observe)
    update = client.update(TEXTS, LABELS, secret_of(3))
    return update, strength(client, update, len(TEXTS), lambda other: other.update(TEXTS, LABELS, secret_of(3)))


@pytest.mark.parametrize(
    ("defense", "rule"),
    [
        ("noise:sigma=0.01", "fedsgd"),
        ("noise:sigma=0.01", "fedavg:epochs=3,batch=1,lr=0.001"),
        ("dpsgd:noise=0.7,clip=0.5", "fedsgd"),
        ("dpsgd:noise=0.7,clip=0.5", "fedavg:epochs=3,batch=1,lr=0.001"),
    ],
)
def test_expected_noise_is_the_noise_that_was_added(tiny_bert, defense, rule):
    update, found = measured(tiny_bert, [defense], rule)
    quiet = [] if defense.startswith("noise") else ["dpsgd:noise=0,clip=0.5"]
    plain = Client(tiny_bert, client=rule, defenses=quiet).update(TEXTS, LABELS, secret_of(3))
    assert found.signal == pytest.approx(norm(plain.tensors), rel=1e-5)
    added = norm({name: update.tensors[name] - plain.tensors[name] for name in plain.tensors})
    assert found.noise == pytest.approx(added, rel=0.05)


def test_a_last_step_of_fewer_sentences_has_more_noise(tiny_bert):
    texts, labels, rule = [*TEXTS, "Your flight leaves at noon."], [0, 1, 0], "fedavg:batch=2,lr=0.001"
    client = Client(tiny_bert, client=rule, defenses=["dpsgd:noise=5,clip=0.5"])
    update = client.update(texts, labels, secret_of(3))
    plain = Client(tiny_bert, client=rule, defenses=["dpsgd:noise=0,clip=0.5"]).update(texts, labels, secret_of(3))
    added = norm({name: update.tensors[name] - plain.tensors[name] for name in plain.tensors})
    expected = strength(client, update, len(texts), lambda other: other.update(texts, labels, secret_of(3)))
    assert expected.noise == pytest.approx(added, rel=0.05)


def test_images_have_signal_and_noise_too():
    pictures = blobs(2)
    model = load_model(f"lenet:channels={pictures.shape[0]},size={pictures.shape[1]}")
    client = ImageClient(model, defenses=["noise:sigma=0.01"])
    update, plain = (each.update(pictures, secret_of(3)) for each in (client, ImageClient(model)))
    measured = strength(client, update, len(pictures), lambda other: other.update(pictures, secret_of(3)))
    added = norm({name: update.tensors[name] - plain.tensors[name] for name in plain.tensors})
    assert measured.signal == pytest.approx(norm(plain.tensors))
    assert measured.noise == pytest.approx(added, rel=0.05)


def test_without_noise_the_update_is_the_signal(tiny_bert):
    update, found = measured(tiny_bert, ["prune:ratio=0.5"])
    assert (found.signal, found.noise) == (pytest.approx(norm(update.tensors)), 0.0)


def test_only_what_is_seen_counts_and_noises_add_up(tiny_bert):
    _, whole = measured(tiny_bert, ["noise:sigma=0.01"])
    part, seen = measured(tiny_bert, ["noise:sigma=0.03", "noise:sigma=0.04", "sign"], observe="layer:1")
    assert seen.signal < whole.signal
    assert seen.noise == pytest.approx(0.05 * math.sqrt(sum(t.numel() for t in part.tensors.values())))


def test_a_defence_without_noise_forgets_the_noise_it_had_computed():
    defense = DpSgd(noise=0.7)
    assert defense.multiplier == 0.7
    assert defense.without_noise().multiplier == 0
