"""One unit of several records: a user's examples, or several views of one image."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from opake_jax.types import PyTree

__all__ = ["mean_over_records"]


def mean_over_records(loss: Callable[..., Any], axis: int) -> Callable[..., Any]:
    """Returns the loss of a unit `(records, real)`: the mean of `loss` over its real records.

    `loss` is (leaves, record, key) -> (scalar, aux); records lie along `axis`, and `real` (K,) marks those that count. A record that
    does not is replaced by one that does before the loss sees it, so that whatever it holds cannot reach the gradient.
    """

    def unit_loss(leaves: Any, unit: tuple[PyTree, jax.Array], key: Any) -> Any:
        records, real = unit
        stand_in = jnp.argmax(real)

        def fill(x: jax.Array) -> jax.Array:
            x = jnp.moveaxis(x, axis, 0)
            return jnp.where(real.reshape(-1, *[1] * (x.ndim - 1)), x, x[stand_in])

        keys = None
        if key is not None:
            keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(len(real)))
        in_axes = (None, 0, None if key is None else 0)
        values, aux = jax.vmap(loss, in_axes)(leaves, jax.tree.map(fill, records), keys)
        count = jnp.maximum(jnp.sum(real), 1).astype(values.dtype)
        return jnp.sum(jnp.where(real, values, 0)) / count, aux

    return unit_loss
