"""On which side does an answer end up after a cast?

Answers are bounds. A bound that is cast to float32 by its user, or that leaves a float32 program, must
stay a bound: numbers are moved outward just far enough that rounding to float32 cannot cross the
float64 value.
"""

import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax._numerics import xp

__all__ = [
    "as_float64",
    "delta_above",
    "outward",
    "quotient_below",
    "to_program",
    "to_wide_program",
]

# Below float32's smallest normal number there is nothing to move to: such a value is kept in float64
# and, upward, becomes this number when a float32 program asks (subnormals are flushed to 0 there).
_TINY = 2.0**-126
_SMALLEST = 2.0**-1022  # of float64, likewise


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


def delta_above(log_delta: Any) -> Any:
    """Returns at least e^log_delta, at most 1: never 0 but for -inf, since 0 would claim pure DP."""
    delta = xp.minimum(xp.exp(log_delta) * (1 + 1e-15), 1.0)
    return xp.where(log_delta > -math.inf, xp.maximum(delta, _SMALLEST), delta)


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


def to_wide_program(value: jax.Array, sign: int) -> jax.Array:
    """Returns a traced float64 value moved outward as `outward` does, for a program that keeps float64."""
    number = jax.lax.stop_gradient(value)
    near = number.astype(jnp.float32)
    beyond = jnp.nextafter(near, jnp.float32(sign * jnp.inf)).astype(jnp.float64)
    near = near.astype(jnp.float64)
    past = jnp.nextafter((near + beyond) / 2, jnp.float64(sign * jnp.inf))
    size = jnp.abs(number)
    short = (sign * (near - number) < 0) & (size >= _TINY) & (size <= 3.4e38)
    return jnp.where(short, past, value)


def quotient_below(value: Any, by: int) -> Any:
    """Returns value / by, in float64, and not more: a noise multiplier for so many units.

    >>> quotient_below(3.0, 3), Fraction(quotient_below(0.1, 3)) <= Fraction(0.1) / 3
    (1.0, True)
    """
    if isinstance(value, jax.core.Tracer):
        return value / by * (1 - 2.0**-52)
    quotient = float(value) / by
    if math.isfinite(quotient) and Fraction(quotient) * by > Fraction(float(value)):
        return math.nextafter(quotient, 0.0)
    return quotient
