"""The certified engine: brackets against independent values, closed forms and each other.

"reference" is tests/reference/accounting_reference.json: tilted FFT brackets of another method, with the
generators beside it. Closed forms of composed Gaussians: Balle and Wang 2018, by scipy and mpmath.
"""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from one_direction import GivenPair, one_direction
from scipy.optimize import brentq
from scipy.stats import norm

import opake_jax.accounting as acc
from opake_jax.accounting._evaluate import quietly
from opake_jax.accounting._gaussian import gaussian
from opake_jax.accounting._gaussian_pairs import GaussianMixturePair
from opake_jax.accounting._pairs import DiscretePair
from opake_jax.accounting._pld import PLD
from opake_jax.accounting._pld_bounds import answer
from opake_jax.accounting._pld_tilt import Query, Steps
from opake_jax.accounting._poisson import poisson
from opake_jax.types import NeighboringRelation

ENGINE = PLD()
NONE = np.zeros(0)


def subsampled(sigma, q, count):
    return ((poisson(gaussian(sigma), q), count),)


def release(sigma, count):
    """Gaussians asked of the engine itself, which the closed form would answer otherwise."""
    one = np.ones(1)
    pair = GaussianMixturePair(one, one, NONE, NONE, np.float64(sigma))
    return ((GivenPair(pair, NeighboringRelation.ADD_REMOVE), count),)


def gaussian_delta(mu, epsilon):
    m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
    return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def gaussian_epsilon(mu, delta):
    def f(e):
        return float(mpmath.log(gaussian_delta(mu, e))) - math.log(delta)

    return brentq(f, 0, mu * mu + 80 * mu, xtol=1e-13)


# sigma, q, T, delta, low and high of the reference (rows poisson_gaussian, W1 to W4 of accounting.md).
TABLED = [
    (1.0, 0.01, 1000, 1e-5, 1.828230, 1.828237),
    (0.8, 256 / 50000, 20000, 1e-6, 7.60985, 7.61000),
    (1.0, 0.01, 10_000_000, 1e-5, 1014.06, 1014.08),
    (20.0, 0.01, 1_000_000, 1e-12, 3.45187, 3.45193),
    (1000.0, 0.5, 1_000_000, 1e-9, 2.90967, 2.90975),
    (1.0, 0.01, 1000, 1e-100, 29.5984, 29.5992),
]


@pytest.mark.parametrize(("sigma", "q", "count", "delta", "low", "high"), TABLED)
def test_epsilon_brackets_meet_the_tabled_ones_and_are_tight(sigma, q, count, delta, low, high):
    lower, upper = ENGINE.epsilon_bounds(subsampled(sigma, q, count), delta)
    assert lower <= high
    assert upper >= low
    assert upper - lower <= 1e-4 * upper


# Losses of order q/sigma below a far supremum, -log(1-q) a step. Brackets of tests/accounting/lattice.py.
LARGE_SIGMA = [
    (1e6, 0.01, 1000, 1e-9, 7.427e-7, 7.431e-7),
    (29.3274, 0.257973, 6, 9.641e-13, 0.13815912, 0.13819187),
    (21.1574, 0.334380, 1, 7.525e-9, 0.07796524, 0.07805045),
    (13.1170, 0.0690916, 6, 1.5296e-9, 0.0674971, 0.0675358),
]


@pytest.mark.parametrize(("sigma", "q", "count", "delta", "low", "high"), LARGE_SIGMA)
def test_large_sigma_is_as_tight_as_any(sigma, q, count, delta, low, high):
    lower, upper = ENGINE.epsilon_bounds(subsampled(sigma, q, count), delta)
    assert lower <= high
    assert upper >= low
    assert upper - lower <= 1e-4 * upper


