"""The bound from above: against simulated mechanisms, another library's accountant, and itself."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import qmc

from gradleak import GradleakError
from gradleak.defenses import ceiling
from gradleak.defenses.ceiling import GUESSES, ceilings, one_round, whole_training


def success(noise, candidates, steps, rate, draws, seed=0):
    """How often the likeliest candidate is the right one: their clipped gradients are orthogonal, the best case.

    The others of the batch are known and taken out. Where a step leaves the example out, only noise is seen.
    """
    rng = np.random.default_rng(seed)
    right = rng.integers(candidates, size=draws)
    likelihood = np.zeros((draws, candidates))
    for _ in range(steps):
        inside = rng.random(draws) < rate
        seen = noise * rng.standard_normal((draws, candidates))
        seen[np.arange(draws), right] += inside
        likelihood += np.log1p(rate * np.expm1((seen - 0.5) / noise**2)) if rate < 1 else (seen - 0.5) / noise**2
    return float((likelihood.argmax(1) == right).mean())


@pytest.mark.parametrize("noise", [0.3, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize(("steps", "rate"), [(1, 1.0), (9, 1.0), (20, 0.2)])
def test_no_simulated_attack_exceeds_it(noise, steps, rate):
    for candidates in (2, 16, 200):
        share = success(noise, candidates, steps, rate, draws=1000)
        spread = 3 * math.sqrt(max(share * (1 - share), 1e-3) / 1000)
        assert share - spread <= whole_training(1 / candidates, noise, rate, steps)


@pytest.mark.parametrize(("noise", "guess", "steps"), [(1.0, 0.1, 1), (0.5, 0.01, 1), (2.0, 0.05, 9), (1.0, 1e-3, 4)])
def test_the_closed_form_is_what_the_best_test_reaches(noise, guess, steps):
    """Accept where the likelihood is above the level that a share κ of updates without the example exceeds.

    Every step's noise is drawn, by points that fill the space evenly, the direction that decides first of all. Of as
    many independent draws the false alarms alone would be off by the tolerance, times the slope of the curve.
    """
    drawn = ndtri(np.clip(qmc.Sobol(steps, rng=1).random_base2(19), 1e-12, 1 - 1e-12))
    basis, _ = np.linalg.qr(np.column_stack([np.ones(steps), np.eye(steps)[:, 1:]]))
    of_steps = noise * drawn @ basis.T
    without, within = (((of_steps + shift) / noise**2).sum(axis=1) for shift in (0.0, 1.0))
    reached = (within > np.quantile(without, 1 - guess)).mean()
    assert one_round(guess, noise, steps) == pytest.approx(reached, abs=2e-4)


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.01, 1000), (2.0, 0.5, 100), (0.8, 0.1, 10)])
def test_a_training_against_another_accountant(noise, rate, steps):
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    made = pld.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-3)
    losses = made.self_compose(steps)
    at = np.linspace(-5, 25, 301)
    deltas = np.array([losses._pmf_remove.get_delta_for_epsilon(each) for each in at])
    for guess, own in zip(GUESSES, ceilings(noise, rate, steps), strict=True):
        other = min(1.0, float((guess * np.exp(at) + deltas).min()))
        assert own >= other * (1 - 1e-3)
        assert own <= other * 1.02 + 1e-6


def test_without_the_accountant_it_is_looser_and_still_a_bound(monkeypatch):
    exact = ceilings(1.0, 0.01, 1000)
    monkeypatch.setattr(ceiling, "_curve", lambda *_: None)
    loose = ceilings(1.0, 0.01, 1000)
    assert all(a <= b <= 1 for a, b in zip(exact, loose, strict=True))
    assert loose[3] < 0.1


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.05, 100), st.floats(1.0, 3.0), st.integers(1, 50))
def test_it_grows_with_the_guess_and_the_steps_and_falls_with_noise(low, high, noise, factor, steps):
    low, high = sorted((low, high))
    own = one_round(low, noise, steps)
    assert low - 1e-12 <= own <= 1
    assert own <= one_round(high, noise, steps) + 1e-12
    assert one_round(low, noise * factor, steps) <= own + 1e-12
    assert own <= one_round(low, noise, steps + 1) + 1e-12


def test_no_noise_promises_nothing_and_nonsense_is_refused():
    assert one_round(0.1, 0.0) == 1
    assert one_round(0.0, 1.0) == 0
    assert one_round(1e-6, 0.05) > 0.99
    for wrong in ((-0.1, 1.0, 1.0, 1), (0.1, -1.0, 1.0, 1), (0.1, 1.0, 0.0, 1), (0.1, 1.0, 1.0, 0)):
        with pytest.raises(GradleakError):
            whole_training(*wrong)
