"""One call of a clipped gradient, inside one program: from parameters and batch to the sums of an engine."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from opake_jax.clipping._guards import check_loss
from opake_jax.clipping._mesh import automatic, row_index, spec_of, varying_axes
from opake_jax.clipping._options import Spec
from opake_jax.clipping._partition import Partition, as_arrays
from opake_jax.clipping._problem import Engine, Problem, Rows, Sums
from opake_jax.clipping._units import mean_over_records
from opake_jax.types import Moments, PyTree

__all__ = ["PrivateAux", "leaf_groups", "prepare", "run"]


class PrivateAux(NamedTuple):
    """Per-unit values. They are *private data*: no noise has been added; log them only where raw data may go.

    Attributes:
      loss: (B,) float; NaN at padded rows, so that `jnp.nanmean(loss)` averages over real ones.
      grad_norm: (B,) L2 norm of the whole gradient before clipping, never below the truth, and right to 1e-5 where its parts do not cancel; NaN at padded rows, inf at
        real rows whose gradient is not finite (they contribute nothing: `jnp.isinf(grad_norm).sum()` counts them). With groups (B, G).
      aux: what the loss returned beside its value, stacked; floats are NaN and others 0 at padded rows. None without `has_aux`.
    """

    loss: jax.Array
    grad_norm: jax.Array
    aux: PyTree


class Prepared(NamedTuple):
    """The leaves by which the loss is differentiated, and the loss as a function of them."""

    leaves: list[jax.Array]
    loss: Callable[..., tuple[jax.Array, PyTree]]


def prepare(spec: Spec, parts: Partition, params: PyTree) -> Prepared:
    """Returns the leaves to differentiate by, and (leaves, unit, key) -> (scalar, aux)."""
    options = spec.options

    def loss(leaves: list[jax.Array], example: PyTree, key: Any) -> tuple[Any, PyTree]:
        extra = (key,) if spec.needs_key else ()
        out = spec.loss_fn(parts.merge(leaves, params), example, *extra)
        return out if options.has_aux else (out, None)

    trained = parts.leaves(params)
    if options.projection is None:
        return Prepared(trained, loss)
    lift = options.projection.lift
    _check_basis(options.projection.basis, parts.tree(trained))

    def moved(coordinates: list[jax.Array], example: PyTree, key: Any) -> tuple[Any, PyTree]:
        # At coordinates 0 the gradient by them is the gradient's inner products with the basis.
        steps = jax.tree.leaves(lift(coordinates[0]))
        return loss(
            [x + s.astype(x.dtype) for x, s in zip(trained, steps, strict=True)], example, key
        )

    return Prepared([jnp.zeros(options.projection.dimension, jnp.float32)], moved)


def run(
    spec: Spec,
    parts: Partition,
    engine: Engine,
    params: PyTree,
    batch: PyTree,
    *rest: jax.Array | None,
) -> tuple[PyTree, PrivateAux]:
    """Returns the tree of the sums and the values per row. `rest`: mask, key, limits, index; it numbers the rows, None: from 0."""

    def shardings() -> tuple[PyTree, PartitionSpec]:
        sums = _tree(spec, parts, [spec_of(leaf) for leaf in parts.leaves(params)])
        return sums, PartitionSpec(spec_of(jax.tree.leaves(batch)[0])[0])

    call = automatic(functools.partial(_run, spec, parts, engine), shardings)
    return call(params, batch, *rest)


def _run(
    spec: Spec,
    parts: Partition,
    engine: Engine,
    params: PyTree,
    batch: PyTree,
    mask: jax.Array | None,
    key: jax.Array | None,
    limits: jax.Array,
    index: jax.Array | None,
) -> tuple[PyTree, PrivateAux]:
    count = jax.tree.leaves(batch)[0].shape[0]
    if count == 0:  # an empty draw: one padded row, then dropped
        blank = jax.tree.map(lambda x: jnp.zeros((1, *x.shape[1:]), x.dtype), (batch, index))
        padded = jnp.zeros(1, bool)
        tree, values = _run(spec, parts, engine, params, blank[0], padded, key, limits, blank[1])
        return tree, jax.tree.map(lambda x: x[:0], values)
    axes = varying_axes((batch, mask, key))
    leaves, loss = prepare(spec, parts, as_arrays(params, axes))
    keys = None
    if key is not None:
        index = row_index(count, axes) if index is None else index
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, index)
    mask = jnp.ones(count, bool) if mask is None else mask
    _check_one(spec, loss, leaves, batch, keys)
    if spec.options.unit_axis is not None:
        axis = spec.options.unit_axis
        loss = mean_over_records(loss, axis - 1)
        records = jax.tree.leaves(batch)[0].shape[axis]
        real = jnp.broadcast_to(mask.reshape(count, -1), (count, records))
        batch, mask = (batch, real), jnp.any(real, axis=1)
    problem = Problem(
        loss,
        lambda norm: spec.rule.factors(norm, limits),
        leaf_groups(spec, parts),
        _transform(spec, parts, leaves),
        spec.options.second_moment is not None,
    )
    sums = engine.sums(problem, leaves, Rows(batch, mask, keys))
    return _tree(spec, parts, sums.first, sums.second), _private_aux(sums, mask)


def _tree(spec: Spec, parts: Partition, first: list[Any], second: list[Any] | None = None) -> Any:
    """Returns the tree of a ClippedSum, given a value for each leaf."""
    if spec.options.projection is not None:
        whole: Callable[..., Any] = lambda values: values[0]  # noqa: E731
    else:
        whole = parts.tree
    if spec.options.second_moment is None:
        return whole(first)
    return Moments(whole(first), whole(first if second is None else second))


def leaf_groups(spec: Spec, parts: Partition) -> tuple[int, ...]:
    """Returns the group of each differentiated leaf."""
    if spec.options.projection is not None:
        return (0,)
    if spec.per_group is None:
        return (0,) * len(parts.names)
    return spec.per_group.groups(parts.names)


def _check_one(spec: Spec, loss: Any, leaves: list[Any], batch: PyTree, keys: Any) -> None:
    """Checks the loss at one record."""
    axis = spec.options.unit_axis

    def one(x: jax.Array) -> jax.Array:
        return x[0] if axis is None else lax.index_in_dim(x[0], 0, axis - 1, keepdims=False)

    has_aux = spec.options.has_aux
    value = loss if has_aux else lambda *args: loss(*args)[0]
    key = None if keys is None else keys[0]
    check_loss(value, leaves, jax.tree.map(one, batch), key, has_aux)


def _check_basis(basis: PyTree, trained: PyTree) -> None:
    shapes = jax.tree.map(lambda x: x.shape[1:], basis)
    wanted = jax.tree.map(lambda x: x.shape, trained)
    if shapes != wanted:
        raise ValueError(
            f"projection: the basis must be a tree like the trainable parameters, each leaf with one axis more in front; it is for {shapes}, "
            f"the parameters are {wanted}"
        )


def _transform(spec: Spec, parts: Partition, leaves: list[jax.Array]) -> Any:
    function = spec.options.pre_clipping
    if function is None:
        return None

    def transform(gradient: list[jax.Array]) -> list[jax.Array]:
        tree = parts.tree(gradient)
        out = function(tree)
        shapes = [jnp.shape(x) for x in jax.tree.leaves(out)]
        structure: Any = jax.tree.structure(out)
        if structure != jax.tree.structure(tree) or shapes != [x.shape for x in leaves]:
            raise ValueError(
                f"pre_clipping must return a tree like the gradient, got {structure} with shapes {shapes}; for fewer "
                "dimensions see projection="
            )
        return jax.tree.leaves(out)

    return transform


def _private_aux(sums: Sums, mask: jax.Array) -> PrivateAux:
    norm = jnp.where(jnp.isfinite(sums.norm), sums.norm, jnp.inf)
    norm = jnp.where(mask[:, None], norm, jnp.nan)

    def mark(x: jax.Array) -> jax.Array:
        padded = jnp.nan if jnp.issubdtype(x.dtype, jnp.floating) else 0
        return jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.asarray(padded, x.dtype))

    loss, aux = jax.tree.map(mark, (sums.loss, sums.aux))
    return PrivateAux(loss, norm[:, 0] if norm.shape[1] == 1 else norm, aux)
