"""Gradients of few dimensions: clipped and released in a public subspace."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax._checks import check_count, check_key, is_traced
from opake_jax.types import PyTree

__all__ = ["Projection", "projection", "random_projection"]


@dataclasses.dataclass(frozen=True, eq=False)
class Projection:
    """A public linear map of k numbers to parameter updates; made by `projection` or `random_projection`.

    Attributes:
      basis: tree like the trainable parameters, each leaf (k, ...).
      dimension: k.
    """

    basis: PyTree
    dimension: int

    def lift(self, coordinates: jax.Array) -> PyTree:
        """Returns sum_j coordinates[j] basis[j]."""
        return jax.tree.map(lambda b: jnp.tensordot(coordinates.astype(b.dtype), b, 1), self.basis)


def projection(basis: PyTree) -> Projection:
    """Returns the projection on the span of a public basis, to pass as `projection=` of `clipped_grad`.

    Each unit's gradient g is mapped to its k inner products with the basis, and these are clipped, summed and noised. `ClippedSum.lift`
    maps the noisy result back, after the noise, so the noise has k dimensions instead of one for each parameter.

    Args:
      basis: tree like the trainable parameters (None at frozen leaves), each leaf (k, ...), k >= 1; best orthonormal. *Public*: it must not
        depend on the private data, unless what made it is accounted for.

    Raises:
      TypeError: a leaf that is no concrete floating-point array.
      ValueError: no leaf, or leaves with different k.

    Reference: Yu et al. 2021, arXiv:2102.12677 (gradient embedding).
    """
    leaves = jax.tree.leaves(basis)
    for path, leaf in jax.tree_util.tree_leaves_with_path(basis):
        name = jax.tree_util.keystr(path)
        dtype = getattr(leaf, "dtype", None)
        if is_traced(leaf) or dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(
                f"basis{name} must be a concrete floating-point array, made outside jit"
            )
    sizes = {np.shape(leaf)[:1] for leaf in leaves}
    if len(sizes) != 1 or sizes & {(), (0,)}:
        raise ValueError(
            f"the leaves of basis must have one common first axis of at least 1, got {sorted(sizes)}"
        )
    return Projection(basis, int(leaves[0].shape[0]))


def random_projection(params: PyTree, dimension: int, *, key: jax.Array) -> Projection:
    """Returns a projection on `dimension` random directions with independent N(0, 1 / dimension) entries.

    Lifting a projected gradient gives the gradient in expectation over the draw. The directions are public: draw a fresh projection
    as often as you like, with a key that is not the noise key.

    Args:
      params: the trainable parameters (None at frozen leaves).
      dimension: k >= 1; memory is k times the parameters.
      key: typed key.
    """
    dimension = check_count("dimension", dimension, minimum=1)
    check_key("key", key)
    leaves, treedef = jax.tree.flatten(params)
    keys = jax.random.split(key, max(1, len(leaves)))
    draw = [
        jax.random.normal(k, (dimension, *np.shape(x)), jnp.float32) / np.sqrt(dimension)
        for k, x in zip(keys, leaves, strict=False)
    ]
    return projection(jax.tree.unflatten(treedef, draw))
