"""Little noise: outputs tell who took part (`_pld_apart`). Against the one-step closed form in mpmath, and the other engines."""

import math

import numpy as np
import pytest
from mpmath import exp, log, mp, mpf, ncdf

import opake_jax.accounting as acc
from opake_jax.accounting import _pld_levels, gaussian, poisson


def one_step(sigma, q, epsilon):
    """Returns delta of one Poisson-sampled step: the loss crosses epsilon once."""
    s, q, e = mpf(sigma), mpf(q), exp(mpf(epsilon))
    x = (1 + 2 * s * s * log((e - 1 + q) / q)) / 2
    return (1 - q) * ncdf(-x / s) + q * ncdf((1 - x) / s) - e * ncdf(-x / s)


@pytest.fixture
def without(monkeypatch):
    """Returns a function that asks with this engine and without this engine; None where it was not asked the first time."""
    ours = _pld_levels.Problem._apart

    def ask_both(ask):
        found = []

        def spied(self, log_delta):
            found.append(ours(self, log_delta))
            return found[-1]

        monkeypatch.setattr(_pld_levels.Problem, "_apart", spied)
        with_it = ask()
        monkeypatch.setattr(_pld_levels.Problem, "_apart", lambda self, log_delta: None)
        return (with_it, ask()) if any(f is not None for f in found) else None

    return ask_both


def test_one_step_is_its_closed_form():
    rng = np.random.default_rng(0)
    with mp.workdps(60):
        for _ in range(60):
            sigma, q = (
                math.exp(rng.uniform(math.log(0.004), math.log(0.08))),
                10 ** rng.uniform(-4, -0.05),
            )
            epsilon = abs(1 / (2 * sigma**2) + 2 * rng.normal() / sigma + math.log(q))
            truth = float(one_step(sigma, q, epsilon))
            lower, upper, _ = poisson(gaussian(sigma), q).delta_bounds(epsilon)
            assert lower <= truth * (1 + 1e-12)
            assert truth * (1 - 1e-12) <= upper <= truth * 1.001 + 1e-300


@pytest.mark.slow  # the others take seconds each
def test_brackets_overlap_those_of_the_other_engines(without):
    rng, asked = np.random.default_rng(1), 0
    for _ in range(6):
        sigma, q = (
            math.exp(rng.uniform(math.log(0.01), math.log(0.09))),
            10 ** rng.uniform(-5, -0.05),
        )
        steps, delta = int(10 ** rng.uniform(0, 3)), 10 ** rng.uniform(-12, -1)
        process = poisson(gaussian(sigma), q) * steps
        if rng.random() < 0.3:
            process = process | gaussian(rng.uniform(0.02, 3)) * int(rng.integers(1, 4))
        if rng.random() < 0.2:
            process = process | poisson(gaussian(rng.uniform(0.01, 0.05)), 0.01) * 7
        if rng.random() < 0.2:
            process = acc.parallel_poisson(gaussian(sigma), q * 0.3, 3) * min(steps, 50)
        both = without(lambda p=process, d=delta: p.epsilon_bounds(d)[:2])
        if both is None:
            continue
        asked += 1
        (low, up), (other_low, other_up) = both
        assert max(low, other_low) <= min(up, other_up) * (1 + 1e-12)
        assert up <= low * 1.001 + 1e-9
        epsilon, alpha = low * rng.uniform(0.2, 1.2), rng.uniform(0.01, 0.9)
        for ask in (
            lambda p=process, e=epsilon: p.delta_bounds(e)[:2],
            lambda p=process, a=alpha: p.beta_bounds(a)[:2],
        ):
            if (both := without(ask)) is not None:
                (low, up), (other_low, other_up) = both
                assert max(low, other_low) <= min(up, other_up) * (1 + 1e-12)
    assert asked > 2


@pytest.mark.parametrize("sigma", [0.02, 1e-3, 1e-7, 1e-30])
def test_what_is_known_of_nearly_no_noise(sigma):
    """Whoever took part is seen: the total variation is the probability of taking part, in two steps and in ten."""
    for q, steps in ((0.05, 10), (0.022, 2)):
        process = poisson(gaussian(sigma), q) * steps
        truth = -math.expm1(steps * math.log1p(-q))
        for epsilon in (0.0, 1.0, 10.0):
            lower, upper, _ = process.delta_bounds(epsilon)
            assert truth * (1 - 1e-6) <= lower <= truth * (1 + 1e-12)
            assert truth * (1 - 1e-12) <= upper <= truth * (1 + 1e-6)
        assert process.beta_at(0.1) == pytest.approx(0.9 - truth, rel=1e-6)
        assert process.risk_at(0.5) == pytest.approx((1 - truth) / 2, rel=1e-6)


@pytest.mark.parametrize("sigma", [1e-8, 1e-12, 1e-17, 1e-25])
def test_delta_of_a_gaussian_whose_epsilon_has_few_digits(sigma):
    with mp.workdps(80):
        s = mpf(sigma)
        for share in (0.5, 1 - 1e-9, 1 - 1e-15, 1.0, 1 + 1e-15, 1 + 1e-9, 2.0):
            epsilon = share / (2 * sigma**2)
            t = mpf(epsilon) * s - 1 / (2 * s)
            truth = ncdf(-t) - exp(mpf(epsilon)) * ncdf(-t - 1 / s)
            lower, upper, _ = gaussian(sigma).delta_bounds(epsilon)
            assert lower <= truth <= upper


@pytest.mark.parametrize(("shifts", "weights"), [([0.0], [0.5]), ([0.0], [1.0]), ([1.0], [0.0])])
def test_a_shift_or_a_weight_of_0_costs_nothing(shifts, weights):
    process = acc.mixture_of_gaussians(0.05, shifts, weights) * 3
    assert process.epsilon_bounds(1e-5)[:2] == (0.0, 0.0)
    assert process.delta_at(0.5) < 1e-300