# sigma, q, epsilon of one step; the last two have epsilon near, and past, the supremum of "add", -log(1-q).
ONE_STEP = [
    (0.5, 0.001, 5e-4),
    (0.3, 1e-6, 1.0),
    (1.0, 0.001, 8.0),
    (0.5, 0.001, 0.001),
    (1.0, 0.3, 0.4),
]


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("sigma", "q", "epsilon"), ONE_STEP)
def test_one_step_meets_its_closed_form(sigma, q, epsilon, direction):
    # H_a((1-q) N(0) + q N(1) || N(0)) = q H_b(N(1) || N(0)), a = 1 - q + q b; the reverse is (1 - a (1-q)) H_b,
    # b = a q/(1 - a (1-q)) (Balle, Barthe, Gaboardi 2018, Thm 2).
    with mpmath.workdps(60):
        a, rate = mpmath.exp(epsilon), mpmath.mpf(q)
        weight = rate if direction == "remove" else 1 - a * (1 - rate)
        b = (a - 1 + rate) / rate if direction == "remove" else a * rate / weight
        inside = mpmath.log(b) if weight > 0 else 0
        truth = weight * gaussian_delta(1 / mpmath.mpf(sigma), inside) if weight > 0 else 0
    parts = ((one_direction(poisson(gaussian(sigma), q), direction), 1),)
    lower, upper = ENGINE.delta_bounds(parts, epsilon)
    assert lower <= truth <= upper
    assert upper - lower <= 1e-4 * upper
    if lower > 0:
        low, up = ENGINE.epsilon_bounds(parts, float(truth))
        assert low <= epsilon * (1 + 1e-15)
        assert up >= epsilon * (1 - 1e-15)


def test_delta_and_advantage_of_w1():
    parts = subsampled(1.0, 0.01, 1000)
    lower, upper = ENGINE.delta_bounds(parts, 3.0)
    assert 9.2218e-10 <= upper <= 9.2240e-10  # issue 2
    assert lower <= 9.2240e-10
    lower, upper = ENGINE.delta_bounds(parts, 0.0)
    assert 0.161016 <= upper <= 0.161034  # sources/gaussian_mechanism_opake.txt
    assert upper - lower <= 1e-4 * upper


def test_delta_is_the_inverse_of_epsilon():
    parts = subsampled(1.0, 0.01, 1000)
    for delta in (1e-3, 1e-8, 1e-30):
        epsilon = ENGINE.epsilon_bounds(parts, delta)
        assert ENGINE.delta_bounds(parts, epsilon[1])[0] <= delta
        assert ENGINE.delta_bounds(parts, epsilon[0])[1] >= delta


@pytest.mark.parametrize(("sigma", "count"), [(1.0, 1), (1.0, 1000), (30.0, 1), (5.0, 100)])
def test_brackets_hold_the_closed_form_of_composed_gaussians(sigma, count):
    mu = math.sqrt(count) / sigma
    for delta in (1e-5, 1e-12):
        lower, upper = ENGINE.epsilon_bounds(release(sigma, count), delta)
        truth = gaussian_epsilon(mu, delta)
        assert lower <= truth * (1 + 1e-12)
        assert upper >= truth * (1 - 1e-12)
        assert upper - lower <= 1e-4 * upper
    lower, upper = ENGINE.delta_bounds(release(sigma, count), 0.5)
    assert lower <= float(gaussian_delta(mu, 0.5)) <= upper


@pytest.mark.parametrize("sigma", [1.0, 0.4])
def test_beta_lies_below_and_above_the_closed_form(sigma):
    for alpha in (1e-8, 0.01, 0.3, 0.9):
        lower, upper = ENGINE.beta_bounds(release(sigma, 1), alpha)
        truth = norm.cdf(norm.isf(alpha) - 1 / sigma)
        assert truth * (1 - 2e-4) <= lower <= truth * (1 + 1e-12)
        assert upper >= truth * (1 - 1e-12)


def test_beta_of_w1_meets_the_reference():
    lower, upper = ENGINE.beta_bounds(subsampled(1.0, 0.01, 1000), 0.01)
    assert 0.97086 * (1 - 1e-4) <= lower <= 0.970876
    assert upper >= 0.970860


def test_a_large_delta_costs_nothing():
    # The advantage of this process is 0.161.
    assert ENGINE.epsilon_bounds(subsampled(1.0, 0.01, 1000), 0.2) == (0.0, 0.0)


