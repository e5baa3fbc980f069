"""What defences cost: training learns, noise hinders it, nothing leaks out of a cell, and finished cells are kept."""

import math

import pytest
import torch
from tiny import adapted_model, tiny_model

from gradleak import GradleakError, utility
from gradleak.core.budget import Budget
from gradleak.core.progress import Progress
from gradleak.data.texts import Row
from gradleak.defenses.chains import canonical, parse_chain, parse_chains
from gradleak.training.perplexity import WORST, perplexity
from gradleak.training.rounds import RoundSettings, _draw, federate, split
from gradleak.training.text import TextLearner
from gradleak.updates.client_rule import ClientRule

# Labelled against what the tiny model says before training, so that there is something to learn.
ROWS = [Row("The loan was refused." if i % 2 else "Rosa moved to ward six.", 1 - i % 2) for i in range(40)]
QUICK = {"rounds": 20, "clients": 2, "batch_size": 4, "lr": 3e-3, "seeds": 2, "test_rows": 20}
HUGE = "noise:sigma=100"


class Count(Progress):
    """Counts trainings, and interrupts the budget after some rounds if asked."""

    def __init__(self, budget=None, rounds=None):
        self.trainings, self.budget, self.left = 0, budget, rounds

    def begin(self, what, total, unit=""):
        self.trainings += unit == "rounds"

    def advance(self, done, *, loss=None, text=None):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.budget.interrupt()


@pytest.fixture(scope="module")
def model():
    """Of this family, because the tiny word tokenizers differ from run to run."""
    return tiny_model("gpt2", "classification")


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """One comparison, and the folder its cells lie in."""
    out = tmp_path_factory.mktemp("utility")
    before = {name: p.detach().clone() for name, p in model.parameters().items()}
    results = utility(model, data=ROWS, defenses=[HUGE], out=out, **QUICK)
    return results, out, before


def test_learns_without_a_defence_and_less_under_huge_noise(run):
    results, _, _ = run
    assert [one.setting for one in results.settings] == ["none", HUGE]
    plain, noisy = (one.metrics["accuracy"] for one in results.settings)
    assert plain.mean == 100
    assert noisy.mean <= 50
    assert results.settings[0].metrics["mcc"].mean == 100
    assert results.untrained["accuracy"].mean == 0, "else the noisy model need not learn to score"
    assert 50 <= results.majority["accuracy"].mean < 90
    assert results.status == "completed"


def test_the_callers_model_is_untouched(run, model):
    _, _, before = run
    for name, parameter in model.parameters().items():
        assert torch.equal(parameter, before[name]), name
    assert not model.module.training


def test_finished_cells_are_not_run_again_and_others_are(run, model):
    results, out, _ = run
    count, files = Count(), {path.name for path in (out / "cells").iterdir()}
    again = utility(model, data=ROWS, defenses=[HUGE], out=out, progress=count, **QUICK)
    assert count.trainings == 0
    assert again.settings == results.settings
    assert again.untrained == results.untrained
    assert {path.name for path in (out / "cells").iterdir()} == files
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in out.rglob("*") if path.is_file())
    utility(model, data=ROWS[:-2], out=out, progress=count, **{**QUICK, "rounds": 1})
    assert count.trainings == 2


def test_a_spent_budget_leaves_the_rest_for_the_next_run(model, tmp_path):
    budget = Budget()
    stop = Count(budget, rounds=6)
    quick = {**QUICK, "rounds": 4}
    results = utility(model, data=ROWS, defenses=["frozen"], out=tmp_path, budget=budget, progress=stop, **quick)
    assert results.status == "interrupted"
    assert [one.status for one in results.settings] == ["unfinished", "unfinished"]
    assert list(results.settings[0].by_seed) == [0]
    assert results.settings[1].metrics == {}
    count = Count()
    whole = utility(model, data=ROWS, defenses=["frozen"], out=tmp_path, progress=count, **quick)
    assert (whole.status, count.trainings) == ("completed", 3)


