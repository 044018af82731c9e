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
    One spatial axis at a time, the last one first: kh + kw slices instead of kh * kw, and long contiguous copies.
    """
    numbers = parameters["dimension_numbers"]
    x = lax.transpose(left, numbers.lhs_spec)  # batch, feature, space
    x = jnp.moveaxis(x, 0, -1)  # feature, space, batch
    g = lax.transpose(right, numbers.rhs_spec)  # out, feature, window
    spatial = x.ndim - 2
    both = zip(parameters["padding"], parameters["lhs_dilation"], strict=True)
    padding = [(low, high, dilation - 1) for (low, high), dilation in both]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *padding, (0, 0, 0)])
    window = g.shape[2:]
    out: list[int] = []
    for i in reversed(range(spatial)):  # x: feature, space[:i], window[i:], out[i:], batch
        stride, dilation = parameters["window_strides"][i], parameters["rhs_dilation"][i]
        reach = (window[i] - 1) * dilation + 1
        out.insert(0, (x.shape[1 + i] - reach) // stride + 1)
        x = _windows(x, 1 + i, 1 + spatial, out[0], window[i], stride, dilation)
    features, batch = g.shape[0], x.shape[-1]
    positions = x.shape[0] * math.prod(window)
    a = x.reshape(positions, math.prod(out) * batch)
    g = jnp.moveaxis(g, 0, -1).reshape(positions, features)
    to_front = (spatial, spatial + 1, *range(spatial))  # batch, out feature, space
    inverse = tuple(int(axis) for axis in np.argsort(numbers.out_spec))
    steps = (Reshape((*out, batch, features)), Transpose(to_front), Transpose(inverse))
    return a, g, steps


def _windows(
    x: jax.Array, axis: int, to: int, count: int, width: int, stride: int, dilation: int
) -> jax.Array:
    """Returns x with the `width` positions of a window in the place of `axis`, and the `count` windows on a new axis at `to`."""

    def cut(start: int, length: int, step: int) -> jax.Array:
        return lax.slice_in_dim(x, start, start + (length - 1) * step + 1, step, axis)

    if count <= width:
        return jnp.stack([cut(o * stride, width, dilation) for o in range(count)], to)
    by_place = jnp.stack([cut(w * dilation, count, stride) for w in range(width)], axis)
    return jnp.moveaxis(by_place, axis + 1, to)


def fold_batch(x: jax.Array, axis: int) -> jax.Array:
    """Returns x (B, ...) with the batch axis merged into `axis` of what follows."""
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])
