"""Samplers that plan a whole epoch: each record has k places among the t steps, or one in a shuffled order."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from opake_jax import _threefry, accounting
from opake_jax._checks import check_count, require
from opake_jax.sampling._gaps import binomial_bound
from opake_jax.sampling._parallel_poisson import check_uncut_capacity
from opake_jax.sampling._sampler import STATIC, Sampler, check_rows, step_words
from opake_jax.types import NeighboringRelation

__all__ = ["KOutOfTSampler", "ShuffleSampler"]

# A step draws more records than fit with probability below 2^-128.
_CAPACITY_BITS = 128
# A plan holds every record in arrays that are indexed in int32.
_MOST_RECORDS = 2**30


class _EpochSampler(Sampler):
    """A sampler whose `_plan(words)` gives each record's steps within an epoch, shape (N, k)."""

    capacity: int
    steps_per_epoch: int
    epochs_per_draw: int

    @property
    def period(self) -> int:
        """The number of steps that one `process` covers: the epochs of one draw."""
        return self.steps_per_epoch * self.epochs_per_draw

    def _plan(self, words: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _draw(self, words: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
        steps = np.uint32(self.steps_per_epoch)
        plan = self._plan(step_words(words, step // (steps * np.uint32(self.epochs_per_draw))))
        member = jnp.any(plan == step % steps, axis=1)
        indices = jnp.nonzero(member, size=self.capacity, fill_value=0)[0].astype(jnp.int32)
        return indices, jnp.arange(self.capacity) < jnp.sum(member)

    def _iterate(self, words: jax.Array, steps: range) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        # The plan is made once and not for each step.
        current = None
        for step in steps:
            number, place = divmod(step, self.steps_per_epoch)
            if current != number // self.epochs_per_draw:
                current = number // self.epochs_per_draw
                plan = np.asarray(_plan_of(self, words, np.uint32(current)))
                order = np.argsort(plan.ravel(), kind="stable")
                ends = np.cumsum(np.bincount(plan.ravel(), minlength=self.steps_per_epoch))
            members = order[ends[place - 1] if place else 0 : ends[place]] // plan.shape[1]
            indices = np.zeros(self.capacity, np.int32)
            indices[: len(members)] = members
            yield indices, np.arange(self.capacity) < len(members)


@dataclasses.dataclass(frozen=True, init=False)
class KOutOfTSampler(_EpochSampler):
    """A sampler in which each record takes part in k of the t steps of an epoch, chosen uniformly.

    k = 1 is balls in bins: each record is in exactly one batch of an epoch. Every record chooses for
    itself, so that batch sizes vary (Binomial(N, k / t)); nothing is ever cut: `capacity` rows do not
    suffice with probability below 2^-128 a step.

    `process` covers `period` steps, a whole number of epochs, and is multiplied by the number of
    periods: the choice within one is what hides the record, so that a part of it costs as much.

    Args:
      dataset_size: number of records N, public, in [1, 2^30].
      k: how many steps of an epoch a record takes part in, in [1, t].
      t: steps of an epoch, at least 1.
      epochs_per_draw: 1 draws new choices for each epoch; m keeps them for m epochs, over which the
        record's steps repeat. That costs what one epoch with noise multiplier / sqrt(m) costs: the
        m releases of one bin are a single one of that precision.
      capacity: rows of a batch; None: as few as the above allows. Fewer are refused.

    Raises:
      TypeError, ValueError: an argument out of range.

    Reference: Chua et al. 2024, arXiv:2412.16802; Feldman and Shenfeld 2025, arXiv:2502.08202.
    """

    _tag = "sampling, k out of t"

    dataset_size: int = dataclasses.field(metadata=STATIC)
    k: int = dataclasses.field(metadata=STATIC)
    t: int = dataclasses.field(metadata=STATIC)
    epochs_per_draw: int = dataclasses.field(metadata=STATIC)
    capacity: int = dataclasses.field(metadata=STATIC)
    steps_per_epoch: int = dataclasses.field(metadata=STATIC, repr=False)

    def __init__(
        self,
        dataset_size: int,
        k: int,
        t: int,
        *,
        epochs_per_draw: int = 1,
        capacity: int | None = None,
    ):
        size = check_count("dataset_size", dataset_size, minimum=1, maximum=_MOST_RECORDS)
        t = check_count("t", t, minimum=1, maximum=2**31 - 1)
        k = check_count("k", k, minimum=1, maximum=t)
        check_rows("dataset_size * k", size * k)
        self._set(
            dataset_size=size,
            k=k,
            t=t,
            epochs_per_draw=check_count(
                "epochs_per_draw",
                epochs_per_draw,
                minimum=1,
                maximum=(2**32 - 1) // t,
                remedy="a draw serves at most 2**32 - 1 steps",
            ),
            capacity=check_uncut_capacity(capacity, binomial_bound(size, k / t, _CAPACITY_BITS)),
            steps_per_epoch=t,
        )

    def process(self, mechanism: Any) -> Any:
        """Returns the accounting of `period` steps."""
        if self.epochs_per_draw > 1:
            sharper = mechanism.noise_multiplier / math.sqrt(self.epochs_per_draw)
            mechanism = accounting.gaussian(sharper, relation=mechanism.relation)
        return accounting.k_out_of_t(mechanism, k=self.k, t=self.t)

    def _plan(self, words: jax.Array) -> jax.Array:
        """Returns each record's k distinct steps, by Floyd's algorithm: every k-subset alike."""
        w0, w1 = _threefry.words(words, (self.dataset_size, self.k))

        def choose(i: jax.Array, chosen: jax.Array) -> jax.Array:
            last = np.uint32(self.t - self.k) + i
            value = _uniform_below(w0[:, i], w1[:, i], last + np.uint32(1))
            taken = jnp.any(chosen == value[:, None], axis=1)
            return chosen.at[:, i].set(jnp.where(taken, last, value))

        none = jnp.full(w0.shape, 2**32 - 1, jnp.uint32)  # no step: t is smaller
        return lax.fori_loop(np.uint32(0), np.uint32(self.k), choose, none)


@dataclasses.dataclass(frozen=True, init=False)
class ShuffleSampler(_EpochSampler):
    """A sampler that shuffles each epoch and cuts the order into batches: *no amplification*.

    Its accounting is that of one release for each epoch, with nothing gained from the shuffle: a
    Poisson epsilon would not be true of it (Chua et al. 2024, arXiv:2403.17673). It holds for datasets
    of the same public size (ZERO_OUT, REPLACE_ONE): one record more would displace others. The last
    batch of an epoch may be smaller; its padding is masked.

    Args:
      dataset_size: number of records N, public, in [1, 2^30].
      batch_size: b, in [1, N].

    Raises:
      TypeError, ValueError: an argument out of range.
    """

    _tag = "sampling, shuffle"

    dataset_size: int = dataclasses.field(metadata=STATIC)
    batch_size: int = dataclasses.field(metadata=STATIC)
    capacity: int = dataclasses.field(metadata=STATIC, repr=False)
    steps_per_epoch: int = dataclasses.field(metadata=STATIC, repr=False)
    epochs_per_draw: int = dataclasses.field(metadata=STATIC, repr=False)

    def __init__(self, dataset_size: int, batch_size: int):
        size = check_count("dataset_size", dataset_size, minimum=1, maximum=_MOST_RECORDS)
        batch = check_count("batch_size", batch_size, minimum=1, maximum=size)
        self._set(
            dataset_size=size,
            batch_size=batch,
            capacity=batch,
            steps_per_epoch=-(-size // batch),
            epochs_per_draw=1,
        )

    def process(self, mechanism: Any) -> Any:
        """Returns the accounting of one epoch: the mechanism itself, once.

        Raises:
          ValueError: the mechanism is stated under ADD_REMOVE.
        """
        require(
            mechanism.relation is not NeighboringRelation.ADD_REMOVE,
            "a shuffled epoch has no ADD_REMOVE statement (one record more displaces others): build "
            "the mechanism with relation=NeighboringRelation.ZERO_OUT or REPLACE_ONE",
        )
        return mechanism

    def _plan(self, words: jax.Array) -> jax.Array:
        w0, w1 = _threefry.words(words, (self.dataset_size,))
        order = lax.sort((w0, w1, lax.iota(jnp.uint32, self.dataset_size)), num_keys=2)[2]
        rank = jnp.zeros_like(order).at[order].set(lax.iota(jnp.uint32, self.dataset_size))
        return (rank // np.uint32(self.batch_size))[:, None]


@jax.jit
def _plan_of(sampler: _EpochSampler, words: jax.Array, number: jax.Array) -> jax.Array:
    return sampler._plan(step_words(words, number))


def _uniform_below(high: jax.Array, low: jax.Array, bound: Any) -> jax.Array:
    """Returns floor(bound (high 2^32 + low) / 2^64): each value has probability 1 / bound + O(2^-64)."""
    factor = jnp.asarray(bound, jnp.uint32)
    carried = factor * high  # modulo 2^32
    total = carried + _upper_product(factor, low)
    return _upper_product(factor, high) + (total < carried).astype(jnp.uint32)


def _upper_product(factor: jax.Array, word: jax.Array) -> jax.Array:
    """Returns the upper 32 of the 64 bits of a product, in 16-bit halves."""
    half, low = np.uint32(16), np.uint32(0xFFFF)
    fh, fl, wh, wl = factor >> half, factor & low, word >> half, word & low
    across, along = fl * wh, fh * wl
    middle = ((fl * wl) >> half) + (across & low) + (along & low)
    return fh * wh + (across >> half) + (along >> half) + (middle >> half)
