"""What does one Gaussian release cost? Closed forms, accurate in both tails.

With m(t) = Phi(-t) / phi(t) (Mills' ratio), t = epsilon/mu - mu/2 and u = t + mu, the profile of mu-Gaussian DP
(Dong, Roth, Su 2019, arXiv:1905.02383, Cor. 2.13; Balle and Wang 2018, arXiv:1805.06530) is

    delta(epsilon) = Phi(-t) - e^epsilon Phi(-u) = phi(t) (m(t) - m(u)),

since e^epsilon phi(u) = phi(t). Nothing overflows in this form, and m(t) - m(u) = integral over
[t, u] of 1 - s m(s), whose integrand is positive, so that a small mu does not cancel.

jax 0.10 in float64: `log_ndtr` is off by 3.5 % at 7.9 and `erfcx` returns 0 on [26.543, 26.642]; hence
Mills' ratio is computed here. All functions work on float64 scalars inside enable_x64.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["beta", "epsilon", "log_delta", "log_delta_bounds", "mills", "quantile"]

_LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)
# Laplace's continued fraction with 50 terms agrees with 40-digit mpmath to 1.2e-16 from 3 upwards;
# below, erfc times exp does to 1e-15 (tests/accounting/test_mu_gdp.py).
_SWITCH, _TERMS = 3.0, 50
_NODES, _WEIGHTS = (a / 2 for a in np.polynomial.legendre.leggauss(10))
# Relative error of a value of m or of 1 - s m: measured 1.5e-15, taken twice.
_RELATIVE = 3e-15
_NEWTON = 24  # from sqrt(2 log 1/delta) the slowest case of the test grid takes 11


def mills(t: Any) -> tuple[jax.Array, jax.Array]:
    """Returns m(t) = Phi(-t)/phi(t) and 1 - t m(t) > 0, for t >= -8 (below, m is clipped)."""
    t = jnp.asarray(t, jnp.float64)
    high = jnp.maximum(t, _SWITCH)
    rest = high
    for k in range(_TERMS, 1, -1):
        rest = high + k / rest
    rest = 1 / rest
    m_high = 1 / (high + rest)
    low = jnp.clip(t, -8.0, _SWITCH)
    m_low = math.sqrt(math.pi / 2) * jax.lax.erfc(low / math.sqrt(2)) * jnp.exp(low * low / 2)
    tail = t > _SWITCH
    return jnp.where(tail, m_high, m_low), jnp.where(tail, rest * m_high, 1 - low * m_low)


def _log_phi(t: Any) -> Any:
    return -t * t / 2 - _LOG_ROOT_2PI


def _mills_drop(t: Any, mu: Any) -> jax.Array:
    """Returns m(t) - m(t + mu) for t >= -3, without cancellation."""
    narrow = jnp.minimum(mu, 0.5)
    nodes = t + narrow * (0.5 + jnp.asarray(_NODES))
    small = narrow * jnp.sum(jnp.asarray(_WEIGHTS) * mills(nodes)[1])
    return jnp.where(mu <= 0.5, small, mills(t)[0] - mills(t + mu)[0])


@jax.custom_jvp
def log_delta(mu: Any, epsilon: Any) -> jax.Array:
    """Returns log delta(epsilon) of mu-Gaussian DP, mu >= 0, epsilon >= 0: good to a few ulp."""
    safe = jnp.where((mu > 0) & (mu < jnp.inf), mu, 1.0)
    t = jnp.where(mu > 0, epsilon / safe - safe / 2, 0.0)
    middle = jnp.maximum(t, -3.0)
    right = _log_phi(middle) + jnp.log(_mills_drop(middle, safe))
    # t < -3: delta = 1 - Phi(t) - phi(t) m(u), near 1.
    left_t = jnp.minimum(t, -3.0)
    missing = jnp.exp(_log_phi(left_t)) * (mills(-left_t)[0] + mills(left_t + safe)[0])
    value = jnp.where(t >= -3.0, right, jnp.log1p(-missing))
    value = jnp.where(mu == 0, -jnp.inf, jnp.where(mu == jnp.inf, 0.0, value))
    return jnp.where(jnp.isnan(mu) | jnp.isnan(epsilon) | (mu < 0), jnp.nan, value)


@log_delta.defjvp
def _log_delta_jvp(primals: Any, tangents: Any) -> Any:
    mu, epsilon = primals
    d_mu, d_epsilon = tangents
    value = log_delta(mu, epsilon)
    t = epsilon / mu - mu / 2
    scale = jnp.exp(_log_phi(t) - value)  # phi(t) / delta = 1 / (m(t) - m(u))
    return value, scale * (d_mu - mills(t + mu)[0] * d_epsilon)


def log_delta_bounds(mu: Any, epsilon: Any) -> tuple[jax.Array, jax.Array]:
    """Returns (lower, upper) around log delta(epsilon), the rounding of mu itself included."""
    value = log_delta(mu, epsilon)
    error = jnp.where((mu > 0) & (mu < jnp.inf), _error(mu, epsilon, value), 0.0)
    return value - error, jnp.minimum(value + error, 0.0)


def _error(mu: Any, epsilon: Any, value: Any) -> Any:
    """Returns a bound on the absolute rounding error of log_delta.

    exp and erfc: relative to t^2. t inherits 4 ulp of mu and of epsilon/mu, and log delta moves by
    phi(t)/delta (|d mu| + mu m(u) |d t|).
    """
    safe = jnp.where((mu > 0) & (mu < jnp.inf), mu, 1.0)
    t = epsilon / safe - safe / 2
    moved = safe * (1 + (safe + epsilon / safe) * mills(t + safe)[0])
    return _RELATIVE * (4 + t * t) + 1e-15 * moved * jnp.exp(_log_phi(t) - value)


@jax.custom_jvp
def epsilon(mu: Any, log_delta_target: Any) -> tuple[jax.Array, jax.Array]:
    """Returns (lower, upper) around the epsilon at which delta of mu-Gaussian DP is the target.

    log delta is concave and decreasing in t, so that Newton's method from the right stays on the
    right. The rounding errors of the value, of mu and of the last steps are added outward.
    """
    fine = (mu > 0) & (mu < jnp.inf) & (log_delta_target < 0) & (log_delta_target > -jnp.inf)
    m, target = jnp.where(fine, mu, 1.0), jnp.where(fine, log_delta_target, -1.0)

    def value_and_slope(t: Any) -> tuple[Any, Any]:
        value = log_delta(m, jnp.maximum(m * (t + m / 2), 0.0))
        return value, -m * jnp.exp(_log_phi(t) - value) * mills(t + m)[0]

    def step(state: Any) -> Any:
        count, t, _ = state
        value, slope = value_and_slope(t)
        move = (value - target) / jnp.where(slope < 0, slope, -1.0)
        following = jnp.clip(t - move, -m / 2, start)
        return count + 1, following, jnp.abs(following - t) > 1e-15 * (m + jnp.abs(t))

    start = jnp.sqrt(-2 * target)  # Phi(-t) <= e^(-t^2/2)

    def moving(state: Any) -> Any:
        return state[2] & (state[0] < _NEWTON)

    t = jax.lax.while_loop(moving, step, (0, start, target < 0))[1]
    value, slope = value_and_slope(t)
    root = m * (t + m / 2)
    # In epsilon: what Newton left over, and the rounding of log delta, of mu and of the last steps.
    per_log_delta = m / jnp.where(slope < 0, -slope, 1e-300)
    slack = per_log_delta * (jnp.abs(value - target) + _error(m, root, value))
    slack = slack + _RELATIVE * (m * m + jnp.abs(m * t))
    at_zero = log_delta_bounds(m, jnp.zeros_like(m))
    upper = jnp.where(at_zero[1] <= target, 0.0, root + slack)
    lower = jnp.where(at_zero[0] <= target, 0.0, root - slack)
    lower, upper = jnp.maximum(lower, 0.0), jnp.maximum(upper, 0.0)
    infinite = (mu == jnp.inf) | (log_delta_target == -jnp.inf)
    ends = [jnp.where(mu == 0, 0.0, jnp.where(infinite, jnp.inf, end)) for end in (lower, upper)]
    bad = jnp.isnan(mu) | (mu < 0) | ~(log_delta_target < 0)
    return jnp.where(bad, jnp.nan, ends[0]), jnp.where(bad, jnp.nan, ends[1])


@epsilon.defjvp
def _epsilon_jvp(primals: Any, tangents: Any) -> Any:
    mu, target = primals
    d_mu, d_target = tangents
    lower, upper = epsilon(mu, target)
    t = upper / mu - mu / 2
    m = mills(t + mu)[0]
    # implicit: d log delta = (d_mu - m(u) d_epsilon) / (m(t) - m(u))
    slope = (d_mu - jnp.exp(target - _log_phi(t)) * d_target) / m
    slope = jnp.where(upper > 0, slope, 0.0)
    return (lower, upper), (slope, slope)


def quantile(log_alpha: Any) -> jax.Array:
    """Returns t >= 0 with log Phi(-t) = log_alpha, log_alpha <= log(1/2), to a few ulp."""
    log_alpha = jnp.asarray(log_alpha, jnp.float64)
    target = jnp.clip(log_alpha, -1e300, -math.log(2))

    def step(_: Any, t: Any) -> Any:
        m = mills(t)[0]
        return jnp.maximum(t + (_log_phi(t) + jnp.log(m) - target) * m, 0.0)

    return jax.lax.fori_loop(0, _NEWTON, step, jnp.sqrt(-2 * target))


def _upper_quantile(alpha: Any) -> jax.Array:
    """Returns Phi^-1(1 - alpha) for alpha in (0, 1)."""
    high = alpha > 0.5
    t = quantile(jnp.log(jnp.where(high, 1 - alpha, alpha)))
    return jnp.where(high, -t, t)


def beta(mu: Any, alpha: Any) -> tuple[jax.Array, jax.Array]:
    """Returns (lower, upper) around Phi(Phi^-1(1 - alpha) - mu), the trade-off function."""
    inside = (alpha > 0) & (alpha < 1)
    z = _upper_quantile(jnp.where(inside, alpha, 0.5))
    x = jnp.where(mu < jnp.inf, z - mu, -jnp.inf)
    m, _ = mills(jnp.abs(x))
    tail = jnp.where(mu < jnp.inf, jnp.exp(_log_phi(x)) * m, 0.0)
    value = jnp.where(x <= 0, tail, 1 - tail)
    # |d beta| <= phi(x) |dx|, dx a few ulp of z and mu; 1 / m bounds phi / Phi.
    slack = jnp.where(
        mu < jnp.inf,
        2e-15 * value
        + jnp.exp(_log_phi(x)) * _RELATIVE * (2 + jnp.abs(z) + mu + 1 / (1e-3 + jnp.abs(z))),
        0.0,
    )
    lower, upper = jnp.maximum(value - slack, 0.0), jnp.minimum(value + slack, 1.0)
    ends = [
        jnp.where(alpha <= 0, jnp.where(mu < jnp.inf, 1.0, 0.0), jnp.where(alpha >= 1, 0.0, e))
        for e in (lower, upper)
    ]
    bad = jnp.isnan(mu) | (mu < 0) | jnp.isnan(alpha)
    return jnp.where(bad, jnp.nan, ends[0]), jnp.where(bad, jnp.nan, ends[1])
