"""The squared norm of one example's gradient of one leaf, never below the truth.

A Gram sum may cancel: its rounding error is relative to the sum of the absolute values, so a multiple of that is added. Without it a
gradient that nearly cancels would get a norm that is too small, and would be clipped too little.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from opake_jax.clipping._ghost._cost import Way
from opake_jax.clipping._ghost._forms import Factored, Form, Whole
from opake_jax.clipping._ghost._terms import Known
from opake_jax.clipping._problem import accumulator_dtype, squared_norm

__all__ = ["gradient", "squared_norm_of"]

# Float32 inner products of up to 1e4 factors were seen off by at most 6 ulp of the sum of absolute values: 16 ulp, 2^-20.
_GRAM_ERROR = 2.0**-20
# The weighted sum adds the K products of a gradient in another order than the gradient that the norm was taken of.
_ORDER_ERROR = 2.0**-22


def squared_norm_of(form: Form, way: Way) -> tuple[jax.Array, Known | None]:
    """Returns (squared norm, the gradient in its layout if it was computed to be kept)."""
    if isinstance(form, Whole):
        return squared_norm(form.value.array[None])[0], None
    return _of_factored(form, way)


def _of_factored(factored: Factored, way: Way) -> tuple[jax.Array, Known | None]:
    factors = [x for x in (factored.left, factored.right) if x is not None]
    if way is Way.RANK_ONE:
        # As (S, M): an axis of size 1 between made XLA copy the operand.
        flat = [_wide(x.array).reshape(x.array.shape[0], -1) for x in factors]
        flat = [x[0] for x in flat] if flat[0].shape[0] == 1 else flat
        a, g = (jnp.sum(jnp.square(x), axis=-1) for x in flat)
        return jnp.sum(a * g), None
    if way is Way.GRAM:
        return _gram(factored), None
    value = gradient(factored)
    square = jnp.sum(jnp.square(value.array))
    if way is Way.KEEP:
        return square, value
    if factors:
        a, g = (jnp.sqrt(jnp.sum(jnp.square(_wide(x.array)), axis=2)) for x in factors)
        square = jnp.square(jnp.sqrt(square) + _ORDER_ERROR * jnp.sum(a * g))
    return square, None


def gradient(factored: Factored) -> Known:
    """Returns one example's gradient in its layout (S, M, N)."""
    _, m, n = factored.layout
    parts, varies = [], False
    if factored.left is not None and factored.right is not None:
        parts.append(_product(factored.left.array, factored.right.array))
        varies |= factored.left.varies or factored.right.varies
    if factored.rows is not None and factored.index is not None:
        rows = _wide(factored.rows.array)
        parts.append(
            jnp.zeros((m, n), rows.dtype).at[factored.index.array].add(rows, mode="drop")[None]
        )
        varies |= factored.rows.varies or factored.index.varies
    if factored.constant is not None:
        parts.append(_wide(factored.constant.array))
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return Known(total, varies)


def _product(a: jax.Array, g: jax.Array) -> jax.Array:
    if a.shape[0] > 1:
        return _einsum("skm,skn->smn", a, g)
    # Without the axis: as a second batch axis of size 1 it made XLA copy the result, twice.
    return _einsum("km,kn->mn", a[0], g[0])[None]


def _gram(factored: Factored) -> jax.Array:
    parts: list[jax.Array] = []  # arrays whose entries sum to the squared norm
    a = None if factored.left is None else _wide(factored.left.array)
    g = None if factored.right is None else _wide(factored.right.array)
    index = None if factored.index is None else factored.index.array
    rows = None if factored.rows is None else _wide(factored.rows.array)
    constant = None if factored.constant is None else _wide(factored.constant.array)
    if a is not None and g is not None:
        parts.append(_einsum("skm,slm->skl", a, a) * _einsum("skn,sln->skl", g, g))
        if constant is not None:
            parts.append(2 * _einsum("skm,smn->skn", a, constant) * g)
    if rows is not None and index is not None:
        same = (index[:, None] == index[None, :]) & (index < factored.layout[1])[:, None]
        parts.append(jnp.where(same, _einsum("kn,ln->kl", rows, rows), 0))
        if a is not None and g is not None:
            columns = a[0].at[:, index].get(mode="fill", fill_value=0)
            parts.append(2 * columns * _einsum("kn,ln->kl", g[0], rows))
        if constant is not None:
            parts.append(2 * constant[0].at[index].get(mode="fill", fill_value=0) * rows)
    if constant is not None:
        parts.append(jnp.square(constant))
    sums = [jnp.sum(part) + _GRAM_ERROR * jnp.sum(jnp.abs(part)) for part in parts]
    return functools.reduce(jnp.add, sums)


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(accumulator_dtype(x.dtype))


def _einsum(subscripts: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, _wide(x), _wide(y), precision=lax.Precision.HIGHEST)
