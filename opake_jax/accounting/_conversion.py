"""What do Renyi divergences say about epsilon and delta?

Canonne, Kamath, Steinke 2020, arXiv:2004.00010, Prop. 12: delta <= e^((a-1)(r - epsilon)) (1 - 1/a)^(a-1) / a. The
formula of the moments accountant lacks the factor (1 - 1/a)^(a-1). Bretagnolle and Huber: the total
variation, delta(0), is at most sqrt(1 - e^-KL) <= sqrt(1 - e^-r).
"""

from typing import Any

from opake_jax._numerics import xp

__all__ = ["epsilons_of", "log_deltas_of"]


def _known(rdp: Any) -> xp.Array:
    """Returns the divergences, unknown ones (NaN, or below 0, which none is) as inf: they never win a minimum."""
    return xp.where(rdp >= 0, rdp, xp.inf)


def epsilons_of(rdp: Any, orders: Any, log_delta: Any) -> xp.Array:
    """Returns the epsilon >= 0 that each order implies at float64 log delta; inf where it is unknown."""
    r = _known(rdp)
    finite = xp.where(xp.isfinite(r), r, 0.0)
    each = finite + xp.log1p(-1 / orders) - (log_delta + xp.log(orders)) / (orders - 1)
    each = xp.where(xp.isfinite(r), xp.maximum(each, 0.0), xp.inf)
    return xp.where(2 * log_delta >= xp.log(-xp.expm1(-r)), 0.0, each)


def log_deltas_of(rdp: Any, orders: Any, epsilon: Any) -> xp.Array:
    """Returns the log delta <= 0 that each order implies at epsilon; 0 where it is unknown."""
    r = _known(rdp)
    finite = xp.where(xp.isfinite(r), r, 0.0)
    each = (orders - 1) * (finite - epsilon + xp.log1p(-1 / orders)) - xp.log(orders)
    variation = 0.5 * xp.log(-xp.expm1(-r))
    return xp.where(xp.isfinite(r), xp.minimum(xp.minimum(each, variation), 0.0), 0.0)
