from __future__ import annotations

import pytest
from tiny import ALL_KNOWN, TEXTS, tiny_model

from gradleak import Client, attack
from gradleak.attacks.search.noisy import likelier, noise_on_one, noise_to_judge_by, read_noisy
from gradleak.core.budget import Budget
from gradleak.core.secret import Secret

TEXT = "january adoption thursday"


def _update(model, sigma, known=ALL_KNOWN):
    return Client(model, known=known, defenses=[f"noise:sigma={sigma}"]).update([TEXT], [1], Secret(b"0" * 32))


def test_a_sentence_is_read_through_noise():
    """Length and label too: they show in the rows of positions and in the head."""
    model = tiny_model("bert", "classification", width=32)
    update = _update(model, 0.003, known=("batch_size",))
    sigma = noise_on_one(update, model)
    assert sigma == pytest.approx(0.003, rel=0.1)
    found = read_noisy(update, model, sigma, None, 0, Budget())
    assert found.answer.sentences[0].text == TEXT
    assert found.answer.sentences[0].confidence > 0.9
    assert found.answer.labels == [1]


def test_it_is_for_noise_on_single_sentences_of_classifiers():
    model = tiny_model("bert", "classification")
    assert noise_on_one(Client(model).update([TEXT], [1]), model) == 0
    assert noise_on_one(Client(model, defenses=["noise:sigma=0.01"]).update(TEXTS, [0, 1, 0]), model) == 0
    assert noise_on_one(Client(model, defenses=["sign"]).update([TEXT], [1]), model) == 0


def test_an_answer_of_noise_alone_is_not_trusted():
    model = tiny_model("bert", "classification", width=32)
    update = _update(model, 100.0)
    found = read_noisy(update, model, noise_on_one(update, model), None, 0, Budget(steps=50))
    assert found is None or found.answer.sentences[0].confidence < 0.9


@pytest.mark.parametrize(("seed", "sigma"), [(8, 0.002), (2, 0.005)])
def test_adapting_to_noise_finds_nothing_less_likely_than_ignoring_it(seed, sigma):
    """On these updates weighing parameters by their noise alone ends at a less likely sentence."""
    model = tiny_model("bert", "classification", width=16, seed=seed)
    update = _update(model, sigma)
    settings = {"steps": 6, "init_draws": 2, "polish": 0, "discrete_every": 0, "prior": "none"}
    adapting, ignoring = (attack([update], model, "lamp-cos", adapt=adapt, **settings)[0] for adapt in (True, False))
    assert likelier([adapting, ignoring], update, model, sigma) is adapting


def test_a_batch_that_fills_the_matrices_is_not_taken_for_noise():
    """Of a tied model every row of the table moves, and a full spectrum looks like one of noise."""
    model = tiny_model("gpt2", "causal-lm")
    assert noise_to_judge_by(Client(model).update(TEXTS), model) == 0
    noisy = Client(model, defenses=["noise:sigma=0.05"]).update(TEXTS)
    assert noise_to_judge_by(noisy, model) == pytest.approx(0.05, rel=0.1)
