"""A convolution as a matrix product: the windows of its left operand as rows (im2col)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from opake_jax.clipping._ghost._terms import Reshape, Step, Transpose

__all__ = ["convolution_matrices", "fold_batch"]


def convolution_matrices(
    left: jax.Array, right: jax.Array, parameters: Any
) -> tuple[jax.Array, jax.Array, tuple[Step, ...]]:
    """Returns (A (K, M), G (K, N), steps) with conv(left, right) = steps(A^T G).

    M runs over output positions and the left operand's batch, N over output features, K over input features and window positions.
    One spatial axis at a time (kh + kw slices instead of kh * kw), dilated windows phase by phase, so that slices are contiguous.
    """
    numbers = parameters["dimension_numbers"]
    x = lax.transpose(left, numbers.lhs_spec)  # batch, feature, space
    g = lax.transpose(right, numbers.rhs_spec)  # out, feature, window
    spatial = x.ndim - 2
    padding = [
        (low, high, dilation - 1)
        for (low, high), dilation in zip(
            parameters["padding"], parameters["lhs_dilation"], strict=True
        )
    ]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *padding])
    window, strides, dilations = (
        g.shape[2:],
        parameters["window_strides"],
        parameters["rhs_dilation"],
    )
    out = []
    for i in range(spatial):  # x: out[:i], batch, feature, window[:i], space[i:]
        axis = x.ndim - (spatial - i)
        reach = (window[i] - 1) * dilations[i] + 1
        out.append((x.shape[axis] - reach) // strides[i] + 1)
        x = _windows(x, axis, i, out[i], window[i], strides[i], dilations[i])
    batch, features = x.shape[spatial], g.shape[0]
    positions, inner = math.prod(out), math.prod(x.shape[spatial + 1 :])
    a = jnp.transpose(x.reshape(positions * batch, inner))
    g = jnp.transpose(g.reshape(features, inner))
    to_front = (spatial, spatial + 1, *range(spatial))  # batch, out feature, space
    inverse = tuple(int(axis) for axis in np.argsort(numbers.out_spec))
    steps = (Reshape((*out, batch, features)), Transpose(to_front), Transpose(inverse))
    return a, g, steps


def _windows(
    x: jax.Array, axis: int, to: int, count: int, width: int, stride: int, dilation: int
) -> jax.Array:
    """Returns x with `count` windows along `axis` stacked on a new axis at `to`."""
    if dilation == 1 or stride != 1:
        reach = (width - 1) * dilation + 1
        starts = [o * stride for o in range(count)]
        cut = [lax.slice_in_dim(x, s, s + reach, dilation, axis) for s in starts]
        return jnp.stack(cut, to)
    # Windows that start `dilation` apart share their phase: split it off, then slices are contiguous.
    turns = -(-count // dilation)
    need = (turns + width - 1) * dilation - x.shape[axis]
    config = [(0, max(need, 0) if d == axis else 0, 0) for d in range(x.ndim)]
    x = lax.pad(x, jnp.zeros((), x.dtype), config)
    length = x.shape[axis] // dilation
    x = lax.slice_in_dim(x, 0, length * dilation, 1, axis)
    x = x.reshape(*x.shape[:axis], length, dilation, *x.shape[axis + 1 :])
    x = jnp.moveaxis(x, axis + 1, to)
    x = jnp.stack([lax.slice_in_dim(x, o, o + width, 1, axis + 1) for o in range(turns)], to)
    x = x.reshape(*x.shape[:to], turns * dilation, *x.shape[to + 2 :])
    return lax.slice_in_dim(x, 0, count, 1, to)


def fold_batch(x: jax.Array, axis: int) -> jax.Array:
    """Returns x (B, ...) with the batch axis merged into `axis` of what follows."""
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])
