"""The Renyi accountant: quicker than PLD and looser."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax.accounting._conversion import epsilons_of, log_deltas_of
from opake_jax.accounting._evaluate import any_traced, evaluate_traced, float64_on_cpu

__all__ = ["RDP"]

# Quadrature errs by 1e-11 (tests/accounting/test_rdp.py); ten times that is added.
_OUTWARD = 1e-10


# Grids of order - 1, in equal ratios: below 1.01 log(1/delta)/(order - 1) exceeds any epsilon of use, 2^20 serves
# an epsilon of 1e-5. The coarse one is laid again between the neighbours of its best order, in steps of
# 0.9 %: near the phase transition of a small sample rate epsilon moves as much as the order does.
_COARSE = 1 + np.geomspace(0.01, 2.0**20, 64)
_RATIO = (_COARSE[1] - 1) / (_COARSE[0] - 1)
_BETWEEN = _RATIO ** np.linspace(-1.0, 1.0, 64)
_DENSE = 1 + np.geomspace(0.01, 2.0**20, 380)  # where one set of orders serves many questions


@dataclasses.dataclass(frozen=True)
class RDP:
    """Answers from Renyi divergences, minimised over orders.

    An upper bound under every relation; the lower bounds are 0. Use it for speed, inside a jit on hardware
    without complex128, or to compare.

    Attributes:
      orders: each above 1; None looks for the best one between 1.01 and 2^20.

    Raises:
      ValueError: an empty sequence, or an order that is NaN, infinite or not above 1.

    Reference: Mironov 2017, arXiv:1702.07476; conversion: Canonne, Kamath, Steinke 2020, arXiv:2004.00010.
    """

    orders: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.orders is None:
            return
        orders = np.asarray(self.orders)
        if orders.ndim != 1 or orders.size == 0 or orders.dtype.kind not in "fiu":
            raise ValueError(f"orders must be a non-empty sequence of numbers, got {self.orders!r}")
        if not (np.all(np.isfinite(orders)) and np.all(orders > 1)):
            raise ValueError(f"orders must be finite and above 1, got {self.orders!r}")
        object.__setattr__(self, "orders", tuple(float(a) for a in orders))

    def epsilon_bounds(self, parts: Any, delta: Any) -> tuple[Any, Any]:
        """Returns (0, upper) for epsilon at delta."""
        return 0.0, self._ask(_epsilon, parts, delta)

    def delta_bounds(self, parts: Any, epsilon: Any) -> tuple[Any, Any]:
        """Returns (0, upper) for delta at epsilon."""
        return 0.0, self._ask(_delta, parts, epsilon)

    def beta_bounds(self, parts: Any, alpha: Any) -> tuple[Any, Any]:
        """Returns (lower, 1 - alpha) for the trade-off function at alpha.

        With delta(epsilon) bounded, beta >= 1 - delta - e^epsilon alpha and e^-epsilon (1 - delta - alpha) for each
        epsilon; the best of a grid.
        """
        return self._ask(_beta, parts, alpha), 1 - alpha

    def epsilon_trajectory(self, parts: Any, counts: Any, delta: Any) -> tuple[Any, Any]:
        """Returns (zeros, upper), [counts], for the parts repeated so often."""
        args = (parts, _DENSE if self.orders is None else np.asarray(self.orders), delta, counts)
        if any_traced(args):
            upper = evaluate_traced(lambda a: (_trajectory(*a),), args, (+1,))[0]
            return jnp.zeros_like(upper), upper
        with float64_on_cpu():
            found = np.asarray(_TRAJECTORY(*_wide(args)))
        return np.zeros_like(found), found

    def _ask(self, core: Any, parts: Any, at: Any) -> Any:
        orders = None if self.orders is None else np.asarray(self.orders)
        args = (parts, orders, at)
        if any_traced(args):
            side = -1 if core is _beta else +1
            return evaluate_traced(lambda a: (core(*a),), args, (side,))[0]
        with float64_on_cpu():
            return float(_JITTED[core](*_wide(args)))


def _wide(args: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), args)


def _divergences(parts: Any, orders: Any) -> tuple[jax.Array, jax.Array]:
    """Returns total divergences, rounded up, and the orders, [orders]."""
    total = jnp.zeros_like(orders)
    for mechanism, count in parts:
        one = mechanism.renyi(orders)
        valid = mechanism.is_valid() & (count >= 0) & (jnp.floor(count) == count)
        one = jnp.where(count == 0, 0.0, one * count)
        total = total + jnp.where(valid, one, jnp.inf)
    return total * (1 + _OUTWARD), orders


def _refined(parts: Any, orders: Any, cost: Callable[[Any, Any], Any]) -> jax.Array:
    """Returns the smallest cost(divergence, order) over the given orders, or over good ones (None)."""
    if orders is not None:
        return jnp.min(cost(*_divergences(parts, orders)))

    def lay(_: Any, state: Any) -> Any:
        orders, best = state
        values = cost(*_divergences(parts, orders))
        lowest = jnp.min(values)
        # Not argmin: in float64 it cannot be lowered within a float32 program.
        winner = jnp.min(jnp.where(values <= lowest, orders, jnp.inf))
        winner = jnp.where(jnp.isfinite(winner), winner, 2.0)
        around = 1 + (winner - 1) * jnp.asarray(_BETWEEN)
        return jax.lax.stop_gradient(around), jnp.minimum(best, lowest)

    start = (jnp.asarray(_COARSE), jnp.asarray(jnp.inf, jnp.float64))
    return jax.lax.fori_loop(0, 2, lay, start)[1]


def _epsilon(parts: Any, orders: Any, delta: Any) -> jax.Array:
    log_delta = jnp.log(delta)
    value = _refined(parts, orders, lambda r, a: epsilons_of(r, a, log_delta))
    return jnp.where((delta >= 0) & (delta < 1), value, jnp.nan)


def _delta(parts: Any, orders: Any, epsilon: Any) -> jax.Array:
    value = _refined(parts, orders, lambda r, a: log_deltas_of(r, a, epsilon))
    return jnp.where(epsilon >= 0, jnp.exp(value), jnp.nan)


def _beta(parts: Any, orders: Any, alpha: Any) -> jax.Array:
    total, orders = _divergences(parts, jnp.asarray(_DENSE) if orders is None else orders)
    # Where 1 - delta - e^epsilon alpha is largest, epsilon <= log(1/alpha).
    grid = np.concatenate([np.zeros(1), np.geomspace(1e-4, 1.0, 400)])
    epsilons = grid * jnp.minimum(-jnp.log(jnp.maximum(alpha, 1e-300)), 700.0)
    log_delta = jax.vmap(lambda e: jnp.min(log_deltas_of(total, orders, e)))(epsilons)
    rest = -jnp.expm1(log_delta)
    lines = jnp.maximum(rest - jnp.exp(epsilons) * alpha, jnp.exp(-epsilons) * (rest - alpha))
    best = jnp.max(jnp.where(jnp.isnan(lines), 0.0, lines))
    return jnp.where(jnp.isnan(alpha), jnp.nan, jnp.clip(best * (1 - 1e-12), 0.0, 1.0))


def _trajectory(parts: Any, orders: Any, delta: Any, counts: Any) -> jax.Array:
    total, orders = _divergences(parts, orders)

    def at(count: Any) -> jax.Array:
        valid = (count >= 0) & (jnp.floor(count) == count)
        spent = jnp.where(count == 0, 0.0, total * count)
        each = epsilons_of(spent, orders, jnp.log(delta))
        return jnp.where(valid & (delta >= 0) & (delta < 1), jnp.min(each), jnp.nan)

    return jax.vmap(at)(counts)


_JITTED = {core: jax.jit(core) for core in (_epsilon, _delta, _beta)}
_TRAJECTORY = jax.jit(_trajectory)
