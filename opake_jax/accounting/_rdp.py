"""The Renyi accountant: quicker than PLD and looser."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from opake_jax._numerics import xp
from opake_jax.accounting._conversion import epsilons_of, log_deltas_of
from opake_jax.accounting._evaluate import any_traced, evaluate_each, evaluate_traced, quietly
from opake_jax.accounting._pld_levels import Problem
from opake_jax.accounting._pld_tilt import Query
from opake_jax.accounting._rounding import delta_above

__all__ = ["RDP"]

# Quadrature errs by 1e-11 (tests/accounting/test_rdp.py); ten times that is added.
_OUTWARD = 1e-10


# Grids of order - 1, in equal ratios: below 1.01 log(1/delta)/(order - 1) exceeds any epsilon of use, 2^20 serves
# an epsilon of 1e-5. The coarse one is laid again between the neighbours of its best order, twice, to steps of 0.25 %,
# of which the last takes every other: near the phase transition of a small sample rate epsilon moves as much as the
# order does. Lengths are multiples of the processor's lanes, and equal, so that one program serves twice.
_COARSE = 1 + np.geomspace(0.01, 2.0**20, 32)
_REACH = math.log((_COARSE[1] - 1) / (_COARSE[0] - 1))
_BETWEEN = np.linspace(-1.0, 1.0, 32)
_TILTS = np.geomspace(1e-4, 1.0, 40)  # of the largest of use
_CLOSER = (_TILTS[1] / _TILTS[0]) ** np.linspace(-1.0, 1.0, 16)  # between neighbours
_CLOSEST = (_CLOSER[1] / _CLOSER[0]) ** np.linspace(-1.0, 1.0, 16)
_FLAT = 2e-3  # of a cost: what neighbours of the best order may cost more
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
            return xp.zeros_like(upper), upper
        with quietly():
            found = _trajectory(*_wide(args))
        return np.zeros_like(found), found

    def _ask(self, core: Any, parts: Any, at: Any) -> Any:
        orders = None if self.orders is None else np.asarray(self.orders)
        if any_traced((parts, at)):

            def asked(arguments: Any) -> Any:
                (parts, orders), at = arguments
                return (core(parts, orders, at),)

            side = -1 if core is _beta else +1
            return evaluate_each(asked, (parts, orders), at, (side,))[0]
        with quietly():
            return float(core(*_wide((parts, orders, at))))


def _wide(args: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), args)


def _divergences(parts: Any, orders: Any, rough: bool = False) -> tuple[xp.Array, xp.Array]:
    """Returns total divergences, rounded up (or rough ones, which bound nothing), and the orders, [orders]."""
    total = xp.zeros_like(orders)
    for mechanism, count in parts:
        one = mechanism.rough_renyi(orders) if rough else mechanism.renyi(orders)
        valid = mechanism.is_valid() & (count >= 0) & (xp.floor(count) == count)
        one = xp.where(count == 0, 0.0, one * count)
        total = total + xp.where(valid, one, xp.inf)
    return total * (1 + _OUTWARD), orders


def _refined(parts: Any, orders: Any, cost: Callable[[Any, Any], Any], query: Query) -> xp.Array:
    """Returns the smallest cost(divergence, order) over the given orders, or over good ones (None)."""
    if orders is None and not any_traced((parts, query)):
        found = _by_law(parts, cost, query)
        if found is not None:
            return found
    if orders is not None:
        return xp.min(cost(*_divergences(parts, orders)))

    # Where the best order lies, rough divergences tell; what it costs, exact ones.
    def narrow(_: Any, state: Any) -> Any:
        orders, reach = state
        values = cost(*_divergences(parts, orders, rough=True))
        # Not argmin: in float64 it cannot be lowered within a float32 program.
        winner = xp.min(xp.where(values <= xp.min(values), orders, xp.inf))
        winner = xp.fixed(xp.where(xp.isfinite(winner), winner, 2.0))
        finer = 1 + (winner - 1) * xp.exp(reach * _BETWEEN)
        return finer, reach * (_BETWEEN[1] - _BETWEEN[0])

    orders, _ = xp.loop(2, narrow, (_COARSE, np.float64(_REACH)))
    return xp.min(cost(*_divergences(parts, orders[::2])))


def _by_law(parts: Any, cost: Callable[[Any, Any], Any], query: Query) -> Any:
    """Returns the smallest cost of known numbers, if the engine of `PLD` knows the losses' law well; else None.

    (a - 1) D_a is the cumulant of the loss at a - 1. A few nodes tell where the best order lies; what it costs, the
    law's own upper bound.
    """
    problem = Problem(parts)
    law = problem.smooth(0, query)
    if law is None:
        return None

    def costs_of(nodes: Any, tilts: Any) -> Any:
        return cost(nodes.cumulants(tilts)[0] / tilts, 1 + tilts)

    tilts = law.most * _TILTS
    costs = costs_of(law.rough(), tilts)
    best = int(np.argmin(costs))
    if not (0 < best < len(tilts) - 1 and np.isfinite(costs[best])):
        return None
    fine = law.fine()
    for closer in (_CLOSER, _CLOSEST):
        tilts = tilts[best] * closer
        costs = costs_of(fine, tilts)
        best = int(np.argmin(costs))
        if np.ptp(costs[max(best - 1, 0) : best + 2]) <= _FLAT * min(abs(costs[best]), 1.0):
            break
    divergence = law.larger_divergence(float(tilts[best])) if problem.reversible else None
    if divergence is None:  # then its nodes do not know the best order either
        return None
    return cost(np.float64(divergence * (1 + _OUTWARD)), 1 + tilts[best])


def _epsilon(parts: Any, orders: Any, delta: Any) -> xp.Array:
    log_delta = xp.log(delta)
    query = Query(log_delta, 0.0, True, 1.0)
    value = _refined(parts, orders, lambda r, a: epsilons_of(r, a, log_delta), query)
    return xp.where((delta >= 0) & (delta < 1), value, xp.nan)


def _delta(parts: Any, orders: Any, epsilon: Any) -> xp.Array:
    query = Query(-1.0, epsilon, False, 1.0)
    value = _refined(parts, orders, lambda r, a: log_deltas_of(r, a, epsilon), query)
    return xp.where(epsilon >= 0, delta_above(value), xp.nan)


def _beta(parts: Any, orders: Any, alpha: Any) -> xp.Array:
    total, orders = _divergences(parts, xp.asarray(_DENSE) if orders is None else orders)
    # Where 1 - delta - e^epsilon alpha is largest, epsilon <= log(1/alpha).
    grid = np.concatenate([np.zeros(1), np.geomspace(1e-4, 1.0, 400)])
    epsilons = grid * xp.minimum(-xp.log(xp.maximum(alpha, 1e-300)), 700.0)
    log_delta = xp.min(log_deltas_of(total, orders, epsilons[:, None]), 1)
    rest = -xp.expm1(log_delta)
    lines = xp.maximum(rest - xp.exp(epsilons) * alpha, xp.exp(-epsilons) * (rest - alpha))
    best = xp.max(xp.where(xp.isnan(lines), 0.0, lines))
    return xp.where(xp.isnan(alpha), xp.nan, xp.clip(best * (1 - 1e-12), 0.0, 1.0))


def _trajectory(parts: Any, orders: Any, delta: Any, counts: Any) -> xp.Array:
    total, orders = _divergences(parts, orders)

    times = counts[:, None]
    spent = xp.where(times == 0, 0.0, total * times)
    found = xp.min(epsilons_of(spent, orders, xp.log(delta)), 1)
    valid = (counts >= 0) & (xp.floor(counts) == counts) & (delta >= 0) & (delta < 1)
    return xp.where(valid, found, xp.nan)