def test_no_steps_and_no_participation_cost_nothing():
    assert ENGINE.epsilon_bounds(subsampled(1.0, 0.01, 0), 1e-5) == (0.0, 0.0)
    assert ENGINE.delta_bounds(subsampled(1.0, 0.01, 0), 0.0) == (0.0, 0.0)
    pair = GaussianMixturePair(np.zeros(1), np.ones(1), NONE, NONE, np.float64(1.0))
    parts = ((GivenPair(pair, NeighboringRelation.ADD_REMOVE), 1000),)
    assert ENGINE.epsilon_bounds(parts, 1e-5)[1] < 1e-9


@pytest.mark.parametrize("sigma", [1e-6, 1e-3, 1e6])
@pytest.mark.parametrize("q", [1e-300, 1e-9, 0.5, 1 - 1e-12])
@pytest.mark.parametrize("count", [1, 10**9])
def test_extreme_numbers_give_ordered_bounds_and_no_nan(sigma, q, count):
    engine = PLD(rtol=math.inf)  # the first level will do
    lower, upper = engine.epsilon_bounds(subsampled(sigma, q, count), 1e-320)
    assert 0 <= lower <= upper
    lower, upper = engine.delta_bounds(subsampled(sigma, q, count), 1.0)
    assert 0 <= lower <= upper <= 1


def test_an_infinite_loss_of_more_than_delta_has_no_epsilon():
    with np.errstate(divide="ignore"):
        pair = DiscretePair(np.log([0.99, 0.01]), np.log([1.0, 0.0]))
    parts = ((GivenPair(pair, NeighboringRelation.ADD_REMOVE), 3),)
    assert ENGINE.epsilon_bounds(parts, 1e-3)[1] == math.inf
    leak = 1 - 0.99**3
    assert ENGINE.delta_bounds(parts, 50.0)[1] == pytest.approx(leak, rel=1e-9)


@pytest.mark.slow
def test_different_steps_compose_in_any_order():
    # Reference row heterogeneous_poisson_gaussian_1.
    a, b = subsampled(1.0, 0.01, 500)[0], subsampled(1.2, 0.012, 500)[0]
    lower, upper = ENGINE.epsilon_bounds((a, b), 1e-5)
    assert lower <= 1.7165064678865054
    assert upper >= 1.7164986661978014
    assert upper - lower <= 1e-4 * upper
    assert ENGINE.epsilon_bounds((b, a), 1e-5) == pytest.approx((lower, upper), rel=1e-9)


@pytest.mark.slow
def test_a_trajectory_agrees_with_single_questions():
    counts = np.array([0, 1, 10, 700, 1000, 800, 100_000])
    step = subsampled(1.0, 0.01, 1)
    lower, upper = ENGINE.epsilon_trajectory(step, counts, 1e-5)
    assert upper[0] == 0.0
    assert np.all(np.diff(upper[np.argsort(counts)]) > 0)
    assert np.all(upper - lower <= 1e-4 * upper)
    for i in (1, 3, 4, 6):
        low, up = ENGINE.epsilon_bounds(subsampled(1.0, 0.01, counts[i]), 1e-5)
        assert lower[i] <= up
        assert low <= upper[i]


@pytest.mark.slow
def test_other_levels_and_tilts_never_contradict():
    from opake_jax.accounting import _pld_levels as levels
    from opake_jax.accounting._evaluate import quietly
    from opake_jax.accounting._pld_tilt import Query

    # The second level has other atoms, frequencies and windows; `size` moves window and band limit.
    rng = np.random.default_rng(1)
    for _ in range(12):
        sigma, q = rng.uniform(0.5, 4), 10 ** rng.uniform(-4, -0.5)
        count, log_delta = 10 ** rng.uniform(0, 6), rng.uniform(-60, -3)
        with quietly():
            problem = levels.Problem(subsampled(sigma, q, round(count)))
            found = []
            for level, size in ((0, 1.0), (0, 1e-3), (1, 1.0)):
                search = levels._Search(problem, lambda *_: 2.0, 0.0, math.inf, problem.directions)
                search.sizes = [size] * problem.directions
                search.look(
                    level,
                    problem._tails(log_delta),
                    lambda s, log_delta=log_delta: Query(log_delta, 0.0, True, s),
                )
                found.append(search.bounds())
        assert max(low for low, _ in found) <= min(up for _, up in found)


