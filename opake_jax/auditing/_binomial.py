"""Confidence bounds on a probability, from counts: Clopper and Pearson, rounded outward."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax._checks import check_real, require

__all__ = [
    "as_numbers",
    "check_confidence",
    "check_counts",
    "cpu_float64",
    "elementwise",
    "upper_bound",
]

# Log-odds beyond +-80 differ from 0 and 1 by 1e-35, out of reach of any count below 1e30.
_MAX_LOG_ODDS = 80.0
# Halving 160 that often leaves 1e-15, less than one ulp of the probability.
_HALVINGS = 58
# Relative error of jax's float64 betainc, measured against scipy for n = 10 ... 1e8, tails 1e-2 ... 1e-30:
# below 6e-15 n + 2e-14. Twice that is allowed for.
_TAIL_ERROR = (1.2e-14, 1e-12)


@functools.cache
def _cpu() -> jax.Device | None:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # the CPU backend was switched off by JAX_PLATFORMS
        return None


def cpu_float64(function: Callable[..., Any], *args: Any) -> Any:
    """Returns `function(*args)` as numpy values, computed in float64 on the CPU."""
    with jax.enable_x64(True), jax.default_device(_cpu()):
        return jax.device_get(function(*(jnp.asarray(a, jnp.float64) for a in args)))


def elementwise(function: Callable[..., Any], *args: Any, block: int = 32) -> np.ndarray:
    """Returns a jitted function of broadcast arrays.

    Equal rows are answered once (counts repeat), in a padded array whose length is `block` times a
    power of two, so that few shapes are compiled.
    """
    columns = np.broadcast_arrays(*args)
    rows = np.stack([np.ravel(c).astype(np.float64) for c in columns], axis=-1)
    rows, inverse = np.unique(rows, axis=0, return_inverse=True)
    size = block
    while size < len(rows):
        size *= 2
    rows = np.pad(rows, ((0, size - len(rows)), (0, 0)), mode="edge")
    return cpu_float64(function, *rows.T)[np.ravel(inverse)].reshape(columns[0].shape)


def upper_bound(successes: Any, trials: Any, level: Any) -> np.ndarray:
    """Returns the Clopper-Pearson upper bound on a success probability, rounded up.

    The smallest p with P[Binomial(trials, p) <= successes] <= level, so that a true probability
    above it would have given so few successes with probability at most `level`. A lower bound is
    1 - upper_bound(failures, trials, level).

    Args:
      successes: counts in [0, trials]; broadcast against the others.
      trials: counts of at least 1, below 1e9.
      level: one-sided error probability in (0, 1).

    Returns:
      Float64 array in (0, 1]; exactly 1 where every trial succeeded.

    Reference: Clopper and Pearson, 1934, Biometrika 26.
    """
    return elementwise(_upper_bound, successes, trials, level)


@jax.jit
def _upper_bound(successes: jax.Array, trials: jax.Array, level: jax.Array) -> jax.Array:
    failures = jnp.maximum(trials - successes, 1.0)  # successes = trials is answered at the end
    slope, floor = _TAIL_ERROR
    inflation = 1.0 + slope * trials + floor

    def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        tail = jax.scipy.special.betainc(failures, successes + 1.0, jax.nn.sigmoid(-middle))
        enough = tail * inflation <= level
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    start = jnp.full_like(level, _MAX_LOG_ODDS)
    _, high = jax.lax.fori_loop(0, _HALVINGS, halve, (-start, start))
    bound = jnp.minimum(jax.nn.sigmoid(high) * (1.0 + 1e-15), 1.0)  # 1e-15: the sigmoid's rounding
    return jnp.where(successes >= trials, 1.0, bound)


def check_confidence(confidence: Any) -> float:
    """Returns 1 - confidence, the error probability that the caller accepts."""
    check_real("confidence", confidence, low=0.0, high=1.0, low_open=True)
    return 1.0 - float(confidence)


def as_numbers(name: str, value: Any) -> np.ndarray:
    """Returns an array of integers or floats; TypeError names what is none."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # a ragged list, a key
        array = np.asarray(None)
    if jnp.issubdtype(array.dtype, jnp.floating):  # bfloat16 as well
        return array.astype(np.float64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}: {value!r}")
    return array


def check_counts(**counts: Any) -> list[np.ndarray]:
    """Returns the counts as float64 arrays of one shape: whole, finite, not negative, below 1e9."""
    arrays = []
    for name, value in counts.items():
        array = as_numbers(name, value).astype(np.float64)
        require(array.size > 0, f"{name} must hold at least one count")
        require(
            bool(np.all((array >= 0) & (array < 1e9) & (array == np.floor(array)))),
            f"{name} must hold whole numbers in [0, 1e9), got {value!r}",
        )
        arrays.append(array)
    shapes = {name: array.shape for name, array in zip(counts, arrays, strict=True)}
    try:
        return list(np.broadcast_arrays(*arrays))
    except ValueError:
        raise ValueError(f"these do not broadcast against one another: {shapes}") from None
