"""How much of a gradient is kept?

A rule turns the norms of one unit's gradient, one for each group of leaves, into factors. Whatever the rule,
factor * norm <= clipping norm, after rounding.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from opake_jax._checks import check_real

__all__ = ["AutoS", "Fixed", "Rule"]

# Norms, factors and products are rounded: blocked float32 sums of 1e6 squares were seen off by 1e-7 relative, products
# by 2^-24 each. The bound is aimed at from below by this much.
_MARGIN = 2.0**-20


@dataclasses.dataclass(frozen=True)
class Fixed:
    """min(1, C / norm): the rule of DP-SGD (Abadi et al. 2016, arXiv:1607.00133)."""

    def factors(self, norm: jax.Array, limit: jax.Array) -> jax.Array:
        """Returns the factors for norms of shape (B, G) and clipping norms of shape (G,)."""
        return jnp.minimum(1.0, limit * (1.0 - _MARGIN) / norm)  # norm 0: inf, so 1


@dataclasses.dataclass(frozen=True)
class AutoS:
    """C / (norm + gamma): the rule of AUTO-S (Bu et al. 2022, arXiv:2206.07136)."""

    stability: float

    def factors(self, norm: jax.Array, limit: jax.Array) -> jax.Array:
        """Returns the factors for norms of shape (B, G) and clipping norms of shape (G,)."""
        return limit * (1.0 - _MARGIN) / (norm + self.stability)


Rule = Fixed | AutoS


def check_clipping_norm(value: Any) -> Any:
    """Returns `value`, a positive finite number or a traced scalar."""
    return check_real(
        "clipping_norm",
        value,
        low_open=True,
        remedy="it bounds each example's gradient norm, and 1.0 is a usual start",
    )