def test_a_damaged_cell_is_named(model, tmp_path):
    quick = {**QUICK, "rounds": 1, "seeds": 1}
    utility(model, data=ROWS, out=tmp_path, **quick)
    next(tmp_path.glob("cells/training-none-*.json")).write_text("{}")
    with pytest.raises(GradleakError, match="remove it to have it measured again"):
        utility(model, data=ROWS, out=tmp_path, **quick)


@pytest.mark.parametrize("rule", ["fedsgd", "fedavg:epochs=1,batch=2,lr=0.01"])
def test_withheld_tensors_do_not_move_and_others_do(model, rule):
    settings = RoundSettings(**{**QUICK, "rounds": 2})
    learner = TextLearner(ROWS, model)
    train, _ = split(learner.pool(64), settings, seed=0)
    trained = federate(learner, model, train, settings, chain=("frozen",), client=rule)
    assert trained is not None
    frozen = {model.adapter.parameter_of(t) for t in (model.adapter.token_embedding, model.adapter.positions)}
    moved = {n for n, p in trained.parameters().items() if not torch.equal(p, model.parameters()[n])}
    assert not frozen & moved
    assert "score.weight" in moved


@pytest.mark.parametrize("rule", ["adamw:batch=2,lr=1e-3,clip=1", "fedavg:batch=2,lr=0.1,momentum=0.9,wire=bf16"])
def test_rounds_train_by_the_clients_rule(model, rule):
    settings = RoundSettings(**{**QUICK, "rounds": 30})
    learner = TextLearner(ROWS, model)
    train, test = split(learner.pool(64), settings, seed=0)
    trained = federate(learner, model, train, settings, client=rule)
    before, after = (learner.quality(each, test)["accuracy"] for each in (model, trained))
    assert after > before


def test_steps_do_not_depend_on_the_size_of_updates(model):
    """FedAvg differences of any step size are pseudo-gradients: Adam takes their direction."""
    settings = RoundSettings(**{**QUICK, "rounds": 3}, server="adam")
    learner = TextLearner(ROWS, model)
    train, _ = split(learner.pool(64), settings, seed=0)
    one, other = (
        federate(learner, model, train, settings, client=f"fedavg:batch=4,lr={lr}").parameters()
        for lr in ("0.01", "0.02")
    )
    torch.testing.assert_close(one["score.weight"], other["score.weight"], atol=1e-3, rtol=1e-2)


def test_weights_that_are_sent_are_averaged(model):
    """One round of one client ends where its own AdamW does; of two, in the middle."""
    rule = ClientRule.parse("adamw:epochs=2,batch=2,lr=1e-3")
    for clients in (1, 2):
        settings = RoundSettings(**{**QUICK, "rounds": 1, "clients": clients})
        learner = TextLearner(ROWS, model)
        train, _ = split(learner.pool(64), settings, seed=0)
        trained = federate(learner, model, train, settings, client=rule)
        own = [
            learner.update(learner.client(model, rule, ()), examples).tensors["score.weight"]
            for examples in _draw(train, settings, 0, 0)
        ]
        expected = model.parameters()["score.weight"] - torch.stack(own).mean(dim=0)
        torch.testing.assert_close(trained.parameters()["score.weight"], expected, atol=1e-6, rtol=1e-4)


def test_adapters_are_trained_alone():
    model = adapted_model(layers=1, width=16, rank=2)
    rows = [Row(row.text) for row in ROWS]
    settings = RoundSettings(**{**QUICK, "rounds": 2, "test_rows": 4})
    learner = TextLearner(rows, model)
    train, test = split(learner.pool(64), settings, seed=0)
    trained = federate(learner, model, train, settings, client="adamw:batch=2,lr=1e-2")
    before = dict(model.module.named_parameters())
    moved = {name for name, own in trained.module.named_parameters() if not torch.equal(own, before[name])}
    assert moved
    assert all("lora_" in name for name in moved)
    assert learner.quality(trained, test)["perplexity"] != learner.quality(model, test)["perplexity"]


