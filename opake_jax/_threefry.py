"""What are the random words of this key?

Threefry-2x32 with 20 rounds, written out in jnp: the words equal those of jax's own generator, but
the rounds fuse with whatever consumes them, need no temporary, and split over devices without any
communication, since the word of an element is a function of the key and the element's index.

Reference: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["block", "fold", "words"]

_U = np.uint32
# Rotation distances and the parity constant of threefry-2x32 (Salmon et al. 2011, table 2; Skein 1.3).
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = _U(0x1BD11BDA)


def block(key_words: Any, high: Any, low: Any) -> tuple[jax.Array, jax.Array]:
    """Returns the two uint32 words that threefry makes of the counter (high, low).

    Args:
      key_words: uint32, shape (2,) or (2, ...) that broadcasts with the counters behind axis 0.
      high: uint32 array, the counter's high word.
      low: uint32 array, the counter's low word.
    """
    k0, k1 = key_words[0], key_words[1]
    schedule = (k0, k1, k0 ^ k1 ^ _PARITY)
    x0, x1 = high + k0, low + k1
    for i in range(5):
        for distance in _ROTATIONS[i % 2]:
            x0 = x0 + x1
            x1 = ((x1 << _U(distance)) | (x1 >> _U(32 - distance))) ^ x0
        x0 = x0 + schedule[(i + 1) % 3]
        x1 = x1 + schedule[(i + 2) % 3] + _U(i + 1)
    return x0, x1


def words(
    key_words: Any, shape: Sequence[int], out_sharding: Any = None
) -> tuple[jax.Array, jax.Array]:
    """Returns two independent uint32 words for each element of an array of this shape.

    Element i (in row-major order) gets the block of counter i, whatever the shape around it, as
    `jax.random.split(key, shape)` does.

    Args:
      key_words: uint32, shape (2,).
      shape: the shape of each word array.
      out_sharding: how they lie on a mesh of explicit axes; under automatic axes the compiler knows.
    """
    return block(key_words, *_counters(tuple(shape), out_sharding))


def fold(key_words: jax.Array, number: Any) -> jax.Array:
    """Returns the key words of child `number` (uint32): what `jax.random.fold_in` returns.

    Several numbers at once (shape S) give shape (2, *S).
    """
    low = jnp.asarray(number).astype(jnp.uint32)
    return jnp.stack(block(key_words, jnp.zeros_like(low), low))


def _counters(
    shape: tuple[int, ...], out_sharding: Any = None, *, limit: int = 2**32
) -> tuple[jax.Array, jax.Array]:
    """Returns the (high, low) counters of an array: distinct for each element.

    Below `limit` elements the low word is the row-major index. From there on the trailing axes that
    still fit make the low word and the leading axes the high word. Only broadcasted iotas, so that
    each device computes its own part.
    """
    high = low = lax.full(shape, _U(0), sharding=out_sharding)
    size, in_low = 1, True
    for axis in reversed(range(len(shape))):
        length = shape[axis]
        if in_low and size * length > limit:
            size, in_low = 1, False
        if size * length > limit:
            raise ValueError(f"an array of shape {shape} has more elements than there are counters")
        index = lax.broadcasted_iota(jnp.uint32, shape, axis, out_sharding=out_sharding)
        place = index * _U(size % 2**32)
        low, high = (low + place, high) if in_low else (low, high + place)
        size *= length
    return high, low
