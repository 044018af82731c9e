"""What does one Gaussian release cost? Closed forms, accurate in both tails.

With m(t) = Phi(-t) / phi(t) (Mills' ratio), t = epsilon/mu - mu/2 and u = t + mu, the profile of mu-Gaussian DP
(Dong, Roth, Su 2019, arXiv:1905.02383, Cor. 2.13; Balle and Wang 2018, arXiv:1805.06530) is

    delta(epsilon) = Phi(-t) - e^epsilon Phi(-u) = phi(t) (m(t) - m(u)),

since e^epsilon phi(u) = phi(t). Nothing overflows in this form, and m(t) - m(u) = integral over
[t, u] of 1 - s m(s), whose integrand is positive, so that a small mu does not cancel.

jax 0.10 in float64: `log_ndtr` is off by 3.5 % at 7.9 and `erfcx` returns 0 on [26.543, 26.642]; hence
Mills' ratio is computed here. All functions work on float64 scalars inside enable_x64.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from opake_jax._numerics import xp

__all__ = ["beta", "epsilon", "log_delta", "mills", "quantile", "upper_quantile"]

_LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)
# Laplace's continued fraction with 24 terms agrees with 40-digit mpmath to 1e-15 from 4.5 upwards; below, erfc times
# exp does to 2e-15, and 1 - t m to 3e-14 (tests/accounting/test_mu_gdp.py).
_SWITCH, _TERMS = 4.5, 24
_RELATIVE = 1e-13
_LARGE = 1e10  # mu: t is known to 1e-5
_NODES, _WEIGHTS = (a / 2 for a in np.polynomial.legendre.leggauss(10))
_NARROW = 0.5  # 10 Gauss nodes integrate 1 - s m(s) over an interval of that width to 1e-16
_NEWTON = 24  # from sqrt(2 log 1/delta) the slowest case of the tests takes 11


def mills(t: Any) -> tuple[xp.Array, xp.Array]:
    """Returns m(t) = Phi(-t)/phi(t) and 1 - t m(t) > 0, for t >= -8 (below, m is clipped)."""
    high = xp.maximum(t, _SWITCH)
    rest = high
    for k in range(_TERMS, 1, -1):
        rest = high + k / rest
    rest = 1 / rest
    m_high = 1 / (high + rest)
    low = xp.clip(t, -8.0, _SWITCH)
    m_low = math.sqrt(math.pi / 2) * xp.erfc(low / math.sqrt(2)) * xp.exp(low * low / 2)
    tail = t > _SWITCH
    return xp.where(tail, m_high, m_low), xp.where(tail, rest * m_high, 1 - low * m_low)


class _ByHand:
    """A function whose derivative is given: by `traced.defjvp`, where something is traced."""

    def __init__(self, known: Callable[..., Any]):
        self.known, self.traced = known, jax.custom_jvp(known)
        functools.update_wrapper(self, known)

    def __call__(self, *args: Any) -> Any:
        return (self.traced if xp.is_traced(*args) else self.known)(*args)


def _log_phi(t: Any) -> Any:
    return -t * t / 2 - _LOG_ROOT_2PI


def _profile(mu: Any, t: Any) -> tuple[xp.Array, xp.Array]:
    """Returns log delta at t = epsilon/mu - mu/2 and m(t + mu), for finite mu > 0."""
    narrow = xp.minimum(mu, _NARROW)
    middle, left = xp.maximum(t, -3.0), xp.minimum(t, -3.0)
    nodes = middle + narrow * np.reshape(0.5 + _NODES, (-1,) + (1,) * np.ndim(narrow))
    points = xp.stack([middle, middle + mu, -left, left + mu])
    m, slopes = mills(xp.concatenate([points, nodes]))  # one call: half of the compile time
    # A narrow step is integrated, a wide one does not cancel.
    drop = xp.where(mu <= _NARROW, narrow * (xp.asarray(_WEIGHTS) @ slopes[4:]), m[0] - m[1])
    right = _log_phi(middle) + xp.log(drop)
    # t < -3: delta = 1 - Phi(t) - phi(t) m(u), near 1.
    near_one = xp.log1p(-xp.exp(_log_phi(left)) * (m[2] + m[3]))
    return xp.where(t >= -3.0, right, near_one), xp.where(t >= -3.0, m[1], m[3])


def _usable(mu: Any) -> Any:
    """Returns mu, or 1 where it is no positive finite number."""
    return xp.where((mu > 0) & (mu < xp.inf), mu, 1.0)


@_ByHand
def log_delta(mu: Any, epsilon: Any) -> tuple[xp.Array, xp.Array]:
    """Returns (lower, upper) around log delta(epsilon) of mu-Gaussian DP, mu >= 0, epsilon >= 0."""
    safe = _usable(mu)
    t = epsilon / safe - safe / 2
    value, m_u = _profile(safe, t)
    error = _error(safe, t, value, m_u)
    ends = [
        xp.where(safe > _LARGE, rough, end)
        for end, rough in zip((value - error, value + error), _rough(safe, t), strict=True)
    ]
    ends = [
        xp.where(mu == 0, -xp.inf, xp.where(mu == xp.inf, 0.0, xp.minimum(end, 0.0)))
        for end in ends
    ]
    bad = xp.isnan(mu) | (mu < 0) | ~(epsilon >= 0)
    return xp.where(bad, xp.nan, ends[0]), xp.where(bad, xp.nan, ends[1])


@log_delta.traced.defjvp
def _log_delta_jvp(primals: Any, tangents: Any) -> Any:
    mu, epsilon = primals
    d_mu, d_epsilon = tangents
    ends = log_delta(mu, epsilon)
    safe = _usable(mu)
    t = epsilon / safe - safe / 2
    scale = xp.exp(_log_phi(t) - ends[1])  # phi(t) / delta = 1 / (m(t) - m(u))
    slope = scale * (d_mu - _profile(safe, t)[1] * d_epsilon)
    return ends, (slope, slope)


def _error(mu: Any, t: Any, value: Any, m_u: Any) -> Any:
    """Returns a bound on the absolute rounding error of log delta, that of mu included.

    exp and erfc: relative to t^2; for t < -3 that of 1 - delta <= e^(-t^2/2). t inherits 4 ulp of mu and of epsilon/mu,
    and log delta moves by phi(t)/delta (|d mu| + mu m(u) |d t|).
    """
    moved = mu * (1 + (mu + xp.abs(t + mu / 2)) * m_u)
    near = xp.maximum(t, -40.0)
    square = xp.where(t < -3, near * near * xp.exp(-near * near / 2), t * t)
    return _RELATIVE * (4 + square) + 1e-15 * moved * xp.exp(_log_phi(t) - value)


def _rough(mu: Any, t: Any) -> tuple[xp.Array, xp.Array]:
    """Returns (lower, upper) around log delta where mu is so large that t has few digits, or none.

    With s <= |t|: delta <= Phi(-s) right of 0, and delta >= 1 - 2 Phi(-s) left of it.
    """
    s = xp.abs(t) - 1e-15 * (mu + xp.abs(t))
    square = xp.minimum(s * s, 1e300) / 2
    right, left = (s > 0) & (t > 0), (s > 0) & (t < 0)
    lower = xp.where(left, xp.log1p(-xp.exp(-xp.maximum(square, 1e-9))), -xp.inf)
    return lower, xp.where(right, -square, 0.0)


@_ByHand
def epsilon(mu: Any, log_delta_target: Any) -> tuple[xp.Array, xp.Array]:
    """Returns (lower, upper) around the epsilon at which delta of mu-Gaussian DP is the target.

    log delta is concave and decreasing in t, so that Newton's method from the right stays on the
    right. The rounding errors of the value, of mu and of the last steps are added outward.
    """
    m, target = _usable(mu), xp.clip(log_delta_target, -1e300, -1e-300)
    start = xp.sqrt(-2 * target)  # Phi(-t) <= e^(-t^2/2)

    def slope_at(t: Any, value: Any, m_u: Any) -> Any:  # d log delta / d t = -mu m(u) phi(t)/delta
        return xp.minimum(-m * xp.exp(_log_phi(t) - value) * m_u, -1e-300)

    def step(state: Any) -> Any:
        count, t, _ = state
        value, m_u = _profile(m, t)
        following = xp.clip(t - (value - target) / slope_at(t, value, m_u), -m / 2, start)
        return count + 1, following, xp.abs(following - t) > 1e-15 * (m + xp.abs(t))

    def moving(state: Any) -> Any:
        return state[2] & (state[0] < _NEWTON)

    t = xp.while_loop(moving, step, (xp.zeros_like(start), start, target < 0))[1]
    value, m_u = _profile(m, t)
    root = m * (t + m / 2)
    # In epsilon: what Newton left over, and the rounding of log delta, of mu and of the last steps.
    left_over = xp.abs(value - target) + _error(m, t, value, m_u)
    slack = m * left_over / -slope_at(t, value, m_u) + _RELATIVE * (m * m + xp.abs(m * t))
    at_zero = log_delta(m, xp.zeros_like(m))
    upper = xp.where(at_zero[1] <= target, 0.0, root + slack)
    lower = xp.where(at_zero[0] <= target, 0.0, root - slack)
    lower, upper = xp.maximum(lower, 0.0), xp.maximum(upper, 0.0)
    infinite = (mu == xp.inf) | (log_delta_target == -xp.inf)
    ends = [xp.where(mu == 0, 0.0, xp.where(infinite, xp.inf, end)) for end in (lower, upper)]
    bad = xp.isnan(mu) | (mu < 0) | ~(log_delta_target < 0)
    return xp.where(bad, xp.nan, ends[0]), xp.where(bad, xp.nan, ends[1])


@epsilon.traced.defjvp
def _epsilon_jvp(primals: Any, tangents: Any) -> Any:
    mu, target = primals
    d_mu, d_target = tangents
    lower, upper = epsilon(mu, target)
    safe = _usable(mu)
    t = upper / safe - safe / 2
    # implicit: d log delta = (d_mu - m(u) d_epsilon) / (m(t) - m(u))
    slope = (d_mu - xp.exp(target - _log_phi(t)) * d_target) / _profile(safe, t)[1]
    slope = xp.where(upper > 0, slope, 0.0)
    return (lower, upper), (slope, slope)


def quantile(log_alpha: Any) -> xp.Array:
    """Returns t >= 0 with log Phi(-t) = log_alpha, log_alpha <= log(1/2), to a few ulp."""
    log_alpha = xp.asarray(log_alpha, xp.float64)
    target = xp.clip(log_alpha, -1e300, -math.log(2))

    def step(_: Any, t: Any) -> Any:
        m = mills(t)[0]
        return xp.maximum(t + (_log_phi(t) + xp.log(m) - target) * m, 0.0)

    return xp.loop(_NEWTON, step, xp.sqrt(-2 * target))


def upper_quantile(alpha: Any) -> xp.Array:
    """Returns Phi^-1(1 - alpha) for alpha in (0, 1)."""
    high = alpha > 0.5
    t = quantile(xp.log(xp.where(high, 1 - alpha, alpha)))
    return xp.where(high, -t, t)


def beta(mu: Any, alpha: Any) -> tuple[xp.Array, xp.Array]:
    """Returns (lower, upper) around Phi(Phi^-1(1 - alpha) - mu), the trade-off function."""
    inside = (alpha > 0) & (alpha < 1)
    z = upper_quantile(xp.where(inside, alpha, 0.5))
    x = xp.where(mu < xp.inf, z - mu, -xp.inf)
    m, _ = mills(xp.abs(x))
    tail = xp.where(mu < xp.inf, xp.exp(_log_phi(x)) * m, 0.0)
    value = xp.where(x <= 0, tail, 1 - tail)
    # |d beta| <= phi(x) |dx|; log alpha is off by 1e-16 of itself, z by that over the hazard, about z.
    moved = xp.exp(_log_phi(x)) * _RELATIVE * (2 + xp.abs(z) + mu)
    slack = xp.where(mu < xp.inf, _RELATIVE * value + moved, 0.0)
    lower, upper = xp.maximum(value - slack, 0.0), xp.minimum(value + slack, 1.0)
    ends = [
        xp.where(alpha <= 0, xp.where(mu < xp.inf, 1.0, 0.0), xp.where(alpha >= 1, 0.0, e))
        for e in (lower, upper)
    ]
    bad = xp.isnan(mu) | (mu < 0) | xp.isnan(alpha)
    return xp.where(bad, xp.nan, ends[0]), xp.where(bad, xp.nan, ends[1])
