"""Beside what was read under differential privacy: what anyone can read at most."""

import pytest
from sample import sample_results

from gradleak.defenses.ceiling import one_round, whole_training
from gradleak.updates.client_rule import ClientRule
from gradleak.verdict.judge import judge
from gradleak.verdict.sentences import scenario_words


def verdict_on(*defenses, **scenario):
    results = sample_results()
    changed = results.scenario.model_copy(update={"defenses": list(defenses), **scenario})
    return judge([results.model_copy(update={"scenario": changed})]).scenarios[0]


def lines(verdict):
    return [line for line in scenario_words(verdict) if line.startswith(("Ceiling", "More came back"))]


def test_both_sides_are_told():
    verdict = verdict_on("dpsgd:noise=0.42,rows=8551,batch=16,steps=1000")
    noise = 0.42
    told = {(each.scope, each.guess): each.success for each in verdict.ceilings}
    assert told["update", 1 / 216] == pytest.approx(one_round(1 / 216, noise), rel=0.01)
    assert told["training", 1e-6] == pytest.approx(whole_training(1e-6, noise, 16 / 8551, 1000), rel=0.05)
    first, second = lines(verdict)
    assert "who has all 216 rows" in first
    assert "41 % at most from this update" in first
    assert "right once in 1,000,000" in second
    assert "1000 updates of the training" in second


def test_local_steps_add_up_and_little_noise_is_called_vacuous():
    (one, *_), (five, *_) = (
        verdict_on("dpsgd:noise=1.0", client=ClientRule.parse(f"fedavg:epochs={epochs}")).ceilings
        for epochs in (1, 5)
    )
    assert (one.success, five.success) == (one_round(1 / 216, 1.0), one_round(1 / 216, 1.0, 5))
    assert "excludes next to nothing" in lines(verdict_on("dpsgd:noise=0.05"))[0]


@pytest.mark.parametrize("defense", [(), ("noise:sigma=0.1",), ("sign",), ("dpsgd:noise=0",)])
def test_nothing_is_promised_where_nothing_holds(defense):
    assert not verdict_on(*defense).ceilings
    assert not lines(verdict_on(*defense))


def test_more_than_is_possible_is_a_broken_implementation():
    results = sample_results()
    right = [
        trial.model_copy(
            update={
                "pairs": [p.model_copy(update={"scores": {**p.scores, "exact_match": 100.0}}) for p in trial.pairs]
            }
        )
        for trial in results.trials
    ]
    changed = results.scenario.model_copy(update={"defenses": ["dpsgd:noise=10.0"]})
    broken = results.model_copy(update={"scenario": changed, "trials": right * 3})
    assert "implementation is broken" in lines(judge([broken]).scenarios[0])[-1]
