"""The Gaussian closed forms bracket 60-digit mpmath, tightly, in every regime."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpmath import erfc, exp, log, mp, mpf, sqrt

from opake_jax.accounting import _mu_gdp as mu_gdp
from opake_jax.accounting import gaussian

MUS = [1e-6, 1e-3, 0.1, 0.49, 0.51, 1.0, 2.0, 6.1, 30.0, 1e3, 1e5]
DELTAS = [0.9, 0.5, 0.1, 1e-5, 1e-15, 1e-100, 1e-300]


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(60), jax.enable_x64(True):
        yield


def tail(x):
    return erfc(mpf(x) / sqrt(mpf(2))) / 2


def true_delta(mu, epsilon):
    mu, epsilon = mpf(mu), mpf(epsilon)
    return tail(epsilon / mu - mu / 2) - exp(epsilon) * tail(epsilon / mu + mu / 2)


def true_epsilon(mu, delta):
    if true_delta(mu, 0) <= delta:
        return mpf(0)
    low, high = mpf(0), mpf(mu) ** 2 / 2 + mu * sqrt(-2 * log(delta))
    for _ in range(150):
        middle = (low + high) / 2
        low, high = (middle, high) if true_delta(mu, middle) > delta else (low, middle)
    return high


# Both sides of the switch at 4.5, and the far tail.
@pytest.mark.parametrize("t", [-7.5, -1.0, 0.0, 1.0, 4.4, 4.6, 8.0, 26.6, 300.0])
def test_mills_ratio(t):
    ratio, slope = (float(v) for v in mu_gdp.mills(jnp.float64(t)))
    truth = tail(t) * sqrt(2 * mp.pi) * exp(mpf(t) ** 2 / 2)
    assert abs(ratio / truth - 1) < 1e-13
    assert abs(slope / (1 - mpf(t) * truth) - 1) < 1e-13


def test_epsilon_and_delta_bracket_the_truth():
    epsilon, log_delta = jax.jit(mu_gdp.epsilon), jax.jit(mu_gdp.log_delta)
    for mu in MUS:
        for delta in DELTAS:
            target = math.log(delta)
            truth = true_epsilon(mu, exp(mpf(target)))
            lower, upper = (float(v) for v in epsilon(mu, target))
            assert lower <= truth <= upper
            assert upper - lower <= 1e-10 * truth + 1e-300
            low, high = (float(v) for v in log_delta(mu, float(truth)))
            assert low <= log(true_delta(mu, float(truth))) <= high
            assert high - low <= 1e-9 * max(1.0, mu)


@pytest.mark.parametrize("mu", [1e-3, 1.0, 8.0])
@pytest.mark.parametrize("alpha", [1e-200, 1e-6, 0.01, 0.5, 0.9, 1 - 1e-12])
def test_beta_brackets_the_truth(mu, alpha):
    low, high = mpf(-40), mpf(40)  # Phi^-1(1 - alpha)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > mpf(alpha) else (low, middle)
    truth = tail(mpf(mu) - high)
    lower, upper = (float(v) for v in mu_gdp.beta(jnp.float64(mu), jnp.float64(alpha)))
    assert lower <= truth <= upper
    assert upper - lower <= 1e-11


# mpmath, 30 digits: the root of true_delta(1, e) = 1e-5.
def test_the_figure_of_the_design():
    assert gaussian(1.0).epsilon_at(1e-5) == pytest.approx(4.37717809568122, abs=1e-12)
    lower, upper, tight = gaussian(1e-5).epsilon_bounds(1e-5)
    assert tight
    assert lower <= true_epsilon(1e5, mpf(1e-5)) <= upper <= 5.0005e9


def test_compositions_add_their_squares():
    both = gaussian(3.0) * 10 | gaussian(2.0) * 7
    assert both.epsilon_at(1e-6) == pytest.approx(
        gaussian(1 / math.sqrt(10 / 9 + 7 / 4)).epsilon_at(1e-6), rel=1e-7
    )


def test_edges():
    assert gaussian(0.0).epsilon_at(1e-5) == math.inf
    assert gaussian(0.0).delta_at(3.0) == 1.0
    assert gaussian(0.0).beta_at(0.5) == 0.0
    assert gaussian(1.0).epsilon_at(0.0) == math.inf
    assert gaussian(1e-300).epsilon_at(1e-5) == math.inf
    assert (gaussian(1.0) * 2**40).epsilon_at(1e-5) == pytest.approx(2**39, rel=1e-4)
    ends = gaussian(1.0).beta_at(np.array([0.0, 1.0]))
    assert ends.tolist() == [1.0, 0.0]
