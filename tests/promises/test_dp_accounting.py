"""ε of any DP-SGD setting: refused before any work, or computed in bounded time and memory, and never too small."""

from __future__ import annotations

import json
import math
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant
from sample import sample_results
from scipy.special import log_ndtr
from typer.testing import CliRunner

from gradleak import GradleakError
from gradleak.cli.app import app
from gradleak.defenses import parse_defenses
from gradleak.defenses.accounting import MOST_POINTS, closed_form, noise_for, spent
from gradleak.defenses.dpsgd import DpSgd
from gradleak.report.wording import threat_model

TRAINING = "rows=1000,batch=10"
# What once ended in a traceback or ate the machine's memory.
BEYOND = [
    f"dpsgd:noise=0.01,steps=500,{TRAINING}",
    f"dpsgd:noise=1e-9,steps=500,{TRAINING}",
    f"dpsgd:noise=1,steps=500,{TRAINING},delta=1e-300",
    f"dpsgd:noise=1,steps=100000000,{TRAINING}",
    "dpsgd:noise=1,steps=1000000000000,rows=1000000000000,batch=1",
    "dpsgd:noise=0.1,steps=1000000000000,rows=1,batch=1,delta=5e-324",
]


def logarithmic(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log10(low), math.log10(high)).map(lambda power: min(max(10.0**power, low), high))


whole = st.integers(1, 10**12) | st.integers(1, 10**4)
noises = logarithmic(1e-12, 1e6) | logarithmic(0.1, 100)
rates = logarithmic(1e-12, 1) | st.just(1.0) | logarithmic(1e-12, 0.1).map(lambda rest: 1 - rest)
deltas = logarithmic(1e-300, 0.999) | logarithmic(1e-10, 1e-2)


def gaussian_delta(epsilon: float, noise: float) -> float:
    """δ of one Gaussian mechanism, exactly (Balle and Wang 2018)."""
    first = log_ndtr(1 / (2 * noise) - epsilon * noise)
    second = epsilon + log_ndtr(-1 / (2 * noise) - epsilon * noise)
    return float(np.exp(first) - np.exp(second)) if second < first else 0.0


def one_step_delta(epsilon: float, noise: float, rate: float) -> float:
    """δ of one step on a random share of the rows, exactly (Balle et al. 2018)."""
    inner = math.log1p(math.expm1(epsilon) / rate) if epsilon < 500 else epsilon - math.log(rate)
    return rate * gaussian_delta(inner, noise)


@given(noises, rates, whole, deltas)
@settings(deadline=None, max_examples=200)
def test_the_bound_is_a_number_for_any_setting_and_more_noise_never_loosens_it(
    noise: float, rate: float, steps: int, delta: float
) -> None:
    bound = closed_form(noise, rate, steps, delta)
    assert 0 <= bound < math.inf
    assert closed_form(2 * noise, rate, steps, delta) <= bound * (1 + 1e-9)
    assert closed_form(noise, rate, steps + 1, delta) >= bound * (1 - 1e-9)


@given(logarithmic(1e-2, 1e4), rates, logarithmic(1e-10, 0.1))
@settings(deadline=None, max_examples=60)
def test_one_step_is_never_told_too_private(noise: float, rate: float, delta: float) -> None:
    for epsilon in (closed_form(noise, rate, 1, delta), spent(noise, rate, 1, delta).epsilon):
        assert one_step_delta(epsilon, noise, rate) <= delta * (1 + 1e-6) + 1e-13


@given(logarithmic(0.3, 1e4), st.integers(1, 100), logarithmic(1e-9, 0.1))
@settings(deadline=None, max_examples=10)
def test_steps_on_all_rows_are_one_gaussian_mechanism(noise: float, steps: int, delta: float) -> None:
    for epsilon in (closed_form(noise, 1.0, steps, delta), spent(noise, 1.0, steps, delta).epsilon):
        assert gaussian_delta(epsilon, noise / math.sqrt(steps)) <= delta * (1 + 1e-3)


