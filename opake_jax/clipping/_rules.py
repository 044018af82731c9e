"""How much of a gradient is kept?

A rule turns the norms of one unit's gradient, one for each group of leaves, into factors. Whatever the rule,
factor * norm <= clipping norm, after rounding.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from opake_jax._checks import check_real

__all__ = [
    "NORM_RANGE",
    "AutoS",
    "Fixed",
    "PerGroup",
    "Rule",
    "check_clipping_norm",
    "known_range",
    "per_group",
]

# Norms, factors and products are rounded: blocked float32 sums of 1e6 squares were seen off by 1e-7 relative, products
# by 2^-24 each. The bound is aimed at from below by this much.
_MARGIN = 2.0**-20

# Clipping norms: of entries below 1e-19 the float32 squares vanish, and what 1e10 such entries hide (1e-14) must be
# nothing beside the norm; squares of entries above 1e19 are infinite, and such a gradient drops out.
NORM_RANGE = (1e-8, 1e18)


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


@dataclasses.dataclass(frozen=True, eq=False)
class PerGroup:
    """Clipping norms by group of leaves; made by `per_group`."""

    patterns: tuple[str, ...]
    norms: tuple[Any, ...]

    def groups(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Returns the group of each leaf, given the leaves' paths; every leaf must be in exactly one."""
        found = []
        for name in names:
            hits = [g for g, p in enumerate(self.patterns) if re.fullmatch(p, name)]
            if len(hits) != 1:
                matched = ", ".join(repr(self.patterns[g]) for g in hits) or "no pattern"
                raise ValueError(
                    f"per_group must put every trainable leaf in exactly one group: {name!r} matches {matched} "
                    f"(patterns are regular expressions that match whole paths; there are {', '.join(map(repr, self.patterns))})"
                )
            found.append(hits[0])
        empty = [p for g, p in enumerate(self.patterns) if g not in found]
        if empty:
            raise ValueError(f"per_group: no trainable leaf matches {', '.join(map(repr, empty))}")
        return tuple(found)


def per_group(norms: Mapping[str, Any]) -> PerGroup:
    """Returns a clipping norm for each group of leaves, to pass as `clipping_norm` of `clipped_grad`.

    Each group of one unit's gradient is clipped to its own norm. The ClippedSum carries a sensitivity for each group and shares of the
    privacy budget that minimise the expected squared error of the whole update: share_g proportional to C_g sqrt(d_g), d_g the
    number of entries. The whole release costs what one Gaussian of the same noise multiplier costs.

    Args:
      norms: regular expression -> positive finite scalar (may be traced). Each trainable leaf's path, such as
        "blocks/0/attention/w", must be matched as a whole by exactly one.

    Raises:
      TypeError: `norms` is no mapping from strings, or a norm no number.
      ValueError: no group, a norm that is not positive and finite, an invalid expression. When called: a leaf in no group or in several.

    >>> grad_fn = clipped_grad(loss_fn, per_group({"embedding": 0.5, "blocks/.*": 1.0}))  # doctest: +SKIP
    """
    if not isinstance(norms, Mapping) or not all(isinstance(p, str) for p in norms):
        raise TypeError(f"norms must map regular expressions to clipping norms, got {norms!r}")
    if not norms:
        raise ValueError("norms is empty: per_group needs at least one group")
    for pattern, norm in norms.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        _check_norm(f"norms[{pattern!r}]", norm)
    return PerGroup(tuple(norms), tuple(norms.values()))


def check_clipping_norm(value: Any) -> Any:
    """Returns `value`: a positive finite number, a traced scalar, or a PerGroup."""
    if isinstance(value, PerGroup):
        return value
    return _check_norm("clipping_norm", value)


def _check_norm(name: str, value: Any) -> Any:
    low, high = NORM_RANGE
    return check_real(
        name,
        value,
        low=low,
        high=high,
        remedy="it bounds each example's gradient norm, and 1.0 is a usual start; scale the loss if need be",
    )


def known_range(limits: jax.Array) -> jax.Array:
    """Returns clipping norms with NaN in place of traced ones out of range: no sum, and no release."""
    low, high = NORM_RANGE
    return jnp.where((limits >= low) & (limits <= high), limits, jnp.nan)
