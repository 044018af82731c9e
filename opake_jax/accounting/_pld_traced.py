"""The same bounds at one fixed level, for numbers that are not known yet: under jit, vmap and grad.

Everything runs in float64 (`_evaluate.evaluate_traced` provides it and transposes derivatives). A bound that
could not be certified is the trivially valid one. Derivatives are implicit: of log delta at fixed epsilon, on
the contour that was found (delta does not depend on it), and nothing differentiates the search.
"""

import functools
from typing import Any

import jax

from opake_jax._numerics import xp
from opake_jax.accounting._evaluate import or_trivial
from opake_jax.accounting._pairs import Tails, dominating_pairs
from opake_jax.accounting._pld_bounds import answer
from opake_jax.accounting._pld_fourier import log_delta_on
from opake_jax.accounting._pld_tilt import (
    Query,
    Steps,
    relative_tails,
    rough_log_delta,
)
from opake_jax.accounting._pld_trade_off import beta_bounds, rest_on
from opake_jax.accounting._rounding import delta_above

__all__ = ["beta_core", "delta_core", "epsilon_core", "steps_of"]

_ATOMS, _FREQUENCIES = 2048, 4096


def steps_of(parts: Any, tails: Tails, size: int = _ATOMS) -> Steps:
    """Returns what is composed, with one leading axis more: the directions."""
    kinds = []
    for mechanism, _ in parts:
        pairs = dominating_pairs(mechanism)
        if len({jax.tree.structure(pair) for pair in pairs}) == 1:
            stacked = jax.tree.map(lambda *leaves: xp.stack(xp.asarray(leaves)), *pairs)
            kinds.append(jax.vmap(lambda pair: pair.atoms(size, tails))(stacked))
        else:
            atoms = [pair.atoms(size, tails) for pair in pairs]
            kinds.append(jax.tree.map(lambda *leaves: xp.stack(leaves), *atoms))
    directions = 2  # always, so that one kernel serves all; a joint pair stands twice
    full = [
        jax.tree.map(lambda leaf: xp.broadcast_to(leaf, (directions, *leaf.shape[1:])), kind)
        for kind in kinds
    ]
    counts = xp.stack([xp.asarray(count, xp.float64) for _, count in parts])
    mass, loss, infinity = (xp.stack(leaves, 1) for leaves in zip(*full, strict=True))
    return Steps(mass, loss, infinity, xp.broadcast_to(counts, (directions, *counts.shape)))


def _or_else(bound: Any, trivial: float) -> xp.Array:
    """Returns the bound, or the trivial one where it is no number."""
    return or_trivial(~xp.isnan(bound), bound, trivial)


@jax.jit
def epsilon_core(arguments: Any) -> tuple[xp.Array, xp.Array]:
    """Returns (lower, upper) around epsilon; `arguments` is (parts, delta), float64."""
    parts, delta = arguments
    log_delta = xp.log(delta)
    fixed = xp.fixed
    counts = sum(count for _, count in parts)
    steps = steps_of(parts, relative_tails(fixed(log_delta), fixed(counts)))

    def one(steps: Steps) -> tuple[xp.Array, xp.Array]:
        query = Query(fixed(log_delta), 0.0, True, 1.0)
        bounds, contour = answer(fixed(steps), query, _FREQUENCIES)
        value, slope = log_delta_on(steps, contour, bounds.upper, _FREQUENCIES)
        slope = fixed(slope)
        moved = (log_delta - value) / xp.where(slope < 0, slope, -xp.inf)
        change = xp.where(xp.isfinite(moved), moved - fixed(moved), 0.0)
        # Both ends of the bracket move alike.
        return xp.where(bounds.lower > 0, bounds.lower + change, 0.0), xp.where(
            bounds.upper > 0, bounds.upper + change, 0.0
        )

    lower, upper = jax.vmap(one)(steps)
    nothing = counts == 0
    return (
        xp.where(nothing, 0.0, _or_else(xp.max(lower), 0.0)),
        xp.where(nothing, 0.0, _or_else(xp.max(upper), xp.inf)),
    )


@jax.jit
def delta_core(arguments: Any) -> tuple[xp.Array, xp.Array]:
    """Returns (lower, upper) around delta; `arguments` is (parts, epsilon), float64."""
    parts, epsilon = arguments
    fixed = xp.fixed
    counts = sum(count for _, count in parts)
    wide = steps_of(fixed(parts), Tails(-1400.0, -1400.0))
    scale = xp.max(jax.vmap(functools.partial(rough_log_delta, epsilon=fixed(epsilon)))(wide))
    steps = steps_of(parts, relative_tails(scale, fixed(counts)))

    def one(steps: Steps) -> tuple[xp.Array, xp.Array]:
        query = Query(-1.0, fixed(epsilon), False, 1.0)
        bounds, contour = answer(fixed(steps), query, _FREQUENCIES)
        value, _ = log_delta_on(steps, contour, epsilon, _FREQUENCIES)
        change = xp.where(xp.isfinite(value), value - fixed(value), 0.0)
        return bounds.lower + change, bounds.upper + change

    lower, upper = jax.vmap(one)(steps)
    nothing = counts == 0
    return (
        xp.where(nothing, 0.0, _or_else(xp.exp(xp.max(lower)) * (1 - 4e-16), 0.0)),
        xp.where(nothing, 0.0, _or_else(delta_above(xp.max(upper)), 1.0)),
    )


@jax.jit
def beta_core(arguments: Any) -> tuple[xp.Array, xp.Array]:
    """Returns (lower, upper) around beta(alpha); `arguments` is (parts, alpha), float64.

    G is stationary at its maximum: the derivative is that of G at a fixed point.
    """
    parts, alpha = arguments
    fixed = xp.fixed
    counts = sum(count for _, count in parts)
    tails = relative_tails(xp.minimum(xp.log(fixed(alpha)), -1.0), fixed(counts))
    steps = steps_of(parts, tails)

    def look(first: Any) -> Any:
        return beta_bounds(fixed(steps), first, fixed(alpha), _FREQUENCIES)

    low, up, found = xp.map_over(look, xp.arange(2))
    best = xp.where(low[1] > low[0], 1, 0)
    binding = jax.tree.map(lambda leaf: leaf[best], found)
    chosen = jax.tree.map(lambda leaf: leaf[binding.direction], steps)
    t = binding.point
    rest = rest_on(chosen, binding.line, xp.abs(t), _FREQUENCIES)
    gain = xp.where(t >= 0, rest - xp.exp(t) * alpha, xp.exp(xp.minimum(t, 0.0)) * (rest - alpha))
    change = xp.where(xp.isfinite(gain), gain - fixed(gain), 0.0)
    lower, upper = xp.max(low), xp.min(up)
    lower, upper = _or_else(lower, 0.0), _or_else(upper, 1.0)
    nothing = counts == 0
    return (
        xp.where(nothing, 1 - alpha, xp.where(lower > 0, lower + change, 0.0)),
        xp.where(nothing, 1 - alpha, upper + change),
    )
