"""One-run bounds: the theorem's own formula in scipy, linear programming, and simulated games."""

import mpmath
import numpy as np
import pytest
from scipy import optimize, stats

from opake_jax.auditing import one_run_epsilon, one_run_gdp

# The project's check values (issue 8), at 95 %.
CHECKS = [
    ((1000, 600, 600, 1e-5), 5.2704),
    ((1000, 100, 100, 1e-5), 3.4654),
    ((1000, 100, 95, 1e-5), 2.1652),
    ((1000, 1000, 800, 0.0), 1.2543),
]


@pytest.mark.parametrize(("game", "expected"), CHECKS)
def test_check_values(game, expected):
    *counts, delta = game
    assert one_run_epsilon(*counts, delta=delta) == pytest.approx(expected, abs=6e-5)


def p_value(m, r, v, epsilon, delta):
    """The theorem's right side with 30 digits."""
    with mpmath.workdps(30):
        q = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        mass = [mpmath.binomial(r, j) * q**j * (1 - q) ** (r - j) for j in range(r + 1)]
        below, worst = mpmath.mpf(0), mpmath.mpf(0)
        for i in range(1, v + 1):
            below += mass[v - i]
            worst = max(worst, below / i)
        return mpmath.fsum(mass[v:]) + 2 * m * mpmath.mpf(delta) * worst


@pytest.mark.parametrize(
    ("m", "r", "v", "delta", "confidence"),
    [(1000, 200, 180, 1e-5, 0.95), (50, 50, 45, 1e-3, 0.9), (2000, 300, 300, 1e-9, 1 - 1e-4)],
)
def test_epsilon_is_refuted_and_a_little_more_is_not(m, r, v, delta, confidence):
    bound = float(one_run_epsilon(m, r, v, delta=delta, confidence=confidence))
    assert bound > 0
    assert p_value(m, r, v, bound, delta) <= 1 - confidence
    assert p_value(m, r, v, bound + 1e-5, delta) > 1 - confidence


def test_arrays_equal_scalars():
    got = one_run_epsilon(1000, [[600, 100], [100, 40]], [[600, 100], [95, 40]], delta=1e-5)
    assert got.shape == (2, 2)
    assert got[1, 0] == one_run_epsilon(1000, 100, 95, delta=1e-5)
    assert one_run_gdp(1000, [100, 100], [90, 95])[1] == one_run_gdp(1000, 100, 95)


def test_edges():
    assert one_run_epsilon(10, 0, 0, delta=1e-5) == one_run_gdp(10, 0, 0) == 0.0
    assert one_run_epsilon(100, 100, 50, delta=1e-5) == one_run_gdp(100, 100, 50) == 0.0
    assert one_run_epsilon(100, 100, 100, delta=1.0) == 0.0


def test_epsilon_covers_randomized_response():
    """m bits, each kept with probability e^eps / (1 + e^eps): the mechanism that meets the theorem.

    Over all v, weighted by the exact law of v (scipy.stats.binom), the bound exceeds eps with
    probability at most 5 %, and with more than 2 % (it is tight).
    """
    epsilon, m = 1.5, 200
    v = np.arange(m + 1)
    weight = stats.binom.pmf(v, m, 1 / (1 + np.exp(-epsilon)))
    wrong = weight[one_run_epsilon(m, m, v, delta=0.0) > epsilon].sum()
    assert 0.02 < wrong <= 0.05


def test_epsilon_covers_a_mechanism_that_fails_with_probability_delta():
    """With probability delta all bits are published, else randomized response: delta > 0 is needed.

    P[bound > eps] is exact from the two binomial laws. With delta = 0 in the audit the bound would
    be wrong too often at a high confidence.
    """
    epsilon, delta, m, confidence = 1.0, 0.02, 100, 0.99
    v = np.arange(m + 1)
    law = (1 - delta) * stats.binom.pmf(v, m, 1 / (1 + np.exp(-epsilon))) + delta * (v == m)
    wrong = law[one_run_epsilon(m, m, v, delta=delta, confidence=confidence) > epsilon].sum()
    assert wrong <= 0.01
    naive = law[one_run_epsilon(m, m, v, delta=0.0, confidence=confidence) > epsilon].sum()
    assert naive > 0.01


