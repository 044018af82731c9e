"""Where do the rows of this batch lie?

Inside `shard_map` a parameter that is the same on all devices has its gradient summed over the devices *before* it could be
clipped (jax#36886): each "per-example" gradient then mixes examples. Marked as varying, each device keeps the gradients of
its own rows. With `check_vma=False` jax sums nothing by itself, and nothing is marked.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from opake_jax.types import PyTree

__all__ = ["automatic", "row_index", "vary", "varying_axes"]


def varying_axes(tree: PyTree) -> tuple[Any, ...]:
    """Returns the mesh axes of the enclosing shard_map over which any leaf varies."""
    return tuple(sorted({axis for leaf in jax.tree.leaves(tree) for axis in _varying(leaf)}))


def vary(x: jax.Array, axes: tuple[Any, ...]) -> jax.Array:
    """Returns `x`, marked as varying over these axes."""
    missing = tuple(a for a in axes if a not in _varying(x))
    return lax.pcast(x, missing, to="varying") if missing else x


def row_index(rows: int, axes: tuple[Any, ...]) -> jax.Array:
    """Returns (rows,) uint32: the index of each local row in the whole batch, whose parts lie along these axes."""
    index = jnp.arange(rows, dtype=jnp.uint32)
    return index + jnp.uint32(rows) * lax.axis_index(axes).astype(jnp.uint32) if axes else index


def automatic(function: Callable[..., Any], out_specs: Callable[[], Any]) -> Callable[..., Any]:
    """Returns the function with the axes of an explicit mesh turned into automatic ones inside.

    In an explicit mesh every sum over a sharded batch would have to say how its result lies. Here that is known: sums lie as the
    parameters do, values per row as the batch. `out_specs` returns a tree of PartitionSpecs, a prefix of the result.
    """

    def call(*args: Any) -> Any:
        if not jax.sharding.get_abstract_mesh().explicit_axes:
            return function(*args)
        return jax.sharding.auto_axes(function, out_sharding=out_specs())(*args)

    return call


def spec_of(x: Any) -> Any:
    """Returns the PartitionSpec of an array in an explicit mesh."""
    return jax.typeof(x).sharding.spec


def _varying(x: Any) -> frozenset[Any]:
    return jax.typeof(x).manual_axis_type.varying
