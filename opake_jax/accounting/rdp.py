"""Renyi DP, the functional core: usable inside a user's own jit, vmap and grad, float32 or not.

`poisson_gaussian` gives exact divergences at every real order, `to_epsilon` and `to_delta` convert. The
divergences of steps add up. Everything is computed in float64 inside; concrete arguments give float64
(numpy), traced ones the program's float, rounded up.

>>> orders = [2.0, 4.0, 8.0, 16.0, 32.0]
>>> spent = 1000 * poisson_gaussian(1.0, 0.01, orders)
>>> 2.1077 < to_epsilon(spent, orders, 1e-5) < 2.1078
True
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax._numerics import xp
from opake_jax.accounting import _renyi
from opake_jax.accounting._conversion import epsilons_of, log_deltas_of
from opake_jax.accounting._evaluate import any_traced, evaluate_traced, quietly
from opake_jax.types import NeighboringRelation

__all__ = ["poisson_gaussian", "to_delta", "to_epsilon"]


def poisson_gaussian(noise_multiplier: Any, sample_rate: Any, orders: Any) -> Any:
    """Returns the Renyi divergences of one step of the Poisson-subsampled Gaussian, at each order.

    D_a((1-q) N(0, sigma^2) + q N(1, sigma^2) || N(0, sigma^2)), exact at every real order (1e-11 relative; see `_renyi`);
    this direction dominates the reverse.

    | input | answer |
    |---|---|
    | sample_rate 0 | 0 |
    | sample_rate 1 | order / (2 noise_multiplier^2) |
    | noise_multiplier 0 | inf |
    | an order whose integral is out of reach | inf |

    Args:
      noise_multiplier: in [0, inf); a number or an array.
      sample_rate: in [0, 1]; broadcast against `noise_multiplier`.
      orders: above 1; a number or an array. They carry no derivative.

    Returns:
      Shape `broadcast(noise_multiplier, sample_rate).shape + orders.shape`. Bad traced numbers give NaN.

    Raises:
      ValueError: a number outside its range, NaN included; order 1 is one.

    Reference: Mironov, Talwar, Zhang 2019, arXiv:1908.10530.
    """
    _check("noise_multiplier", noise_multiplier, lambda v: v >= 0, "in [0, inf)")
    _check("sample_rate", sample_rate, lambda v: (v >= 0) & (v <= 1), "in [0, 1]")
    _check("orders", orders, lambda v: v > 1, "above 1 (order 1 is the KL divergence, no bound)")
    shape = np.shape(orders)
    flat = jnp.ravel(orders) if any_traced(orders) else np.ravel(np.asarray(orders, np.float64))
    settings = np.broadcast_shapes(np.shape(noise_multiplier), np.shape(sample_rate))
    value = _over(_poisson_gaussian, settings, (noise_multiplier, sample_rate), flat)
    return _plain(value.reshape(settings + shape))


def to_epsilon(rdp: Any, orders: Any, delta: Any) -> Any:
    """Returns the epsilon that Renyi divergences imply at delta: an upper bound, at least 0.

    min over orders of r + log((a-1)/a) - (log delta + log a)/(a-1) (Canonne, Kamath, Steinke 2020,
    arXiv:2004.00010, Prop. 12); 0 where delta^2 > 1 - e^-r, which bounds the total variation.

    Args:
      rdp: total divergences at the orders, shape [..., orders]; inf and NaN never win the minimum.
      orders: above 1, shape [orders].
      delta: in [0, 1); a number, or broadcast against the leading shape of `rdp`. 0 gives inf.
    """
    _check("orders", orders, lambda v: v > 1, "above 1")
    _check("delta", delta, lambda v: (v >= 0) & (v < 1), "in [0, 1)")
    return _convert(_to_epsilon, rdp, orders, delta)


def to_delta(rdp: Any, orders: Any, epsilon: Any) -> Any:
    """Returns the delta that Renyi divergences imply at epsilon: an upper bound, at most 1.

    Args:
      rdp: total divergences at the orders, shape [..., orders]; inf and NaN never win the minimum.
      orders: above 1, shape [orders].
      epsilon: at least 0; a number, or broadcast against the leading shape of `rdp`.
    """
    _check("orders", orders, lambda v: v > 1, "above 1")
    _check("epsilon", epsilon, lambda v: v >= 0, "in [0, inf)")
    return _convert(_to_delta, rdp, orders, epsilon)


def _check(name: str, value: Any, valid: Callable[[Any], Any], allowed: str) -> None:
    """Raises if a concrete number, or an entry of a concrete array, is out of range."""
    if any_traced(value):
        return
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be real numbers {allowed}, got {value!r}")
    if not (np.all(np.isfinite(array)) and np.all(valid(array))):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def _poisson_gaussian(sigma: Any, rate: Any, orders: Any) -> xp.Array:
    """Returns the divergences for float64 scalars and orders of one axis."""
    excess = _renyi.sampled_excess(sigma, rate, orders, NeighboringRelation.ADD_REMOVE)
    return _renyi.divergence(excess, orders)


def _to_epsilon(rdp: Any, delta: Any, orders: Any) -> xp.Array:
    value = xp.min(epsilons_of(rdp, orders, xp.log(delta)))
    return xp.where((delta >= 0) & (delta < 1), value, xp.nan)


def _to_delta(rdp: Any, epsilon: Any, orders: Any) -> xp.Array:
    value = xp.exp(xp.min(log_deltas_of(rdp, orders, epsilon)))
    return xp.where(epsilon >= 0, value, xp.nan)


def _convert(core: Any, rdp: Any, orders: Any, at: Any) -> Any:
    """Returns core over the leading axes of rdp, broadcast against `at`."""
    orders = jnp.ravel(orders) if any_traced(orders) else np.ravel(np.asarray(orders, np.float64))
    rdp = rdp if any_traced(rdp) else np.asarray(rdp, np.float64)
    if not any_traced(rdp) and np.any(rdp < 0):
        raise ValueError(f"rdp must be divergences, none of which is below 0, got {rdp!r}")
    rdp = rdp.reshape(rdp.shape or (1,))
    if rdp.shape[-1] != orders.shape[0]:
        raise ValueError(
            f"rdp must end in the axis of the orders: got shapes {rdp.shape} and {orders.shape}"
        )
    return _plain(
        _over(core, np.broadcast_shapes(rdp.shape[:-1], np.shape(at)), (rdp, at), orders, 1)
    )


def _over(core: Any, shape: Any, numbers: Any, orders: Any, axes: int = 0) -> Any:
    """Returns core(first, second, orders) for each entry of `shape`; `first` has `axes` axes of its own."""
    first, second = numbers
    if not any_traced((first, second, orders)):
        first = np.asarray(first, np.float64)
        own = first.shape[first.ndim - axes :]
        flat = np.broadcast_to(first, shape + own).reshape((-1, *own))
        pairs = flat, np.broadcast_to(np.asarray(second, np.float64), shape).ravel()
        with quietly():
            value = np.array([core(*pair, orders) for pair in zip(*pairs, strict=True)])
        return value.reshape(shape + value.shape[1:])
    inner = jnp.shape(first)[jnp.ndim(first) - axes :]
    rows = jnp.broadcast_to(first, shape + inner).reshape((-1, *inner))
    rest = jnp.broadcast_to(second, shape).ravel()
    orders = jax.lax.stop_gradient(orders) if any_traced(orders) else orders

    def one(x: Any, y: Any) -> xp.Array:
        return evaluate_traced(lambda a: (core(*a),), (x, y, orders), (+1,))[0]

    found = jax.vmap(one)(rows, rest)
    return found.reshape(shape + found.shape[1:])


def _plain(value: Any) -> Any:
    """Returns a concrete scalar as a float, anything else as it is."""
    return float(value) if isinstance(value, np.ndarray) and value.ndim == 0 else value
