"""The same bounds at one fixed level, for numbers that are not known yet: under jit, vmap and grad.

Everything runs in float64 (`_evaluate.evaluate_traced` provides it and transposes derivatives). A bound that
could not be certified is the trivially valid one. Derivatives are implicit: of log delta at fixed epsilon, on
the contour that was found (delta does not depend on it), and nothing differentiates the search.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from opake_jax.accounting._pairs import Tails, dominating_pairs
from opake_jax.accounting._pld_fourier import answer, log_delta_on
from opake_jax.accounting._pld_tilt import (
    Query,
    Steps,
    relative_tails,
    rough_log_delta,
)
from opake_jax.accounting._pld_trade_off import beta_bounds, rest_on

__all__ = ["beta_core", "delta_core", "epsilon_core", "steps_of"]

_ATOMS, _FREQUENCIES = 2048, 4096


def steps_of(parts: Any, tails: Tails, size: int = _ATOMS) -> Steps:
    """Returns what is composed, with one leading axis more: the directions."""
    kinds = []
    for mechanism, _ in parts:
        pairs = dominating_pairs(mechanism)
        if len({jax.tree.structure(pair) for pair in pairs}) == 1:
            stacked = jax.tree.map(lambda *leaves: jnp.stack(jnp.asarray(leaves)), *pairs)
            kinds.append(jax.vmap(lambda pair: pair.atoms(size, tails))(stacked))
        else:
            atoms = [pair.atoms(size, tails) for pair in pairs]
            kinds.append(jax.tree.map(lambda *leaves: jnp.stack(leaves), *atoms))
    directions = 2  # always, so that one kernel serves all; a joint pair stands twice
    full = [
        jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (directions, *leaf.shape[1:])), kind)
        for kind in kinds
    ]
    counts = jnp.stack([jnp.asarray(count, jnp.float64) for _, count in parts])
    mass, loss, infinity = (jnp.stack(leaves, 1) for leaves in zip(*full, strict=True))
    return Steps(mass, loss, infinity, jnp.broadcast_to(counts, (directions, *counts.shape)))


@jax.jit
def epsilon_core(arguments: Any) -> tuple[jax.Array, jax.Array]:
    """Returns (lower, upper) around epsilon; `arguments` is (parts, delta), float64."""
    parts, delta = arguments
    log_delta = jnp.log(delta)
    fixed = jax.lax.stop_gradient
    counts = sum(count for _, count in parts)
    steps = steps_of(parts, relative_tails(fixed(log_delta), fixed(counts)))

    def one(steps: Steps) -> tuple[jax.Array, jax.Array]:
        query = Query(fixed(log_delta), 0.0, True, 1.0)
        bounds, contour = answer(fixed(steps), query, _FREQUENCIES)
        value, slope = log_delta_on(steps, contour, bounds.upper, _FREQUENCIES)
        slope = fixed(slope)
        moved = (log_delta - value) / jnp.where(slope < 0, slope, -jnp.inf)
        change = jnp.where(jnp.isfinite(moved), moved - fixed(moved), 0.0)
        # Both ends of the bracket move alike.
        return jnp.where(bounds.lower > 0, bounds.lower + change, 0.0), jnp.where(
            bounds.upper > 0, bounds.upper + change, 0.0
        )

    lower, upper = jax.vmap(one)(steps)
    nothing = counts == 0
    return (
        jnp.where(nothing, 0.0, jnp.max(lower)),
        jnp.where(nothing, 0.0, jnp.max(upper)),
    )


@jax.jit
def delta_core(arguments: Any) -> tuple[jax.Array, jax.Array]:
    """Returns (lower, upper) around delta; `arguments` is (parts, epsilon), float64."""
    parts, epsilon = arguments
    fixed = jax.lax.stop_gradient
    counts = sum(count for _, count in parts)
    wide = steps_of(fixed(parts), Tails(-1400.0, -1400.0))
    scale = jnp.max(jax.vmap(functools.partial(rough_log_delta, epsilon=fixed(epsilon)))(wide))
    steps = steps_of(parts, relative_tails(scale, fixed(counts)))

    def one(steps: Steps) -> tuple[jax.Array, jax.Array]:
        query = Query(-1.0, fixed(epsilon), False, 1.0)
        bounds, contour = answer(fixed(steps), query, _FREQUENCIES)
        value, _ = log_delta_on(steps, contour, epsilon, _FREQUENCIES)
        change = jnp.where(jnp.isfinite(value), value - fixed(value), 0.0)
        return bounds.lower + change, bounds.upper + change

    lower, upper = jax.vmap(one)(steps)
    nothing = counts == 0
    return (
        jnp.where(nothing, 0.0, jnp.exp(jnp.max(lower)) * (1 - 4e-16)),
        jnp.where(nothing, 0.0, jnp.minimum(jnp.exp(jnp.max(upper)) * (1 + 4e-16), 1.0)),
    )


@jax.jit
def beta_core(arguments: Any) -> tuple[jax.Array, jax.Array]:
    """Returns (lower, upper) around beta(alpha); `arguments` is (parts, alpha), float64.

    G is stationary at its maximum: the derivative is that of G at a fixed point.
    """
    parts, alpha = arguments
    fixed = jax.lax.stop_gradient
    counts = sum(count for _, count in parts)
    tails = relative_tails(jnp.minimum(jnp.log(fixed(alpha)), -1.0), fixed(counts))
    steps = steps_of(parts, tails)

    def look(first: Any) -> Any:
        return beta_bounds(fixed(steps), first, fixed(alpha), _FREQUENCIES)

    low, up, found = jax.lax.map(look, jnp.arange(2))
    best = jnp.where(low[1] > low[0], 1, 0)
    binding = jax.tree.map(lambda leaf: leaf[best], found)
    chosen = jax.tree.map(lambda leaf: leaf[binding.direction], steps)
    t = binding.point
    rest = rest_on(chosen, binding.line, jnp.abs(t), _FREQUENCIES)
    gain = jnp.where(
        t >= 0, rest - jnp.exp(t) * alpha, jnp.exp(jnp.minimum(t, 0.0)) * (rest - alpha)
    )
    change = jnp.where(jnp.isfinite(gain), gain - fixed(gain), 0.0)
    lower, upper = jnp.max(low), jnp.min(up)
    lower = jnp.where(jnp.isnan(lower), 0.0, lower)
    upper = jnp.where(jnp.isnan(upper), 1.0, upper)
    nothing = counts == 0
    return (
        jnp.where(nothing, 1 - alpha, jnp.where(lower > 0, lower + change, 0.0)),
        jnp.where(nothing, 1 - alpha, upper + change),
    )