def test_noise_of_a_tree_is_one_tree_over_all_rounds(model):
    """What eight rounds of nothing but noise add up to is the noise of one node, not of eight."""
    settings = RoundSettings(**{**QUICK, "rounds": 8, "clients": 1, "batch_size": 1}, server="average")
    learner = TextLearner(ROWS, model)
    train, _ = split(learner.pool(64), settings, seed=0)
    chain = ("tree:noise=1000,norm=1e-6",)
    trained = federate(learner, model, train, settings, chain=chain, client="fedavg:lr=1e-6")
    name = max(model.parameters(), key=lambda each: model.parameters()[each].numel())
    added = trained.parameters()[name] - model.parameters()[name]
    assert float(added.std()) == pytest.approx(1e-3, rel=0.1)


def test_splits_are_disjoint_and_the_seeds_own(model):
    settings = RoundSettings(**QUICK)
    rows = [Row(f"Ward {i}.", i % 2) for i in range(40)]
    first, again, other = (split(TextLearner(rows, model).pool(64), settings, seed) for seed in (0, 0, 1))
    assert first == again != other
    train, test = ({e.row.text for e in part} for part in first)
    assert not train & test
    assert len(test) == 20


def test_language_models_have_perplexity(tmp_path):
    model = tiny_model("gpt2", "causal-lm")
    rows = [Row(row.text) for row in ROWS]
    results = utility(model, data=rows, defenses=[HUGE], out=tmp_path, **{**QUICK, "lr": 1e-2})
    plain, noisy = (one.metrics["perplexity"].mean for one in results.settings)
    assert plain < results.untrained["perplexity"].mean / 2
    assert plain < noisy
    assert results.majority == {}


def test_perplexity_is_the_exponential_of_the_loss_and_bounded():
    model = tiny_model("llama", "causal-lm")
    batch = model.encode(["The loan was refused."])
    loss = float(model.loss(batch.ids, ids=batch.ids, mask=batch.mask).detach())
    assert perplexity(model, batch.sentences()) == pytest.approx(math.exp(loss), rel=1e-4)
    with torch.no_grad():
        model.module.lm_head.weight.fill_(float("nan"))
    assert perplexity(model, batch.sentences()) == WORST


def test_chains():
    assert parse_chains(["frozen", ["noise:sigma=1"], "none", "frozen"]) == [(), ("frozen",), ("noise:sigma=1",)]
    assert parse_chain("layers:send=1+3-4+sign") == ("layers:send=1+3-4", "sign")
    assert canonical(parse_chain("frozen + noise:sigma=1e-3")) == ["frozen:parts=embeddings", "noise:sigma=0.001"]
    for wrong, message in (
        ("nose:sigma=1", "did you mean 'noise'"),
        ("noise:sigma=-1", "greater than 0"),
        ("", "names no defence"),
        (["frozen", ""], "names no defence"),
        ("none+frozen", "unknown defence 'none'"),
    ):
        with pytest.raises(GradleakError, match=message):
            parse_chain(wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 0}, "rounds: Input should be greater than or equal to 1"),
        ({"round": 3}, "unknown key 'round'; did you mean 'rounds'"),
        ({"test_rows": 39}, "39 test rows and 2 clients with 4 rows each need 47 rows; the data has 40"),
        ({"data": [Row("no label")] * 40}, "needs labels"),
        ({"data": [Row("odd", 7)] * 40}, "out of range"),
        ({"client": "fedsdg"}, "client 'fedsdg'"),
        ({"defenses": ["nose"]}, "unknown defence"),
        ({"defenses": ["layers:send=1-9"]}, "has layers 1 to 2, not 9"),
        ({"defenses": ["noise:sigma=1+dpsgd:noise=1,clip=1"]}, "comes before all that changes"),
    ],
)
def test_bad_input_is_refused(model, change, message):
    with pytest.raises(GradleakError, match=message):
        utility(model, **{"data": ROWS, **QUICK, **change})
