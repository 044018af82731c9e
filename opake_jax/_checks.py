"""Is this argument what it says it is?

On the floor of the house, beside `random`: every factory asks here before it does any work. Concrete bad values raise
with the argument's name, the value, the allowed range and a remedy. Traced values cannot raise and
pass; what they lead to is the caller's duty (inf or NaN, never something that looks more private).
"""

import math
import operator
from typing import Any

import jax
import numpy as np

from opake_jax.random import is_key

__all__ = ["check_count", "check_key", "check_probability", "check_real", "is_traced", "require"]


def is_traced(value: Any) -> bool:
    """Returns True if `value` is a tracer: its number is not known yet."""
    return isinstance(value, jax.core.Tracer)


def require(condition: bool, message: str) -> None:
    """Raises ValueError(message) unless the condition holds."""
    if not condition:
        raise ValueError(message)


def _as_float(name: str, value: Any, allowed: str) -> float:
    """Returns a concrete real scalar as a float; booleans, strings and arrays are no numbers."""
    wrong = f"{name} must be a real number {allowed}, got {value!r}"
    if isinstance(value, (bool, np.bool_, str, bytes, complex)) or value is None:
        raise TypeError(wrong)
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        if np.ndim(value) != 0:
            raise TypeError(
                f"{name} must be a scalar {allowed}, got an array of shape {value.shape}"
            )
        if not (
            jax.numpy.issubdtype(dtype, np.floating) or jax.numpy.issubdtype(dtype, np.integer)
        ):
            raise TypeError(wrong)
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        raise TypeError(wrong) from None


def check_real(
    name: str,
    value: Any,
    *,
    low: float = 0.0,
    high: float = math.inf,
    low_open: bool = False,
    high_open: bool = True,
    remedy: str = "",
) -> Any:
    """Returns `value`, a traced scalar or a concrete number within the interval.

    Args:
      name: the argument's name as the caller wrote it.
      value: what was passed.
      low: lower end; excluded if `low_open`.
      high: upper end; excluded if `high_open` (so that the default shuts infinity out).
      low_open: see `low`.
      high_open: see `high`.
      remedy: what to do instead, appended to the message.

    Raises:
      TypeError: not a real scalar (a boolean or a string is none).
      ValueError: NaN or outside the interval.
    """
    allowed = f"in {'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
    if is_traced(value):
        if np.ndim(value) != 0:
            raise TypeError(f"{name} must be a scalar {allowed}, got shape {value.shape}")
        return value
    number = _as_float(name, value, allowed)
    above = number > low if low_open else number >= low
    below = number < high if high_open else number <= high
    if not (above and below):  # a NaN fails both
        tail = f": {remedy}" if remedy else ""
        raise ValueError(f"{name} must be {allowed}, got {value!r}{tail}")
    return value


def check_probability(name: str, value: Any, *, remedy: str = "") -> Any:
    """Returns `value`, a scalar in [0, 1]."""
    return check_real(name, value, low=0.0, high=1.0, high_open=False, remedy=remedy)


_LARGEST_COUNT = 2**53


def check_count(
    name: str, value: Any, *, minimum: int = 0, maximum: int | None = None, remedy: str = ""
) -> Any:
    """Returns `value` as an int (traced values pass): a whole number of at least `minimum`.

    A float is accepted if it is whole (1e6); a boolean never.
    """
    maximum = _LARGEST_COUNT if maximum is None else maximum
    upper = "" if maximum == _LARGEST_COUNT else f" and at most {maximum}"
    allowed = f"a whole number of at least {minimum}{upper}"
    tail = f": {remedy}" if remedy else ""
    if is_traced(value):
        if np.ndim(value) != 0:
            raise TypeError(f"{name} must be {allowed}, got shape {value.shape}")
        return value
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be {allowed}, got {value!r}{tail}")
    try:
        number = operator.index(value)
    except TypeError:
        real = _as_float(name, value, f"({allowed})")
        if not (math.isfinite(real) and real == math.floor(real)):
            raise ValueError(f"{name} must be {allowed}, got {value!r}{tail}") from None
        number = int(real)
    if number > _LARGEST_COUNT:
        raise ValueError(f"{name} must be at most 2^53, beyond which float64 cannot count{tail}")
    if not minimum <= number <= maximum:
        raise ValueError(f"{name} must be {allowed}, got {value!r}{tail}")
    return number


def check_key(name: str, value: Any) -> jax.Array:
    """Returns `value`, a scalar typed threefry key."""
    if not is_key(value):
        raise TypeError(
            f"{name} must be a typed threefry key, got {type(value).__name__}: "
            "make one with opake_jax.random.key() (in a test: key(seed))"
        )
    return value