def largest_tail(m, r, v, mu):
    """max P[correct >= v] over all laws that meet the inequalities: a linear program.

    The concave g(x) = Phi(Phi^-1(x) + mu) is replaced by 600 of its tangents, which allows a little
    more.
    """
    x = stats.norm.cdf(np.linspace(-9, 6, 600))
    slope = np.exp(-mu * stats.norm.ppf(x) - mu**2 / 2)
    offset = stats.norm.cdf(stats.norm.ppf(x) + mu) - slope * x
    j = np.arange(r + 1)
    rows, bounds = [], []
    for c in range(1, r + 1):
        right = np.where(j >= c, j, 0) / m
        wrong = np.where(j >= c - 1, r - j, 0) / m
        rows.append(right - slope[:, None] * wrong)
        bounds.append(offset)
    found = optimize.linprog(
        -(j >= v).astype(float),
        A_ub=np.concatenate(rows),
        b_ub=np.concatenate(bounds),
        A_eq=np.ones((1, r + 1)),
        b_eq=[1.0],
        method="highs",
    )
    assert found.status == 0
    return -found.fun


@pytest.mark.parametrize(("m", "r", "v"), [(12, 12, 12), (12, 10, 9), (40, 12, 12)])
def test_gdp_is_what_the_linear_program_says(m, r, v):
    """At the bound the largest possible tail is the level: the recursion is the optimum."""
    mu = float(one_run_gdp(m, r, v, confidence=0.8))
    assert mu > 0.1
    assert largest_tail(m, r, v, mu) == pytest.approx(0.2, rel=3e-3)


def test_gdp_covers_gaussian_games_and_beats_epsilon_in_strength():
    """2000 games of 500 canaries, each seen once through N(+-mu / 2, 1); the 50 surest are guessed.

    At 90 % the bound may exceed mu in 200 games; binom.sf(270, 2000, 0.1) = 3e-7. The delta = 1e-5
    epsilon of the bound must beat that of the general theorem.
    """
    rng = np.random.default_rng(8)
    mu, games, m, r = 1.2, 2000, 500, 50
    member = rng.random((games, m)) < 0.5
    seen = rng.normal(size=(games, m)) + mu * (member - 0.5)
    surest = np.argsort(-np.abs(seen), axis=1)[:, :r]
    right = np.take_along_axis((seen > 0) == member, surest, axis=1).sum(axis=1)
    bound = one_run_gdp(m, r, right, confidence=0.9)
    assert np.sum(bound > mu) <= 270
    assert np.median(bound) > 0.5
    median = int(np.median(right))
    weak = one_run_epsilon(m, r, median, delta=1e-5, confidence=0.9)
    strong = float(one_run_gdp(m, r, median, confidence=0.9))
    excess = stats.norm.cdf(strong / 2 - weak / strong) - np.exp(weak) * stats.norm.cdf(
        -strong / 2 - weak / strong
    )
    assert excess > 1e-5  # so that its epsilon at delta = 1e-5 exceeds `weak`


@pytest.mark.parametrize(
    ("args", "options", "error", "words"),
    [
        ((0, 0, 0), {}, ValueError, "num_canaries"),
        ((10, 11, 5), {}, ValueError, "num_guesses"),
        ((10, 5, 6), {}, ValueError, "num_correct"),
        ((10, 5, 2.5), {}, ValueError, "num_correct"),
        ((10, 5, 2), {"confidence": 0.0}, ValueError, "confidence"),
        ((10, 5, 2), {"delta": 1.5}, ValueError, "delta"),
        ((10, 5, 2), {"delta": float("nan")}, ValueError, "delta"),
    ],
)
def test_bad_input_raises_by_name(args, options, error, words):
    with pytest.raises(error, match=words):
        one_run_epsilon(*args, **{"delta": 1e-5, **options})