@pytest.mark.slow
@pytest.mark.as_shipped
def test_traced_bounds_and_gradients_in_a_float32_program():
    def bounds(sigma, q):
        return (acc.poisson(acc.gaussian(sigma), q) * 1000).epsilon_bounds(1e-5)[:2]

    assert not jax.config.jax_enable_x64
    both = jax.jit(lambda s, q: (bounds(s, q), jax.grad(lambda *a: bounds(*a)[1], (0, 1))(s, q)))
    (lower, upper), (d_sigma, d_q) = both(1.0, 0.01)
    assert lower <= 1.828237
    assert 1.828230 <= upper <= 1.8285
    # Finite differences of the concrete engine, whose brackets' widths cancel (accounting.md: -3.823).
    h = 1e-3

    def side(s, q):
        return ENGINE.epsilon_bounds(subsampled(s, q, 1000), 1e-5)[1]

    want = (side(1 + h, 0.01) - side(1 - h, 0.01)) / (2 * h)
    assert float(d_sigma) == pytest.approx(want, rel=2e-4)
    assert float(d_sigma) == pytest.approx(-3.823, rel=2e-4)
    want = (side(1.0, 0.01 + h / 100) - side(1.0, 0.01 - h / 100)) / (2 * h / 100)
    assert float(d_q) == pytest.approx(want, rel=2e-4)
    # What cannot be certified is the private end, whose slope is none: 0 would say that nothing matters there.
    for bad in (0.0, -1.0, math.nan):
        (_, upper), (slope, _) = both(bad, 0.01)
        assert upper == math.inf
        assert math.isnan(slope)


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_the_trivial_bound_of_a_traced_number_out_of_range_has_no_slope(bad):
    def ends(sigma):
        composed = acc.gaussian(sigma) * 10
        each = composed.epsilon_bounds(1e-5), composed.delta_bounds(1.0), composed.beta_bounds(0.1)
        return jnp.stack([end for bracket in each for end in bracket[:2]])

    value, slope = jax.jvp(jax.jit(ends), (bad,), (1.0,))
    assert value.tolist() == [0.0, math.inf, 0.0, 1.0, 0.0, 1.0]
    assert jnp.isnan(slope).all()
    value, slope = jax.jvp(jax.jit(ends), (5.0,), (1.0,))
    assert jnp.isfinite(slope).all()


@pytest.mark.slow
def test_a_traced_delta_of_nothing_or_no_number_has_no_epsilon():
    step = poisson(gaussian(1.0), 0.01)
    upper = jax.jit(lambda delta: ENGINE.epsilon_bounds(((step, 1000.0),), delta)[1])
    assert upper(1e-5) < 1.8285
    for delta in (0.0, -1.0, math.nan):
        assert upper(delta) == math.inf


@pytest.mark.parametrize("leaf", ["log_mass", "loss", "log_infinity"])
@pytest.mark.parametrize("row", [0, 1])
def test_a_known_number_that_is_none_gives_the_trivial_bound(leaf, row):
    """The sum of the largest losses, infinity if one is unknown; delta 1: a NaN is no small loss, and no small mass."""
    loss = np.linspace(-1.0, 1.0, 256)
    mass = -loss * loss - math.log(np.exp(-loss * loss).sum())
    good = Steps(
        np.stack([[mass, mass]]), np.stack([[loss, loss]]), np.array([-200.0]), np.array([50.0])
    )
    whole = np.array(getattr(good, leaf))
    whole[(0, row, 255) if leaf != "log_infinity" else 0] = math.nan
    with quietly():
        for query in (Query(math.log(1e-5), 0.0, True, 1.0), Query(-1.0, 1.0, False, 1.0)):
            usual, _ = answer(good, query, 3072)
            found, _ = answer(good._replace(**{leaf: whole}), query, 3072)
            if row == 0 or leaf == "log_infinity":  # the upper row, or the infinite mass
                most = 50.0 if leaf == "log_mass" else math.inf
                assert found.upper >= (most if query.solve else 0.0)
            assert found.upper >= usual.upper
            assert found.lower <= usual.lower + 1e-9
