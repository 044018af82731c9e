"""Which leaves of the parameters are trained?"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from opake_jax.clipping._guards import check_parameters
from opake_jax.clipping._mesh import vary
from opake_jax.types import PyTree

__all__ = ["Partition", "partition"]


@dataclasses.dataclass(frozen=True)
class Partition:
    """The structure of a parameter tree and which of its leaves are trained.

    Attributes:
      names: the path of each trainable leaf, as "blocks/0/w".
    """

    treedef: Any
    chosen: tuple[bool, ...]
    names: tuple[str, ...]

    def leaves(self, params: PyTree) -> list[Any]:
        """Returns the trainable leaves."""
        both = zip(jax.tree.leaves(params), self.chosen, strict=True)
        return [leaf for leaf, trained in both if trained]

    def merge(self, leaves: list[Any], params: PyTree) -> PyTree:
        """Returns params with these trainable leaves."""
        return self._fill(leaves, jax.tree.leaves(params))

    def tree(self, leaves: list[Any]) -> PyTree:
        """Returns a tree like params with these trainable leaves and None at frozen ones."""
        return self._fill(leaves, [None] * len(self.chosen))

    def _fill(self, leaves: list[Any], others: list[Any]) -> PyTree:
        following = iter(leaves)
        both = zip(others, self.chosen, strict=True)
        values = [next(following) if trained else other for other, trained in both]
        return jax.tree.unflatten(self.treedef, values)


def partition(params: PyTree, trainable: PyTree | None) -> Partition:
    """Returns the partition of params; `trainable` is None (all) or a tree of booleans, a prefix of params."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(params)
    if trainable is None:
        chosen = [True] * len(paths)
    else:
        spread = jax.tree.map(
            lambda flag, part: jax.tree.map(lambda _: flag, part), trainable, params
        )
        chosen = jax.tree.leaves(spread)
        if not all(isinstance(flag, bool) for flag in chosen):
            raise TypeError("trainable must be a tree of Python booleans, a prefix of params")
    trained = [item for item, flag in zip(paths, chosen, strict=True) if flag]
    check_parameters(trained)
    names = tuple(jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in trained)
    return Partition(treedef, tuple(chosen), names)


def as_arrays(params: PyTree, axes: tuple[Any, ...]) -> PyTree:
    """Returns params as arrays that vary over these mesh axes."""
    return jax.tree.map(lambda x: vary(jnp.asarray(x), axes), params)
