"""The batch in parts, inside one program: memory of a part, result of the whole."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from opake_jax.clipping._jaxpr import has_primitive
from opake_jax.clipping._mesh import vary, varying_axes
from opake_jax.clipping._problem import Engine, Problem, Rows, Sums

__all__ = ["in_parts", "scans_badly"]


def in_parts(
    engine: Engine, size: int, problem: Problem, leaves: list[jax.Array], rows: Rows
) -> Sums:
    """Returns the clipped sums of all rows, computed by `engine` on `size` rows at a time."""
    count = rows.mask.shape[0]
    parts = -(-count // size)
    if parts <= 1:
        return engine.sums(problem, leaves, rows)
    padded = _pad(rows, parts * size - count)

    def part(rows: Rows) -> Sums:
        return engine.sums(problem, leaves, rows)

    # Part j takes rows j, j + parts, ...: where the batch is spread over devices, so is every part.
    split = jax.tree.map(lambda x: jnp.swapaxes(x.reshape(size, parts, *x.shape[1:]), 0, 1), padded)
    shapes = jax.eval_shape(part, jax.tree.map(lambda x: x[0], split))
    axes = varying_axes((leaves, rows))
    zero = jax.tree.map(
        lambda s: vary(jnp.zeros(s.shape, s.dtype), axes), (shapes.first, shapes.second)
    )

    def step(total: Any, rows: Rows) -> Any:
        sums = part(rows)
        total = jax.tree.map(jnp.add, total, (sums.first, sums.second))
        return total, (sums.loss, sums.norm, sums.aux)

    unroll = parts if scans_badly(problem, leaves, rows) else 1
    (first, second), values = lax.scan(step, zero, split, unroll=unroll)
    merged = jax.tree.map(
        lambda x: jnp.swapaxes(x, 0, 1).reshape(parts * size, *x.shape[2:])[:count], values
    )
    return Sums(first, second, *merged)


def scans_badly(problem: Problem, leaves: list[jax.Array], rows: Rows) -> bool:
    """Returns whether a loop would slow this loss down: XLA on CPU runs convolutions in loops 8 to 23 times slower."""
    if jax.default_backend() != "cpu":
        return False
    example, key = jax.tree.map(lambda x: x[0], (rows.batch, rows.keys))
    return has_primitive(problem.loss, "conv_general_dilated", leaves, example, key)


def _pad(rows: Rows, extra: int) -> Rows:
    """Returns the rows and `extra` copies of the first, masked out."""

    def repeat(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x, jnp.broadcast_to(x[:1], (extra, *x.shape[1:]))])

    batch, keys = jax.tree.map(repeat, (rows.batch, rows.keys))
    return Rows(batch, jnp.concatenate([rows.mask, jnp.zeros(extra, bool)]), keys)
