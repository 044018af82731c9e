"""Summaries of the whole curve, and classical formulas beside the tight answers."""

import math
from statistics import NormalDist

import numpy as np
import pytest

import opake_jax.accounting as acc
from opake_jax.accounting import RDP, classical, gaussian, poisson

W1 = poisson(gaussian(1.0), 0.01) * 1000


# accounting.md: at least 0.4627, 0.513, 0.613; the central limit says 0.439.
@pytest.mark.parametrize(
    ("min_delta", "mu"),
    [
        (1e-5, 0.4627),
        pytest.param(9.2e-10, 0.513, marks=pytest.mark.slow),
        pytest.param(1e-15, 0.613, marks=pytest.mark.slow),
    ],
)
def test_gdp_covers_the_curve(min_delta, mu):
    summary = W1.gdp(min_delta)
    assert summary.min_delta == min_delta
    assert mu <= summary.mu <= mu * 1.003
    cover = gaussian(1 / summary.mu)
    epsilons = np.linspace(0, W1.epsilon_at(min_delta), 23)
    lower = np.array([W1.delta_bounds(float(e))[0] for e in epsilons])
    assert np.all(cover.delta_at(epsilons) >= lower)


def test_gdp_of_a_gaussian_is_itself():
    assert gaussian(2.0).gdp().mu == pytest.approx(0.5, rel=1e-12)
    assert (gaussian(3.0) * 9).gdp().mu == pytest.approx(1.0, rel=1e-12)
    assert acc.identity().gdp().mu == 0.0
    assert acc.nonprivate().gdp().mu == math.inf
    # Randomised response: the kink at alpha = 1/(1 + e), where beta = alpha; mu = 2 Phi^-1(e/(1 + e)).
    exact = 2 * NormalDist().inv_cdf(math.e / (1 + math.e))
    assert exact * (1 - 1e-6) <= acc.eps_delta(1.0).gdp(1e-12).mu <= exact * 1.01


def test_risk_is_what_advantage_says():
    for process in (gaussian(1.0), W1, acc.eps_delta(1.0)):
        assert process.risk_at(0.5) == pytest.approx((1 - process.advantage()) / 2, rel=1e-6)
    assert gaussian(1.0).risk_at(0.1) == pytest.approx(gaussian(1.0).risk_at(0.9), rel=1e-6)
    # min over alpha of prior alpha + (1 - prior) beta(alpha), on a grid: at most 1e-5 above the minimum.
    alpha = np.linspace(0, 0.2, 401)
    scan = np.min(0.9 * alpha + 0.1 * gaussian(1.0).beta_at(alpha))
    assert scan - 1e-5 <= gaussian(1.0).risk_at(0.9) <= scan + 1e-9
    assert [gaussian(1.0).risk_at(0.0), gaussian(1.0).risk_at(1.0)] == [0.0, 0.0]


def test_the_curve():
    curve = W1.trade_off_curve()
    assert curve.alpha.shape == curve.beta.shape
    assert [curve.beta[0], curve.beta[-1]] == [1.0, 0.0]
    assert np.all(np.diff(curve.beta) <= 1e-12)
    assert np.all(curve.beta <= 1 - curve.alpha + 1e-12)
    # The Renyi curve is a lower bound of it.
    some = np.array([1e-3, 0.1, 0.5])
    assert np.all(W1.trade_off_curve(some, accountant=RDP()).beta <= W1.beta_at(some) + 1e-4)


def test_trajectory():
    step = poisson(gaussian(1.0), 0.01)
    values = acc.epsilon_trajectory(step, np.array([[0, 1], [100, 1000]]), 1e-5)
    assert values.shape == (2, 2)
    assert values[0, 0] == 0.0
    for count, value in [(1, values[0, 1]), (100, values[1, 0]), (1000, values[1, 1])]:
        low, high, _ = (step * count).epsilon_bounds(1e-5)
        assert low <= value <= high * (1 + 2e-3)
    pure = acc.epsilon_trajectory(acc.laplace(2.0), [0, 3], 0.0)
    assert pure.tolist() == [0.0, 1.5]


# Dwork and Roth 2014, Thm A.1, 3.16, 3.20, evaluated by hand.
def test_classical_formulas():
    sigma = classical.classical_sigma(0.5, 1e-5)
    assert sigma == pytest.approx(math.sqrt(2 * math.log(125_000)) / 0.5)
    assert gaussian(sigma).epsilon_at(1e-5) <= 0.5
    assert classical.basic_composition(0.1, 1e-7, 100) == pytest.approx((10.0, 1e-5))
    epsilon, delta = classical.advanced_composition(0.1, 0.0, 100, slack=1e-5)
    assert epsilon == pytest.approx(math.sqrt(200 * math.log(1e5)) * 0.1 + 10 * math.expm1(0.1))
    assert delta == 1e-5
    assert (acc.eps_delta(0.1) * 100).epsilon_at(1e-5) <= epsilon
    assert classical.sum_sensitivity(2.0) == 2.0
    assert classical.sum_sensitivity(2.0, replace_one=True) == 4.0
    assert classical.mean_sensitivity(1.0, 50) == 0.04
    rng = np.random.default_rng(1)
    noise = np.sum(rng.normal(0, 0.5, (4000, 100)) ** 2, 1)  # standard error 0.06
    assert np.mean(noise) == pytest.approx(classical.expected_squared_error(100, 0.5), abs=0.3)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("epsilon", lambda: classical.classical_sigma(1.0, 1e-5)),
        ("epsilon", lambda: classical.classical_sigma(0.0, 1e-5)),
        ("delta", lambda: classical.classical_sigma(0.5, 0.0)),
        ("sensitivity", lambda: classical.classical_sigma(0.5, 1e-5, -1.0)),
        ("delta", lambda: classical.basic_composition(0.1, 0.01, 100)),
        ("count", lambda: classical.basic_composition(0.1, 0.0, -1)),
        ("slack", lambda: classical.advanced_composition(0.1, 0.0, 5, slack=0.0)),
        ("delta", lambda: classical.advanced_composition(0.1, 0.09, 10, slack=0.2)),
        ("bound", lambda: classical.sum_sensitivity(-1.0)),
        ("size", lambda: classical.mean_sensitivity(1.0, 0)),
        ("dimension", lambda: classical.expected_squared_error(0, 1.0)),
    ],
)
def test_classical_formulas_refuse_where_their_theorem_ends(name, call):
    with pytest.raises(ValueError, match=name):
        call()
