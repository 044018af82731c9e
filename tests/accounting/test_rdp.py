"""Renyi divergences against exact binomial sums and quadrature in mpmath; the accountant above PLD's brackets."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpmath import binomial, exp, log, mp, mpf, quad

import opake_jax.accounting as acc
from opake_jax.accounting import RDP, NeighboringRelation, gaussian, poisson, rdp
from opake_jax.accounting._pld_levels import Problem
from opake_jax.accounting._pld_tilt import Query

SETTINGS = [(0.3, 0.5), (0.3, 1e-5), (1.0, 0.01), (4.0, 0.9), (20.0, 1e-3), (100.0, 1e-4)]
WHOLE = [2, 3, 17, 150, 1000]


def whole(sigma, q, a):
    """Returns the divergence at a whole order: Mironov, Talwar, Zhang 2019, Sec. 3.3."""
    q = mpf(q)
    moment = sum(
        binomial(a, k) * q**k * (1 - q) ** (a - k) * exp(mpf(k * k - k) / (2 * mpf(sigma) ** 2))
        for k in range(a + 1)
    )
    return log(moment) / (a - 1)


def fractional(sigma, q, a):
    """Returns the divergence by adaptive quadrature over all scales."""
    s, q, a = mpf(sigma), mpf(q), mpf(a)

    def f(x):
        ratio = 1 - q + q * exp((2 * x - 1) / (2 * s * s))
        return (ratio**a - 1 - a * (ratio - 1)) * exp(-x * x / (2 * s * s))

    x0 = s * s * log((1 - q) / q) + mpf(1) / 2
    ends = sorted({-12 * s, -4 * s, mpf(0), x0, a, a + 4 * s, a + 12 * s, 4 * s})
    return log(1 + quad(f, ends) / (s * mp.sqrt(2 * mp.pi))) / (a - 1)


# 600 digits of the exponent's range, 60 of the sum: A - 1 may be 1e-30.
def test_whole_orders():
    with mp.workdps(60):
        for sigma, q in SETTINGS:
            values = rdp.poisson_gaussian(sigma, q, WHOLE)
            for value, a in zip(values, WHOLE, strict=True):
                assert value == pytest.approx(float(whole(sigma, q, a)), rel=1e-9)


@pytest.mark.slow
def test_fractional_orders():
    with mp.workdps(40):
        for sigma, q in SETTINGS:
            orders = [1.01, 1.5, 5.3]
            values = rdp.poisson_gaussian(sigma, q, orders)
            for value, a in zip(values, orders, strict=True):
                assert value == pytest.approx(float(fractional(sigma, q, a)), rel=1e-8)


def test_the_edges_of_the_parameters():
    orders = [1.5, 2.0, 64.0]
    assert rdp.poisson_gaussian(1.0, 0.0, orders).tolist() == [0.0] * 3
    assert rdp.poisson_gaussian(2.0, 1.0, orders) == pytest.approx([a / 8 for a in orders])
    assert rdp.poisson_gaussian(0.0, 0.1, orders).tolist() == [math.inf] * 3
    assert isinstance(rdp.poisson_gaussian(1.0, 0.01, 16), float)
    grid = rdp.poisson_gaussian(np.array([[1.0], [2.0]]), np.array([0.01, 0.1, 0.2]), orders)
    assert grid.shape == (2, 3, 3)
    assert grid[1, 2] == pytest.approx(rdp.poisson_gaussian(2.0, 0.2, orders), rel=1e-12)


@pytest.mark.parametrize("orders", [[1.0], [0.5, 2.0], [math.nan, 2.0], [math.inf]])
def test_orders_out_of_range_are_errors(orders):
    with pytest.raises(ValueError, match="orders"):
        rdp.poisson_gaussian(1.0, 0.01, orders)
    with pytest.raises(ValueError, match="orders"):
        RDP(orders=orders)


def test_an_unknown_divergence_never_wins():
    orders = [2.0, 4.0, 8.0]
    assert rdp.to_epsilon([math.nan, 0.1, math.inf], orders, 1e-5) == pytest.approx(
        rdp.to_epsilon([0.1], [4.0], 1e-5)
    )
    assert rdp.to_epsilon([math.nan] * 3, orders, 1e-5) == math.inf
    assert rdp.to_delta([math.nan] * 3, orders, 1.0) == 1.0


def test_what_is_no_divergence_is_refused_or_never_wins():
    for wrong in ([-1e-9], [0.1, -5.0]):
        orders = [2.0, 4.0][: len(wrong)]
        with pytest.raises(ValueError, match="rdp"):
            rdp.to_epsilon(wrong, orders, 1e-5)
        with pytest.raises(ValueError, match="rdp"):
            rdp.to_delta(wrong, orders, 1.0)
    traced = jax.jit(lambda r: rdp.to_epsilon(r, np.array([2.0, 4.0]), 1e-5))
    assert traced(jnp.array([-5.0, jnp.nan])) == math.inf
    assert traced(jnp.array([-5.0, 0.1])) >= rdp.to_epsilon([0.1], [4.0], 1e-5)


# Canonne, Kamath, Steinke 2020, Prop. 12, evaluated by hand.
def test_conversion():
    r, a, delta = 0.3, 8.0, 1e-5
    epsilon = r + math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1)
    assert rdp.to_epsilon([r], [a], delta) == pytest.approx(epsilon, rel=1e-14)
    assert rdp.to_delta([r], [a], epsilon) == pytest.approx(delta, rel=1e-12)
    assert rdp.to_epsilon([r], [a], 0.0) == math.inf
    # Bretagnolle and Huber: total variation <= sqrt(1 - e^-r) = 0.51.
    assert rdp.to_epsilon([r], [a], 0.52) == 0.0
    assert rdp.to_epsilon(np.full((5, 1), r), [a], [delta] * 5).shape == (5,)


def test_a_float32_program_gets_the_same_value_rounded_up():
    orders = np.array([2.0, 16.0, 300.0])
    exact = rdp.poisson_gaussian(1.0, float(np.float32(1e-4)), orders)
    value = jax.jit(rdp.poisson_gaussian)(
        jnp.float32(1.0), jnp.float32(1e-4), jnp.asarray(orders, jnp.float32)
    )
    assert value.dtype == jnp.float32
    assert np.all(np.asarray(value, np.float64) >= exact)
    assert np.asarray(value) == pytest.approx(exact, rel=2e-7)


def test_gradient_is_the_finite_difference():
    orders = np.array([2.0, 4.0, 8.0, 16.0])

    def spent(sigma, q):
        return rdp.to_epsilon(1000 * rdp.poisson_gaussian(sigma, q, orders), orders, 1e-5)

    slopes = jax.jit(jax.grad(spent, (0, 1)))(1.0, 0.01)
    h = 1e-5
    expected = [
        (spent(1 + h, 0.01) - spent(1 - h, 0.01)) / (2 * h),
        (spent(1.0, 0.01 * (1 + h)) - spent(1.0, 0.01 * (1 - h))) / (2 * h * 0.01),
    ]
    assert [float(s) for s in slopes] == pytest.approx(expected, rel=1e-4)


# The phase transition lies at 5,400: orders in the thousands, none of which may be lost.
def test_the_best_order_may_be_in_the_thousands():
    process = poisson(gaussian(20.0), 0.001) * 10
    wanted = process.epsilon_at(1e-5, accountant=RDP(orders=np.linspace(4_000, 6_000, 400)))
    assert process.epsilon_at(1e-5, accountant=RDP()) <= wanted * 1.01


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 1.5, 40.0])
def test_order_two_at_any_rate(sigma):
    """Closed form: E_Q (P/Q)^2 = 1 + q^2 (e^(1/sigma^2) - 1)."""
    for rate in (1e-140, 1e-20, 1e-15, 1e-11, 1e-6, 0.1, 0.7, 1 - 1e-9):
        truth = math.log1p(rate**2 * math.expm1(1 / sigma**2))
        assert rdp.poisson_gaussian(sigma, rate, 2.0) == pytest.approx(truth, rel=1e-9)


def test_a_divergence_is_no_less_than_that_of_being_drawn():
    """A >= q^a e^(a(a-1)/(2 sigma^2)), of which high orders and rates near 1 consist."""
    for sigma in np.geomspace(0.3, 1e4, 12):
        for rate in (0.3, 0.6, 0.99, 1 - 1e-6, 1 - 1e-12):
            orders = 1 + np.geomspace(0.1, 3000.0, 40) * sigma
            found = rdp.poisson_gaussian(sigma, rate, orders)
            least = orders / (2 * sigma**2) + orders / (orders - 1) * math.log(rate)
            most = orders / (2 * sigma**2)
            assert np.all(found >= least * (1 - 1e-9) - 1e-15)
            assert np.all((found <= most * (1 + 1e-9)) | np.isinf(found))  # the Gaussian's own
            assert np.mean(np.isinf(found)) <= 0.25  # an order that is not understood


@pytest.mark.parametrize("sigma", [0.53, 1.5])
@pytest.mark.parametrize("rate", [1e-20, 1.3e-12, 1e-9])
def test_tiny_rates_at_whole_orders(sigma, rate):
    with mp.workdps(120):
        for order in (3, 12, 80):
            truth = float(whole(sigma, rate, order))
            assert rdp.poisson_gaussian(sigma, rate, float(order)) == pytest.approx(truth, rel=1e-7)


@pytest.mark.parametrize("steps", [30, 1000])
def test_the_best_order_is_found(steps):
    """Epsilon beside the least over 3,000 orders; near a phase transition it moves by more than the order does."""
    dense = tuple(1 + np.geomspace(0.01, 2.0**20, 3000))
    for sigma in (0.5, 1.0, 3.0, 10.0):
        for rate in (1e-4, 1e-3, 0.02, 0.2):
            process = acc.poisson(gaussian(sigma), rate) * steps
            least = process.epsilon_at(1e-5, accountant=RDP(orders=dense))
            assert process.epsilon_at(1e-5, accountant=RDP()) <= least * 1.004


def test_a_laws_divergence_lies_just_above_the_exact_one():
    """What `RDP()` takes of the engine of `PLD`, beside quadrature in x; the reverse of a pair counts, too."""
    rng, found = np.random.default_rng(3), 0
    for _ in range(60):
        sigma, rate = math.exp(rng.uniform(-1, 3)), 10 ** rng.uniform(-4, -0.05)
        relation = rng.choice(list(NeighboringRelation))
        inner = poisson(gaussian(sigma, relation=relation), rate)
        parts, query = ((inner, 10 ** rng.uniform(1, 5)),), Query(-20.0, 0.0, True, 1.0)
        law = Problem(parts).smooth(0, query)
        for tilt in () if law is None else law.most * np.array([0.01, 0.2, 1.0]):
            exact = parts[0][1] * inner.renyi(np.array([1 + tilt]))[0]
            if (upper := law.larger_divergence(float(tilt))) is not None and exact < math.inf:
                assert exact * (1 - 1e-10) <= upper <= exact * (1 + 2e-7)
                found += 1
    assert found > 100


def replaced(sigma, q, a):
    """Returns the divergence of (1-q) N(0) + q N(1) from its mirror image.

    By the trapezoidal rule in extended precision: the integrand is analytic but for zeros of the mixtures, pi sigma^2
    off the real line, so that a step of 1/8 of that errs by e^-50 of it.
    """
    s, q, a = (np.longdouble(v) for v in (sigma, q, a))
    end = 2 * a + 14 * s
    x, step = np.linspace(-end, end, int(end / (min(s, 3 * s * s) / 16)), retstep=True)
    rest = np.log1p(-q)
    up, down = (
        np.logaddexp(rest, np.log(q) + (side * 2 * x - 1) / (2 * s * s)) for side in (1, -1)
    )
    values = a * up + (1 - a) * down - x * x / (2 * s * s)
    most = values.max()
    integral = np.exp(values - most).sum() * step / (s * np.sqrt(2 * np.pi))
    return (most + np.log(integral)) / (a - 1)


@pytest.mark.parametrize(
    ("sigma", "rate", "order"),
    [(5.182, 1 - 1.6e-8, 206.9), (7.903, 0.98088, 108.05), (10.0, 0.99, 100.0), (0.1576, 1 - 3.4e-7, 1.0159),
     (0.1865, 0.015, 1.248), (0.115, 0.666, 1.0067), (0.1279, 2.9e-5, 1.0033), (1.0, 0.01, 8.5), (3.0, 0.5, 20.0)],
)  # fmt: skip
def test_replace_one_at_rates_near_one_and_little_noise(sigma, rate, order):
    """Its integrand has modes up to twice the order, and mass about both outermost means."""
    step = poisson(gaussian(sigma, relation=NeighboringRelation.REPLACE_ONE), rate)
    truth = float(replaced(sigma, rate, order))
    assert float(step.renyi(np.array([order]))[0]) == pytest.approx(truth, rel=1e-9)


def test_orders_are_found_where_the_law_does_not_know_them():
    """Tiny rates, whose cumulants have no digits on the law's nodes."""
    orders = 1 + np.geomspace(0.5, 3e4, 300)
    replace = NeighboringRelation.REPLACE_ONE
    for process, delta in (
        (poisson(gaussian(10.0, relation=replace), 1e-5) * 100_000, 1e-6),
        (poisson(gaussian(2.27, relation=replace), 8.26e-9) * 29_993, 1.09e-12),
        (poisson(gaussian(1.04), 4.028e-8) * 13_253_353, 6.655e-45),
    ):
        some = process.epsilon_at(delta, accountant=RDP(orders=orders))
        assert process.epsilon_at(delta, accountant=RDP()) <= some * 1.01


