"""Is the noise normal? Tail counts of released noise against the normal law."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from opake_jax._checks import require
from opake_jax.auditing._binomial import cpu_float64
from opake_jax.auditing._points import check_scores

__all__ = ["normal_p_value"]

# From the centre out to where a billion draws leave a few.
_THRESHOLDS = np.arange(-12, 13) / 2.0


def normal_p_value(draws: Any) -> float:
    """Returns a p-value against "these are independent N(0, 1) draws", from counts beyond thresholds.

    For each of 25 thresholds from -6 to 6 the number of draws above it is binomial; the smallest of
    the 50 one-sided tail probabilities, times 50, is a valid p-value (Bonferroni). It sees a wrong
    scale or mean and tails that are cut (bfloat16 normal draws of jax end at 2.89) or fat.

    Args:
      draws: array of any shape, at least one entry: released noise over its claimed standard deviation.

    Returns:
      p in [0, 1]: below c with probability at most c if the claim is true.

    >>> normal_p_value(np.zeros(100)) < 1e-12
    True
    """
    (values,) = (np.ravel(x) for x in check_scores(draws=draws))
    require(values.size < 1e9, f"draws must have fewer than 1e9 entries, got {values.size}")
    above = values.size - np.searchsorted(np.sort(values), _THRESHOLDS, side="right")
    tail = cpu_float64(_smaller_tail, above, values.size, _THRESHOLDS)
    return float(min(1.0, 2 * tail.size * np.min(tail)))


@jax.jit
def _smaller_tail(count: jax.Array, trials: jax.Array, threshold: jax.Array) -> jax.Array:
    """Returns min(P[Bin <= count], P[Bin >= count]) for Bin of success probability Phi(-threshold)."""
    betainc = jax.scipy.special.betainc
    p, q = ndtr(-threshold), ndtr(threshold)
    rest = trials - count
    at_most = betainc(jnp.maximum(rest, 1.0), count + 1.0, q)
    at_least = betainc(jnp.maximum(count, 1.0), rest + 1.0, p)
    return jnp.minimum(
        jnp.where(rest > 0, at_most, 1.0),
        jnp.where(count > 0, at_least, 1.0),
    )
