"""Fixed-size sampling: a uniformly random subset of exactly b records, drawn anew each step."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from opake_jax import _threefry, accounting
from opake_jax._checks import check_count
from opake_jax.sampling._sampler import MAX_DATASET_SIZE, STATIC, Sampler, step_words

__all__ = ["FixedSizeSampler"]

# Fewer than b distinct candidates turn up with probability below 2^-128 a step.
_LOG_SHORTAGE = 128 * math.log(2)
# So that a dataset of 2^31 records is never the smaller part of a draw, which is numbered in int32.
_MOST_ROWS = 2**30


@dataclasses.dataclass(frozen=True, init=False)
class FixedSizeSampler(Sampler):
    """A sampler that draws exactly `batch_size` records without replacement, each subset alike.

    Its accounting is REPLACE_ONE: of two datasets of the same size, one record differs, and its old
    and new contributions count (twice the clipping norm).

    In the graph in time O(batch_size log batch_size): the first b distinct values of a sequence of
    uniform numbers below N are a uniform b-subset. The numbers are J-bit words, those from N on
    skipped, so that no value is favoured.

    Args:
      dataset_size: number of records N, public, in [1, 2^31].
      batch_size: b, in [1, N], at most 2^30.

    Raises:
      TypeError, ValueError: an argument out of range.
    """

    _tag = "sampling, fixed size"

    dataset_size: int = dataclasses.field(metadata=STATIC)
    batch_size: int = dataclasses.field(metadata=STATIC)

    def __init__(self, dataset_size: int, batch_size: int):
        size = check_count("dataset_size", dataset_size, minimum=1, maximum=MAX_DATASET_SIZE)
        self._set(
            dataset_size=size,
            batch_size=check_count(
                "batch_size", batch_size, minimum=1, maximum=min(size, _MOST_ROWS)
            ),
        )

    @property
    def capacity(self) -> int:
        """Rows of a batch."""
        return self.batch_size

    def process(self, mechanism: Any) -> Any:
        """Returns the accounting of one step, under REPLACE_ONE."""
        return accounting.fixed_size(
            mechanism, batch_size=self.batch_size, dataset_size=self.dataset_size
        )

    def _draw(self, words: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
        size, wanted = self.dataset_size, self.batch_size
        words = step_words(words, step)
        if 2 * wanted <= size:
            return _first_distinct(words, size, wanted)
        # More than half: draw those that stay out.
        left_out, mask = _first_distinct(words, size, size - wanted)
        inside = jnp.ones(size, bool).at[jnp.where(mask, left_out, size)].set(False, mode="drop")
        indices = jnp.nonzero(inside, size=wanted)[0].astype(jnp.int32)
        return indices, jnp.ones(wanted, bool)


def _first_distinct(words: jax.Array, size: int, wanted: int) -> tuple[jax.Array, jax.Array]:
    """Returns the first `wanted` distinct values of a uniform sequence below `size`, sorted, and a mask."""
    if wanted == 0:
        return jnp.zeros(0, jnp.int32), jnp.zeros(0, bool)
    bits = (size - 1).bit_length()
    blocks = _candidates(wanted, (size - wanted + 1) / 2**bits) // 2 + 1
    value = jnp.concatenate(_threefry.words(words, (blocks,))) & np.uint32(2**bits - 1)
    none = np.uint32(2**32 - 1)
    order = lax.iota(jnp.uint32, 2 * blocks)
    value, order = lax.sort((value, order), num_keys=2)
    repeated = jnp.concatenate([jnp.zeros(1, bool), value[1:] == value[:-1]])
    order = jnp.where(repeated | (value >= np.uint32(size)), none, order)
    order, value = lax.sort((order, value), num_keys=1)
    order, value = order[:wanted], value[:wanted]
    mask = order != none
    return lax.sort(jnp.where(mask, value, none - 1)).astype(jnp.int32) * mask, mask


def _candidates(wanted: int, success: float) -> int:
    """Returns n with P(Binomial(n, success) < wanted) < 2^-128.

    Chernoff: P(X <= mean - t) <= exp(-t^2 / (2 mean)). `success` bounds from below the chance that a
    candidate is below N and new.
    """
    half = _LOG_SHORTAGE
    mean = wanted + half + math.sqrt(half**2 + 2 * half * wanted)
    return math.ceil(mean / success)