def test_a_traced_question_out_of_range_gets_the_private_side():
    step, rdp_at = poisson(gaussian(1.0), 0.1) * 5, RDP(orders=(2.0, 8.0))
    for process, accountant in (
        (gaussian(1.0), rdp_at),
        (gaussian(1.0), acc.PLD()),
        (step, rdp_at),
    ):
        epsilon = jax.jit(lambda d, p=process, a=accountant: p.epsilon_at(d, accountant=a))
        delta = jax.jit(lambda e, p=process, a=accountant: p.delta_at(e, accountant=a))
        assert [float(epsilon(x)) for x in (math.nan, -1.0, 2.0)] == [math.inf] * 3
        assert [float(delta(x)) for x in (math.nan, -1.0)] == [1.0, 1.0]


def test_closed_form_of_the_gaussian():
    # min over a of a/2 + log((a-1)/a) - (log delta + log a)/(a-1), by a dense scan.
    a = 1 + np.geomspace(1e-2, 1e3, 200_001)
    scan = np.min(a / 2 + np.log1p(-1 / a) - (math.log(1e-5) + np.log(a)) / (a - 1))
    value = gaussian(1.0).epsilon_at(1e-5, accountant=RDP())
    assert scan <= value <= scan * 1.001
    assert gaussian(1.0).epsilon_at(1e-5) <= value


@pytest.mark.parametrize("relation", list(NeighboringRelation))
def test_renyi_lies_above_the_lower_bound_of_pld(relation):
    base = gaussian(1.0, relation=relation)
    for process in (base * 3, poisson(base, 0.01) * 1000):
        upper = process.epsilon_at(1e-5, accountant=RDP())
        assert process.epsilon_bounds(1e-5)[0] <= upper <= 1.4 * process.epsilon_at(1e-5)


def test_a_mechanism_without_renyi_analysis_says_so():
    with pytest.raises(NotImplementedError, match="PLD"):
        acc.k_out_of_t(gaussian(1.0), k=1, t=10).epsilon_at(1e-5, accountant=RDP())
