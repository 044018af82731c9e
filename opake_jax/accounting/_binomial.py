"""Tails of the binomial distribution in log space, traceable.

1 - cdf underflows where the tail is small, and a cap whose overflow probability underflows would silently
be accounted for as no cap at all.
"""

import math
from typing import Any

from opake_jax._numerics import xp

__all__ = ["log_binomial_pmf", "log_binomial_tails"]

# Lentz's continued fraction needs about sqrt(n) terms near the mean: this serves n up to 1e8.
_MAX_TERMS = 20_000


def _stirling_error(n: Any) -> xp.Array:
    """Returns log(n!) - log(sqrt(2 pi n) (n/e)^n), n >= 1 (Loader 2000, "Fast and accurate computation")."""
    n = xp.maximum(xp.asarray(n, xp.float64), 1.0)
    direct = xp.lgamma(n + 1) - (n + 0.5) * xp.log(n) + n - 0.5 * math.log(2 * math.pi)
    s = 1 / (n * n)
    series = (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s / 1188)))) / n
    return xp.where(n < 16, direct, series)  # the next term is 691/(360360 n^11) < 2e-16


def _deviance(x: Any, mean: Any) -> xp.Array:
    """Returns x log(x/mean) + mean - x, which is what an exponent of the binomial costs."""
    d = (x - mean) / mean
    return mean * ((1 + d) * xp.log1p(d) - d)


def log_binomial_pmf(k: Any, n: Any, p: Any) -> xp.Array:
    """Returns log Pr[Bin(n, p) = k] for 0 < k < n, 0 < p < 1: 1e-13 where lgamma would lose 1e-10.

    Loader's saddle-point form; n up to 1e15.
    """
    rest = n - k
    return (
        _stirling_error(n)
        - _stirling_error(k)
        - _stirling_error(rest)
        - _deviance(k, n * p)
        - _deviance(rest, n * (1 - p))
        + 0.5 * (xp.log(n) - xp.log(k) - xp.log(rest) - math.log(2 * math.pi))
    )


def _log_tail_series(k: Any, n: Any, p: Any) -> xp.Array:
    """Returns log Pr[Bin(n, p) >= k], 0 < k <= n, by Lentz's continued fraction of the incomplete beta."""
    a, b, x = k, n - k + 1, p

    def term(state: Any) -> Any:
        m, c, d, value, _ = state
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + even * d)
        c = 1 + even / c
        value = value * c * d
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + odd * d)
        c = 1 + odd / c
        return m + 1, c, d, value * c * d, xp.abs(c * d - 1)

    d = 1 / (1 - (a + b) * x / (a + 1))
    start = (xp.ones_like(d), xp.ones_like(d), d, d, xp.ones_like(d))

    def going(state: Any) -> Any:
        return (state[4] > 4e-16) & (state[0] < _MAX_TERMS)

    _, _, _, value, left = xp.while_loop(going, term, start)
    value = xp.where(left > 1e-14, xp.nan, value)  # no convergence is no number
    inside = xp.where(k < n, k, 0.5 * n)
    pmf = xp.where(k < n, log_binomial_pmf(inside, n, x), n * xp.log(x))
    return pmf + xp.log1p(-x) + xp.log(value)


def log_binomial_tails(k: Any, n: Any, p: Any) -> tuple[xp.Array, xp.Array]:
    """Returns (log Pr[Bin(n, p) >= k], log Pr[Bin(n, p) < k]), each to 1e-12 relative.

    Args:
      k: float64 whole number, 1 <= k <= n.
      n: float64 whole number.
      p: in [0, 1].
    """
    k, n, p = (xp.asarray(v, xp.float64) for v in (k, n, p))
    edge = (p <= 0) | (p >= 1)
    x = xp.where(edge, 0.5, p)
    above = x < (k + 1) / (n + 3)  # the fraction converges fast on this side of the mean
    # Pr[Bin(n, x) < k] = Pr[Bin(n, 1-x) >= n-k+1]
    tail = _log_tail_series(xp.where(above, k, n - k + 1), n, xp.where(above, x, 1 - x))
    tail = xp.minimum(tail, 0.0)
    other = xp.log(-xp.expm1(tail))
    upper, lower = xp.where(above, tail, other), xp.where(above, other, tail)
    upper = xp.where(p <= 0, -xp.inf, xp.where(p >= 1, 0.0, upper))
    lower = xp.where(p <= 0, 0.0, xp.where(p >= 1, -xp.inf, lower))
    return xp.where(xp.isnan(p), xp.nan, upper), xp.where(xp.isnan(p), xp.nan, lower)