@pytest.mark.parametrize(
    "setting",
    [
        (1.0, 0.01, 1000, 1e-5),
        (0.6, 0.001, 500, 1e-6),
        (2.0, 0.2, 200, 1e-5),
        (4.0, 1.0, 50, 1e-8),
        (0.8, 0.5, 1, 1e-3),
    ],
)
def test_where_opacus_works_its_value_is_told_and_the_bound_lies_above(
    setting: tuple[float, float, int, float],
) -> None:
    noise, rate, steps, delta = setting
    accountant = PRVAccountant()
    accountant.history = [(noise, rate, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = accountant.get_epsilon(delta, eps_error=0.003)
    told = spent(*setting)
    assert told.by == "accountant"
    assert told.epsilon == pytest.approx(expected, abs=1e-5)
    assert told.epsilon <= closed_form(*setting) <= 2.5 * expected


@given(noises, rates, whole, deltas)
@settings(deadline=15_000, max_examples=12)
def test_any_setting_has_an_epsilon_in_bounded_time(noise: float, rate: float, steps: int, delta: float) -> None:
    assert 0 <= spent(noise, rate, steps, delta).epsilon <= closed_form(noise, rate, steps, delta)


def test_the_largest_grid_takes_bounded_memory() -> None:
    tracemalloc.start()
    told = spent(10.0, 0.5, 100_000, 1e-5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert told.by == "accountant"
    assert 185 < told.epsilon < 200
    assert peak < 300 * MOST_POINTS


def test_noise_is_chosen_for_any_target_in_bounded_memory() -> None:
    tracemalloc.start()
    for target in (0.02, 1000.0, 1e6):
        noise = noise_for(target, 0.01, 100, 1e-5)
        assert spent(noise, 0.01, 100, 1e-5).epsilon <= target
        assert spent(0.99 * noise, 0.01, 100, 1e-5).epsilon > target
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300 * MOST_POINTS


@pytest.mark.parametrize("spec", BEYOND)
def test_what_the_accountant_cannot_compute_is_told_as_a_bound_by_its_name(spec: str) -> None:
    (defense,) = parse_defenses([spec])
    told = defense.guarantee() or ""
    assert told.startswith("ε ≤ ")
    assert "closed-form bound" in told


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ("noise=1e-13", "noise must be 0 or at least 1e-12"),
        ("noise=1e7", "less than or equal to 1000000"),
        ("noise=nan", "finite number"),
        ("noise=1,clip=inf", "finite number"),
        ("noise=1,steps=0", "greater than or equal to 1"),
        (f"noise=1,steps={10**400}", "steps"),
        ("noise=1,delta=0", "greater than 0"),
        ("noise=1,delta=1", "less than 1"),
        (f"epsilon=1e-9,steps=1000,{TRAINING}", "no noise keeps ε below 1e-09"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_read(values: str, reason: str) -> None:
    with pytest.raises(GradleakError, match=reason):
        parse_defenses([f"dpsgd:{values}"])


numbers = st.floats().map(repr) | st.integers().map(str) | st.sampled_from(["", "1e9999", "-1", "nan", "٣", "0x10"])


@given(st.dictionaries(st.sampled_from(sorted(DpSgd.model_fields)), numbers))
@settings(deadline=None, max_examples=100)
def test_no_values_make_a_report_fail(values: dict[str, str]) -> None:
    spec = "dpsgd:" + ",".join(f"{key}={value}" for key, value in values.items())
    scenario = sample_results().scenario.model_copy(update={"defenses": [spec]})
    assert threat_model(scenario)


def test_a_report_of_hostile_results_is_written(tmp_path: Path) -> None:
    results = sample_results().model_dump(mode="json")
    results["scenario"]["defenses"] = [*BEYOND, "dpsgd:noise=1e999,steps=5"]
    (tmp_path / "results.json").write_text(json.dumps(results))
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "closed-form bound" in (tmp_path / "report.html").read_text()
