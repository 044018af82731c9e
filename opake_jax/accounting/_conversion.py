"""What do Renyi divergences say about epsilon and delta?

Canonne, Kamath, Steinke 2020, arXiv:2004.00010, Prop. 12: delta <= e^((a-1)(r - epsilon)) (1 - 1/a)^(a-1) / a. The
formula of the moments accountant lacks the factor (1 - 1/a)^(a-1). Bretagnolle and Huber: the total
variation, delta(0), is at most sqrt(1 - e^-KL) <= sqrt(1 - e^-r).
"""

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["epsilons_of", "log_deltas_of"]


def _known(rdp: Any) -> jax.Array:
    """Returns the divergences, unknown ones (NaN) as inf: they never win a minimum."""
    return jnp.where(jnp.isnan(rdp), jnp.inf, rdp)


def epsilons_of(rdp: Any, orders: Any, log_delta: Any) -> jax.Array:
    """Returns the epsilon >= 0 that each order implies at float64 log delta; inf where it is unknown."""
    r = _known(rdp)
    finite = jnp.where(jnp.isfinite(r), r, 0.0)
    each = finite + jnp.log1p(-1 / orders) - (log_delta + jnp.log(orders)) / (orders - 1)
    each = jnp.where(jnp.isfinite(r), jnp.maximum(each, 0.0), jnp.inf)
    return jnp.where(2 * log_delta >= jnp.log(-jnp.expm1(-r)), 0.0, each)


def log_deltas_of(rdp: Any, orders: Any, epsilon: Any) -> jax.Array:
    """Returns the log delta <= 0 that each order implies at epsilon; 0 where it is unknown."""
    r = _known(rdp)
    finite = jnp.where(jnp.isfinite(r), r, 0.0)
    each = (orders - 1) * (finite - epsilon + jnp.log1p(-1 / orders)) - jnp.log(orders)
    variation = 0.5 * jnp.log(-jnp.expm1(-r))
    return jnp.where(jnp.isfinite(r), jnp.minimum(jnp.minimum(each, variation), 0.0), 0.0)
