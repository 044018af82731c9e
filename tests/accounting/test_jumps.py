"""Rare jumps: conditioning on the largest losses against direct quadrature, and against the engine itself.

Two steps of the subsampled Gaussian, remove direction, by quadrature that shares nothing with the engine: for the first
output x the second one's threshold has a closed form, so that delta is one integral of normal tails.
"""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from opake_jax.accounting import gaussian, poisson
from opake_jax.accounting._evaluate import quietly
from opake_jax.accounting._pld_bounds import answer
from opake_jax.accounting._pld_jumps import epsilon_by_jumps, has_jumps, log_delta_by_jumps
from opake_jax.accounting._pld_levels import Problem
from opake_jax.accounting._pld_tilt import Query


def delta_of_two_steps(sigma, q, epsilon):
    """P[L1 + L2 > e] - e^e Q[L1 + L2 > e], L = log(1 - q + q e^((2x-1)/(2 sigma^2)))."""

    def rest(x):
        y = (2 * x - 1) / (2 * sigma**2)
        need = math.expm1(epsilon - math.log1p(q * math.expm1(min(y, 600.0))))  # e^(e - L1) - 1
        inner = need / q + 1
        if inner <= 0:
            p2 = q2 = 1.0
        else:
            z = sigma**2 * math.log(inner) + 0.5
            q2 = norm.sf(z / sigma)
            p2 = (1 - q) * q2 + q * norm.sf((z - 1) / sigma)
        q1 = norm.pdf(x, 0, sigma)
        p1 = (1 - q) * q1 + q * norm.pdf(x, 1, sigma)
        return p1 * p2 - math.exp(epsilon) * q1 * q2

    # Where one step's loss passes epsilon the integrand turns over.
    turn = sigma**2 * math.log(math.expm1(epsilon) / q + 1) + 0.5
    points = sorted({-12 * sigma, 0.0, 1.0, turn - sigma, turn, turn + sigma, 1 + 14 * sigma})
    return sum(
        quad(rest, a, b, epsabs=0, epsrel=1e-9, limit=200)[0] for a, b in itertools.pairwise(points)
    )


def remove_steps(sigma, q, count, log_delta, atoms=3072):
    problem = Problem(((poisson(gaussian(sigma), q), count),))
    return problem.steps(0, problem._tails(log_delta), atoms)


TWO = [(0.5, 1e-3, 0.05), (0.7, 1e-4, 0.01), (0.4, 1e-2, 1.0), (1.0, 1e-3, 0.003)]


@pytest.mark.parametrize(("sigma", "q", "epsilon"), TWO)
def test_two_steps_by_quadrature(sigma, q, epsilon):
    truth = delta_of_two_steps(sigma, q, epsilon)
    with quietly():
        steps = remove_steps(sigma, q, 2, math.log(truth))
        assert has_jumps(steps)
        low, high = np.exp(log_delta_by_jumps(steps, epsilon, math.log(truth), 9216))
    assert low <= truth * (1 + 1e-7)
    assert high >= truth * (1 - 1e-7)
    assert high - low <= 3e-4 * truth


def test_telling_jumps_apart_never_contradicts_one_window():
    rng = np.random.default_rng(7)
    told = 0
    for _ in range(25):
        sigma, q = rng.uniform(0.3, 1.5), 10 ** rng.uniform(-7, -2)
        count = round(10 ** rng.uniform(0.3, 5))
        log_delta = rng.uniform(-25, -8)
        with quietly():
            steps = remove_steps(sigma, q, count, log_delta, 1536)
            if not has_jumps(steps):
                continue
            told += 1
            whole, _ = answer(steps, Query(log_delta, 0.0, True, 1.0), 3072)
            epsilon = float(min(whole.upper, 50.0)) * rng.uniform(0.3, 1.0)
            low, high = log_delta_by_jumps(steps, epsilon, log_delta, 3072)
            other, _ = answer(steps, Query(-1.0, epsilon, False, 1.0), 3072)
            assert low <= other.upper
            assert high >= other.lower
            assert low <= high
    assert told >= 8


# Settings whose one-window brackets are 1 to 99 % wide.
RARE = [
    (0.737, 2.4e-4, 97, 1e-5),
    (0.7, 1e-6, 1e5, 1e-9),
    (0.5, 1e-4, 10, 1e-6),
    (0.5, 1e-8, 1e6, 1e-8),
    # The search begins at 0 and at twice the answer.
    (0.5313189104650028, 0.0001483168928628549, 12, 3.669335281837005e-05),
]


@pytest.mark.parametrize(("sigma", "q", "count", "delta"), RARE)
def test_rare_jumps_are_as_tight_as_any(sigma, q, count, delta):
    process = poisson(gaussian(sigma), q) * int(count)
    low, high, _ = process.epsilon_bounds(delta)
    assert 0 < high - low <= 1e-4 * high
    # The same delta from the other question, whose bracket is another computation.
    below, above, _ = process.delta_bounds((low + high) / 2)
    assert below <= delta * (1 + 1e-3)
    assert above >= delta * (1 - 1e-3)


def test_the_bracket_of_epsilon_is_never_wider_than_the_one_it_starts_from():
    log_delta = math.log(1e-5)
    with quietly():
        steps = remove_steps(0.737, 2.4e-4, 97, log_delta, 1536)
        low, high = epsilon_by_jumps(steps, log_delta, 3072, (0.0346, 0.0351))
        # One window at a fine level: another computation, whose bracket must overlap.
        fine = remove_steps(0.737, 2.4e-4, 97, log_delta, 16384)
        whole, _ = answer(fine, Query(log_delta, 0.0, True, 1.0), 110592)
    assert 0.0346 <= low < high <= 0.0351
    assert low <= whole.upper
    assert high >= whole.lower
    assert high - low < 1e-5


@pytest.mark.parametrize("field", ["log_mass", "loss"])
@pytest.mark.parametrize("place", [0, 700, 1500])
def test_atoms_that_are_no_numbers_are_not_told_apart(field, place):
    # A NaN lies in no interval of losses: dropped, it would leave a bound that is too small.
    with quietly():
        steps = remove_steps(0.5, 1e-4, 10, math.log(1e-6), 1536)
        assert has_jumps(steps)
        array = getattr(steps, field).copy()
        array[0, 0, place] = math.nan
        assert not has_jumps(steps._replace(**{field: array}))
