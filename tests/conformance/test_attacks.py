"""One harness for every attack on every family: it runs, repeats, stops when told, and reads only the update."""

import pytest
import torch
from tiny import TEXTS, tiny_model

from gradleak import Client, GradleakError, attack
from gradleak.attacks import ATTACKS
from gradleak.budget import Budget
from gradleak.progress import Progress

QUICK = {"steps": 6, "init_draws": 3, "init_orders": 2, "discrete_every": 2, "candidates": 6, "prior": "none"}


@pytest.fixture(params=[name for name in ATTACKS.names() if name != "control"])
def name(request):
    return request.param


def texts_of(found):
    return [[sentence.tokens for sentence in one.sentences] for one in found]


def test_runs_on_every_family(tiny, name):
    labels = [0, 1] if tiny.task == "classification" else None
    update = Client(tiny).update(TEXTS[:2], labels)
    (found,) = attack(update, tiny, name, **QUICK)
    lengths = [n - len(tiny.prefix) - len(tiny.suffix) for n in tiny.encode(TEXTS[:2]).lengths]
    assert [len(s.tokens) for s in found.sentences] == lengths
    assert found.status == "completed"
    assert found.trace[0].step == 0
    assert found.trace[-1].step == QUICK["steps"]
    assert found.loss <= found.trace[0].loss
    assert found.peak_memory_mb > 0
    special = set(tiny.tokenizer.all_special_ids)
    assert not special & {token for s in found.sentences for token in s.tokens}


def test_runs_in_double_precision(name):
    model = tiny_model("bert", "classification")
    model.module.double()
    (found,) = attack(Client(model).update(TEXTS[:1], [1]), model, name, **QUICK)
    assert found.status == "completed"


def test_same_seed_same_tokens(tiny_bert, name):
    update = Client(tiny_bert).update(TEXTS[:1], [1])
    first, again = (attack(update, tiny_bert, name, seed=7, **QUICK) for _ in range(2))
    assert texts_of(first) == texts_of(again)
    assert first[0].loss == again[0].loss
    assert attack(update, tiny_bert, name, seed=8, **QUICK)[0].loss != first[0].loss


def test_neighbours_do_not_matter(tiny_bert, name):
    """An update attacked alone and together with a longer one gives the same answer."""
    updates = [Client(tiny_bert).update([text], [1]) for text in TEXTS[:3]]
    together = attack(updates, tiny_bert, name, seed=[1, 2, 3], **QUICK)
    alone = [attack(u, tiny_bert, name, seed=[s], **QUICK)[0] for u, s in zip(updates, (1, 2, 3), strict=True)]
    assert texts_of(together) == texts_of(alone)


def test_stops_when_interrupted_and_keeps_the_best(tiny_bert, name):
    class Stopper(Progress):
        def advance(self, done, *, loss=None, text=None):
            budget.interrupt()

    budget = Budget()
    update = Client(tiny_bert).update(TEXTS[:1], [1])
    options = {**QUICK, "steps": 100000}
    (found,) = attack(update, tiny_bert, name, budget=budget, progress=Stopper(), **options)
    assert found.status == "interrupted"
    assert found.sentences[0].tokens


def test_budget_exhausted_is_said(tiny_bert, name):
    update = Client(tiny_bert).update(TEXTS[:1], [1])
    (found,) = attack(update, tiny_bert, name, budget=Budget(seconds=0), **QUICK)
    assert found.status == "budget-exhausted"


def test_leaves_the_model_as_it_was(tiny_bert, name):
    """No weight changes and no gradient stays behind."""
    update = Client(tiny_bert).update(TEXTS[:1], [1])
    tiny_bert.module.zero_grad(set_to_none=True)
    before = {n: p.detach().clone() for n, p in tiny_bert.parameters().items()}
    attack(update, tiny_bert, name, **QUICK)
    assert all(p.grad is None for p in tiny_bert.parameters().values())
    assert all(torch.equal(before[n], p) for n, p in tiny_bert.parameters().items())


def test_bad_options_are_refused(tiny_bert, name):
    update = Client(tiny_bert).update(TEXTS[:1], [1])
    with pytest.raises(GradleakError, match="has no option 'stepz'; did you mean 'steps'"):
        attack(update, tiny_bert, name, stepz=3)
    with pytest.raises(GradleakError, match="option 'steps'"):
        attack(update, tiny_bert, name, steps=-1)


def test_settled_attacks_stop_early(tiny_bert, name):
    """With patience, a row whose answer no longer changes is left alone; the others go on."""
    updates = [Client(tiny_bert).update([text], [1]) for text in TEXTS[:2]]
    options = {**QUICK, "steps": 400, "lr": 1e-7, "discrete_every": 0, "patience": 20}
    for found in attack(updates, tiny_bert, name, **options):
        assert found.status == "completed"
        assert found.trace[-1].step <= 40


def test_unknown_attack(tiny_bert):
    update = Client(tiny_bert).update(TEXTS[:1], [1])
    with pytest.raises(GradleakError, match="unknown attack 'lamp'; did you mean 'lamp-cos'"):
        attack(update, tiny_bert, "lamp")


def test_an_update_of_another_model_is_refused(tiny_bert, name):
    update = Client(tiny_model("bert", "classification", seed=5)).update(TEXTS[:1], [1])
    with pytest.raises(GradleakError, match="other weights"):
        attack(update, tiny_bert, name, **QUICK)


def test_presets_fill_in_what_is_not_said():
    kind = ATTACKS.get("lamp-cos")
    fast, paper = kind.from_settings({}).options, kind.from_settings({"preset": "paper"}).options
    assert (paper.steps, paper.init_draws, paper.init_orders, paper.discrete_every) == (2000, 500, 500, 75)
    assert fast.steps < paper.steps / 4
    assert kind.from_settings({"preset": "paper", "steps": "7"}).options.steps == 7
    assert kind.from_settings({"candidates": 5}).options.candidates == 5
    with pytest.raises(GradleakError, match="option 'preset'"):
        kind.from_settings({"preset": "slow"})


@pytest.mark.real
def test_lamp_recovers_words_of_a_real_model(minilm):
    """A short search on real weights already finds most of a short sentence's words."""
    text = "The patient died."
    update = Client(minilm).update([text], [1])
    options = {"steps": 60, "lr": 0.05, "init_draws": 10, "init_orders": 0, "candidates": 24, "discrete_every": 15}
    (found,) = attack(update, minilm, "lamp-cos", **options)
    assert {"patient", "died"} <= set(found.bag)


@pytest.mark.real
def test_the_control_guesses_at_the_granted_length(minilm):
    update = Client(minilm).update(["The patient died last night."], [1])
    found = attack([update, update], minilm, "control")
    assert [len(one.sentences[0].tokens) for one in found] == [6, 6]
    assert texts_of(found)[0] != texts_of(found)[1]
    blind = Client(minilm, known=()).update(["The patient died last night."], [1])
    assert len(attack(blind, minilm, "control")[0].sentences) == 1
