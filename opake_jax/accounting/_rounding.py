"""On which side does an answer end up after a cast?

Answers are bounds. A bound that is cast to float32 by its user, or that leaves a float32 program, must
stay a bound: numbers are moved outward just far enough that rounding to float32 cannot cross the
float64 value.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["as_float64", "outward", "to_program"]

# Below float32's smallest normal number there is nothing to move to: such a value is kept in float64
# and, upward, becomes this number when a float32 program asks (subnormals are flushed to 0 there).
_TINY = 2.0**-126


def as_float64(value: Any) -> Any:
    """Returns a concrete number as a float, a tracer as float64 (call it inside enable_x64)."""
    if isinstance(value, jax.core.Tracer):
        return value.astype(jnp.float64)
    return float(value)


def outward(value: float, sign: int) -> float:
    """Returns the nearest float64 number on the `sign` side of `value` that stays there in float32.

    Either `value` itself, or just past the midpoint of the two float32 numbers around it: at most
    3e-8 relative. Numbers below 2^-126 are returned as they are.

    >>> outward(4.377178095681225, +1), float(np.float32(outward(0.1, -1))) <= 0.1
    (4.377178095681225, True)
    """
    if not math.isfinite(value) or abs(value) < _TINY or abs(value) > 3.4e38:
        return value
    near = np.float32(value)
    if sign * (float(near) - value) >= 0:
        return value
    beyond = float(np.nextafter(near, np.float32(sign * np.inf)))
    return math.nextafter((float(near) + beyond) / 2, sign * math.inf)


def to_program(value: jax.Array, sign: int) -> jax.Array:
    """Returns a traced float64 value in the program's own float, rounded to the `sign` side.

    Call it inside enable_x64; the caller says by jax's flag outside what the program's float is.
    """
    near = jax.lax.stop_gradient(value).astype(jnp.float32)
    short = sign * (value - near.astype(jnp.float64)) > 0
    beyond = jnp.nextafter(near, jnp.float32(sign * jnp.inf))
    out = jnp.where(short, beyond, near)
    if sign > 0:
        out = jnp.where((value > 0) & (value < _TINY), jnp.float32(_TINY), out)
    return out
