"""Traced numbers are private to the last digit too: nothing is computed in the program's own float."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

import opake_jax.accounting as acc
from opake_jax.accounting import RDP, NeighboringRelation, gaussian, laplace, poisson

SMALLEST = 2.0**-126


def gaussian_delta(mu, epsilon):
    """Balle and Wang 2018, Theorem 8, in 40 digits."""
    with mpmath.workdps(40):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        near, far = mpmath.ncdf(mu / 2 - epsilon / mu), mpmath.ncdf(-mu / 2 - epsilon / mu)
        return near - mpmath.exp(epsilon) * far


def test_a_known_array_of_questions_stays_in_float64():
    """Through float32 an alpha of 1e-50 is 0, and beta 1."""
    alphas = np.array([1e-50, 1e-40, 1e-3, 0.3])
    for make in (gaussian, lambda s: poisson(gaussian(s), 0.5) * 2):
        _, up, _ = make(float(np.float32(0.05))).beta_bounds(alphas)
        found = jax.jit(lambda s, m=make: m(s).beta_at(alphas.reshape(2, 2)))(0.05)
        assert np.all(np.asarray(found, np.float64).ravel() <= up)
    epsilons = np.linspace(0.1, 9.1, 7)
    found = np.asarray(jax.jit(lambda s: gaussian(s).delta_at(epsilons))(1.0), np.float64)
    exact = [gaussian_delta(1, e) for e in epsilons]
    assert all(e <= f <= e * (1 + 2e-7) for e, f in zip(exact, found, strict=True))
    deltas = 10.0 ** np.linspace(-12, -1, 7)
    found = np.asarray(jax.jit(lambda s: gaussian(s).epsilon_at(deltas))(1.0), np.float64)
    assert np.all(found >= gaussian(1.0).epsilon_bounds(deltas)[0])
    curve = jax.jit(lambda s: gaussian(s).trade_off_curve())(0.3)
    _, up, _ = gaussian(float(np.float32(0.3))).beta_bounds(np.asarray(curve.alpha))
    assert np.all(np.asarray(curve.beta, np.float64) <= up)


def test_questions_may_be_a_list_of_tracers():
    found = jax.jit(lambda d: gaussian(1.0).epsilon_at([d, 2 * d]))(1e-5)
    assert found.shape == (2,)
    assert found[0] > found[1]
    tiny = jnp.bfloat16(0.01)  # it does not round the numbers beside it
    found = jax.jit(lambda d: (gaussian(3.0) * 4).epsilon_at([d, 1.005e-3]))(tiny)
    assert found[1] >= (gaussian(3.0) * 4).epsilon_bounds(1.005e-3)[0]
    assert jax.jit(lambda e: gaussian(1.0).delta_at([e, 100.0]))(1.0)[1] > 0  # 1e-2190
    assert jax.jit(lambda s: gaussian(s).epsilon_at([]))(1.0).shape == (0,)
    assert jax.jit(lambda s: gaussian(s).delta_at(range(3)))(1.0).shape == (3,)
    both = jax.jit(lambda s, p: acc.mixture_of_gaussians(1.0, [s], [p]).epsilon_at(1e-5))(1.0, 0.5)
    assert both >= acc.mixture_of_gaussians(1.0, [1.0], [0.5]).epsilon_bounds(1e-5)[0]
    for bad in (1.0, "12", [[1.0]], np.ones((1, 1)), np.ones(())):
        with pytest.raises(TypeError, match="sensitivities"):
            acc.mixture_of_gaussians(1.0, bad, [0.5])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_a_group_is_formed_in_float64(dtype):
    size = 7
    plain, clipped = (
        jax.jit(lambda s, m=make: m(s).epsilon_at(1e-5, group_size=size))
        for make in (gaussian, lambda s: acc.adaclip(s, 300.0))
    )
    pure = jax.jit(lambda s: laplace(s).epsilon_at(0.0, group_size=size))
    for sigma in np.append(np.random.default_rng(0).uniform(0.3, 30, 12), 300.0).astype(dtype):
        known = float(sigma)  # the count query's share of 300 overflows in half precision
        for ask, process in ((plain, gaussian(known)), (clipped, acc.adaclip(known, 300.0))):
            least = process.epsilon_bounds(1e-5, group_size=size)[0]
            assert float(ask(sigma)) >= least > 0
        assert Fraction(float(pure(sigma))) >= size / Fraction(known)


def test_a_group_of_an_eps_delta_mechanism_is_formed_in_float64():
    """delta (e^4 - 1)/(e - 1) = 3.1e-49 exceeds the 1e-49 that is asked for, which float32 has as 0."""
    ask = jax.jit(lambda e: acc.eps_delta(e, 1e-50).epsilon_at(1e-49, group_size=4))
    assert ask(1.0) == math.inf
    lower, upper, _ = jax.jit(lambda e: acc.eps_delta(e, 0.0).epsilon_bounds(0.0, group_size=7))(
        0.1
    )
    truth = 7 * float(np.float32(0.1))
    assert lower <= truth <= upper <= truth * (1 + 3e-7)
    ask = jax.jit(lambda s, q: (poisson(gaussian(s), q) * 50).epsilon_at(1e-6, group_size=5))
    s, q = float(np.float32(1.5)), float(np.float32(0.02))
    known = (poisson(gaussian(s), q) * 50).epsilon_bounds(1e-6, group_size=5)
    assert known[0] <= ask(1.5, 0.02) <= known[1] * 1.001


@pytest.mark.parametrize("relation", list(NeighboringRelation))
def test_known_groups_are_rounded_to_the_private_side(relation):
    for size in (3, 7, 10):
        for scale in np.random.default_rng(0).uniform(0.1, 9, 40):
            process = laplace(float(scale), relation=relation)
            shift = 2 if relation is NeighboringRelation.REPLACE_ONE else 1
            epsilon = process.epsilon_at(0.0, group_size=size)
            truth = shift * size / Fraction(float(scale))
            assert (
                truth * (1 - Fraction(1, 2**52))
                <= Fraction(epsilon)
                <= truth * (1 + Fraction(1, 2**50))
            )
            assert Fraction(process.grouped(size).noise_multiplier) * size <= Fraction(float(scale))


def test_counts_are_multiplied_and_added_in_float64():
    ask = jax.jit(lambda n: ((gaussian(10.0) * 3) * n).epsilon_at(1e-5))
    assert float(ask(jnp.bfloat16(171))) >= (gaussian(10.0) * 513).epsilon_bounds(1e-5)[0]
    ask = jax.jit(lambda n: ((laplace(10.0) * 3) * n).epsilon_at(0.0))
    assert float(ask(jnp.float16(1363))) >= 408.9
    ask = jax.jit(lambda n: (laplace(1e4) * n).epsilon_at(0.0))
    for n in (2**24 + 1, 2**30 + 63):  # no float32
        assert Fraction(float(ask(jnp.int32(n)))) >= Fraction(n, 10_000)
    ask = jax.jit(lambda n: (laplace(1e4) * 2**24 | laplace(1e4) * n).epsilon_at(0.0))
    assert float(ask(1.0)) >= (2**24 + 1) / 1e4
    ask = jax.jit(lambda n, m: (gaussian(10.0) * n * m * 2 | gaussian(10.0) * m).epsilon_at(1e-5))
    assert float(ask(3, 5.0)) >= (gaussian(10.0) * 35).epsilon_bounds(1e-5)[0]
    assert ask(3, 5.5) == math.inf
    assert ask(-3, -5.0) == math.inf  # their product is positive
    made = jax.jit(lambda n: (gaussian(3.0) * 3) * n | gaussian(3.0))(
        5
    )  # a process that leaves the program
    assert made.epsilon_at(1e-5) == (gaussian(3.0) * 16).epsilon_at(1e-5)
    doubled = jax.lax.fori_loop(0, 3, lambda _, p: p * 2, made * jnp.float32(1))
    assert doubled.epsilon_at(1e-5) == (gaussian(3.0) * 128).epsilon_at(1e-5)
    either = jax.lax.cond(
        made.counts[0] > 3, lambda: (gaussian(3.0) * 3) * made.counts[0], lambda: made
    )
    assert either.epsilon_at(1e-5) == (gaussian(3.0) * 48).epsilon_at(1e-5)
    slope = jax.grad(lambda n: ((gaussian(10.0) * 3) * n).epsilon_at(1e-5))(4.0)
    step = (gaussian(10.0) * 15).epsilon_at(1e-5) - (gaussian(10.0) * 9).epsilon_at(1e-5)
    assert slope == pytest.approx(step / 2, rel=0.02)
    counts = np.array([0, 1, 2**24 + 1])
    for accountant in (None, RDP(orders=(1.5, 8.0, 1e4))):
        found = jax.jit(
            lambda s, a=accountant: acc.epsilon_trajectory(gaussian(s), counts, 1e-5, accountant=a)
        )(1e4)
        least = [(gaussian(1e4) * int(n)).epsilon_bounds(1e-5)[0] for n in counts]
        assert np.all(np.asarray(found, np.float64) >= least)


@pytest.mark.parametrize("wide", [False, True])
def test_a_traced_risk_is_no_larger_than_the_bayes_error(wide):
    rng = np.random.default_rng(2)
    with jax.enable_x64(wide):
        ask = jax.jit(lambda s, p: gaussian(s).risk_at(p))
        for sigma, prior in zip(rng.uniform(0.5, 5, 40), rng.uniform(0.01, 0.99, 40), strict=True):
            s, p = (float(x) if wide else float(np.float32(x)) for x in (sigma, prior))
            less = min(Fraction(p), 1 - Fraction(p))
            with mpmath.workdps(40):
                exact = mpmath.mpf(less.numerator) / less.denominator
                odds = mpmath.log((1 - exact) / exact)
                truth = exact * (1 - gaussian_delta(1 / mpmath.mpf(s), odds))
                found = mpmath.mpf(float(ask(s, p)))
                assert truth * (1 - mpmath.mpf(3e-7)) <= found <= truth
        assert ask(50.0, 0.1) <= 0.1
        for nothing in (0.0, 1.0, math.nan, -0.1, 1.1):
            assert ask(1.0, nothing) == 0.0
        priors = jax.jit(lambda s: gaussian(s).risk_at(np.array([0.0, 0.2, 1.0])))(1.0)
        assert priors[0] == priors[2] == 0 < priors[1]


def test_answers_of_a_float64_program_stay_bounds_after_a_cast_to_float32():
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        ask = jax.jit(
            lambda s: (
                gaussian(s).epsilon_at(1e-5),
                gaussian(s).delta_at(1.0),
                gaussian(s).beta_at(0.1),
            )
        )
        for sigma in rng.uniform(0.3, 5, 60):
            known = gaussian(float(sigma))
            epsilon, delta, beta = (float(np.float32(x)) for x in ask(sigma))
            assert epsilon >= known.epsilon_bounds(1e-5)[0] * (1 - 1e-12)
            assert delta >= float(gaussian_delta(1 / mpmath.mpf(float(sigma)), 1.0))
            assert beta <= stats.norm.cdf(stats.norm.isf(0.1) - 1 / sigma) * (1 + 1e-12)


@pytest.mark.parametrize("wide", [False, True])
def test_a_traced_delta_is_never_nothing(wide):
    """0 would claim pure DP."""
    with jax.enable_x64(wide):
        orders = RDP(orders=(2.0, 50.0, 1e3))
        for accountant in (None, orders):
            ask = jax.jit(lambda s, a=accountant: gaussian(s).delta_at(100.0, accountant=a))
            assert 0 < ask(1.0) <= SMALLEST
        if not wide:  # the same program
            ask = jax.jit(lambda s: (poisson(gaussian(s), 0.1) * 3).delta_at(300.0))
            assert 0 < ask(1.0) <= 1e-30
        assert jax.jit(lambda s: laplace(s).delta_at(2.0))(1.0) == 0.0
        assert jax.jit(lambda n: (gaussian(1.0) * n).delta_at(1.0))(0.0) == 0.0


@pytest.mark.parametrize("accountant", [None, RDP(orders=(2.0, 50.0))])
@pytest.mark.parametrize("process", [gaussian(1.0), poisson(gaussian(1.0), 0.1) * 3])
def test_a_question_beyond_all_numbers_gets_the_private_side(process, accountant):
    ask = jax.jit(lambda e: process.delta_at(e, accountant=accountant))
    for epsilon in (1e16, 1e30, math.inf):
        assert 0 <= ask(epsilon) <= 1


def test_the_trade_off_of_many_randomised_responses():
    """Sums of thousands of tiny losses: kinks so close that lines through them differ by rounding alone."""
    rng = np.random.default_rng(3)
    for _ in range(40):
        epsilon, count = 10 ** rng.uniform(-2.5, 0), int(10 ** rng.uniform(0, 4))
        alpha = 10 ** rng.uniform(-30, -0.1)
        # Accused are those with at least k responses "in": k the least with a tail of at most alpha, then by a coin.
        p, q = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
        tail = stats.binom.sf(np.arange(-1, count + 1), count, q)  # P[X >= k], k = 0 ...
        k = int(np.searchsorted(-tail, -alpha))
        coin = (alpha - tail[k]) / stats.binom.pmf(k - 1, count, q) if k > 0 else 0.0
        beta = stats.binom.cdf(k - 1, count, p) - coin * stats.binom.pmf(k - 1, count, p)
        low, up, _ = (acc.eps_delta(epsilon) * count).beta_bounds(alpha)
        assert low - 1e-9 <= beta <= up + 1e-9
        assert up - low <= 1e-6
    # Losses above 700, whose lines are not computed: nothing is claimed of the upper end.
    alpha, count = 1e-310, 1700
    tail = stats.binom.logsf(np.arange(-1, count), count, 1 / (1 + math.e))
    k = int(np.searchsorted(-tail, -math.log(alpha)))
    least, most = stats.binom.cdf([k - 2, k - 1], count, 1 / (1 + math.exp(-1)))
    low, up, _ = (acc.eps_delta(1.0) * count).beta_bounds(alpha)
    assert 2 * k - count > 700
    assert 1e-3 < least <= most < 0.1
    assert low <= most
    assert up >= least
