"""What does the attacker plant, and what does it read? Canaries in gradient and in example space."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax._checks import check_real, require
from opake_jax.auditing._binomial import as_numbers
from opake_jax.types import PyTree

__all__ = ["DiracCanaries", "canary_losses", "plant"]

# The gradient of a Dirac canary before clipping: far above any clipping norm in use, far below float32's
# square root, so that a mechanism that forgets to clip gives itself away.
_SCALE = 1e4


class DiracCanaries:
    """Gradient-space canaries: canary j's gradient is a large multiple of one coordinate's axis.

    After clipping it is `clipping_norm` times that axis: the worst case that the accounting assumes.
    An example of the audited data is a pair `(example, mark)`: mark 0 is an ordinary row, mark j + 1
    canary j, and mark -(j + 1) its opposite, for mechanisms that replace one record by another.

    Args:
      coordinates: distinct indices into the flattened parameters (`jax.tree.leaves`, each ravelled),
        one for each canary. The attack is sharpest where no ordinary gradient reaches.
      scale: norm of the gradient before clipping.

    >>> canaries = DiracCanaries([2])
    >>> loss = canaries.loss(lambda params, example: jnp.vdot(params, example))
    >>> jax.grad(loss)(jnp.zeros(3), (jnp.ones(3), jnp.int32(1))).tolist()
    [0.0, 0.0, 10000.0]
    """

    def __init__(self, coordinates: Any, *, scale: float = _SCALE):
        array = np.atleast_1d(as_numbers("coordinates", coordinates))
        unique = np.unique(array)
        require(
            array.ndim == 1 and array.size > 0 and array.dtype.kind in "iu",
            f"coordinates must be a non-empty vector of integers, got {coordinates!r}",
        )
        require(
            unique.size == array.size and unique[0] >= 0 and unique[-1] < 2**31,
            f"coordinates must be distinct indices in [0, 2^31), got {coordinates!r}",
        )
        check_real("scale", scale, low_open=True)
        self._coordinates, self._scale = array.astype(np.int64), float(scale)

    @property
    def count(self) -> int:
        """The number of canaries."""
        return self._coordinates.size

    def loss(self, loss_fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the loss over `(example, mark)` to hand to the gradient function that is audited."""

        def with_canaries(params: PyTree, marked: Any, *rest: Any) -> Any:
            example, mark = marked
            sign = jnp.sign(mark).astype(jnp.float32)
            planted = sign * self._scale * self._entry(params, jnp.abs(mark) - 1)
            return jnp.where(mark == 0, loss_fn(params, example, *rest), planted)

        return with_canaries

    def data(self, ordinary: PyTree) -> tuple[PyTree, jax.Array]:
        """Returns the rows `(examples, marks)`: the canaries first, then the ordinary examples.

        The first rows, since padding points at row 0: a mechanism that counts padded rows then
        counts a canary again and again. A canary's example is a copy of the first ordinary one, of
        which only the shape matters.
        """
        rows = jax.tree.map(lambda x: jnp.asarray(x)[:1].repeat(self.count, axis=0), ordinary)
        size = jax.tree.leaves(ordinary)[0].shape[0]
        marks = jnp.concatenate(
            [jnp.arange(1, self.count + 1, dtype=jnp.int32), jnp.zeros(size, jnp.int32)]
        )
        return plant(ordinary, rows), marks

    def read(self, released: PyTree, params: PyTree = None) -> jax.Array:
        """Returns the released value at each canary's coordinate, shape (count,): for `run_of`."""
        del params
        return jax.vmap(lambda j: self._entry(released, j))(jnp.arange(self.count))

    def _entry(self, tree: PyTree, canary: Any) -> jax.Array:
        """Returns the entry of the flattened tree at a canary's coordinate."""
        position = jnp.asarray(self._coordinates, jnp.int32)[canary]
        found, start = jnp.float32(0.0), 0
        for leaf in jax.tree.leaves(tree):
            here = (position >= start) & (position < start + leaf.size)
            value = jnp.ravel(leaf)[jnp.where(here, position - start, 0)]
            found = found + jnp.where(here, value, 0.0)
            start += leaf.size
        require(
            int(np.max(self._coordinates, initial=-1)) < start, f"coordinates must be below {start}"
        )
        return found


def plant(ordinary: PyTree, canaries: PyTree) -> PyTree:
    """Returns the rows of `canaries`, then those of `ordinary`: example-space canaries.

    Rows that a model would not fit unless they were in the data (a wrong label, noise for an image)
    make good ones. First, for the reason given in `DiracCanaries.data`.
    """
    return jax.tree.map(lambda c, x: jnp.concatenate([c, jnp.asarray(x)]), canaries, ordinary)


def canary_losses(
    loss_fn: Callable[[PyTree, PyTree], jax.Array], canaries: PyTree
) -> Callable[[PyTree, PyTree], jax.Array]:
    """Returns `read(released, params)`: minus the loss of each canary, for example-space canaries."""
    return lambda released, params: -jax.vmap(loss_fn, (None, 0))(params, canaries)
