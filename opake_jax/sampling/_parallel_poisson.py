"""Parallel Poisson sampling: several workers draw from the same records, each for itself."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from opake_jax import _threefry, accounting
from opake_jax._checks import check_count, check_key, require
from opake_jax.random import key_data, tagged
from opake_jax.sampling._gaps import chosen_positions, gap_thresholds, keep_uniform_subset
from opake_jax.sampling._poisson import check_rate, check_thresholds, gap_rows
from opake_jax.sampling._sampler import (
    MAX_CAPACITY,
    MAX_DATASET_SIZE,
    STATIC,
    Sampler,
    check_rows,
    check_step,
    step_words,
)

__all__ = ["ParallelPoissonSampler", "check_uncut_capacity"]

# As many as `accounting.parallel_poisson` takes: more could be drawn, but not accounted for.
_MOST_WORKERS = 128


@dataclasses.dataclass(frozen=True, init=False)
class ParallelPoissonSampler(Sampler):
    """A sampler in which each of W workers draws each record with probability `sample_rate`.

    How often a record takes part in a step is Binomial(W, sample_rate): more than once is possible,
    and costs more than Poisson sampling at the rate W * sample_rate would. Nothing is ever cut: a
    worker's `capacity` rows do not suffice with probability below 2^-128 a step.

    `sample` gives all workers' rows, worker after worker, shape (W * capacity,): split along axis 0
    they go to the workers' devices. `sample_worker` gives the rows of one.

    Args:
      dataset_size: number of records, public, in [1, 2^31]; all workers see all of them.
      sample_rate: each worker's rate, in [0, 1], taken exactly.
      num_workers: W, in [1, 128].
      capacity: rows of one worker; None: as few as the above allows. Fewer are refused, since no
        analysis covers a cut.

    Raises:
      TypeError, ValueError: an argument out of range.

    Guarantee: the workers' streams are distinct, and each draws as `PoissonSampler` does.
    """

    _tag = "sampling, parallel poisson"

    dataset_size: int = dataclasses.field(metadata=STATIC)
    sample_rate: float
    num_workers: int = dataclasses.field(metadata=STATIC)
    capacity: int = dataclasses.field(metadata=STATIC)
    _thresholds: Any = dataclasses.field(init=False, repr=False, compare=False)
    _rows: int = dataclasses.field(init=False, metadata=STATIC, repr=False, compare=False)

    def __init__(
        self,
        dataset_size: int,
        sample_rate: float,
        num_workers: int,
        *,
        capacity: int | None = None,
    ):
        size = check_count("dataset_size", dataset_size, minimum=1, maximum=MAX_DATASET_SIZE)
        rate = check_rate(sample_rate)
        rows = gap_rows(size, rate)
        workers = check_count("num_workers", num_workers, minimum=1, maximum=_MOST_WORKERS)
        cap = check_uncut_capacity(capacity, max(1, rows))
        check_rows("num_workers * capacity", workers * cap)
        self._set(
            dataset_size=size,
            sample_rate=rate,
            num_workers=workers,
            capacity=cap,
            _thresholds=gap_thresholds(size, rate),
            _rows=rows,
        )

    def process(self, mechanism: Any) -> Any:
        """Returns the accounting of one step."""
        check_thresholds(self._thresholds, self.dataset_size, self.sample_rate)
        return accounting.parallel_poisson(mechanism, self.sample_rate, self.num_workers)

    def sample_worker(self, key: jax.Array, step: Any, worker: Any) -> tuple[jax.Array, jax.Array]:
        """Returns `(indices, mask)` of one worker's rows, shape (capacity,): part of `sample`.

        Args:
          key: a typed key, the same on all workers.
          step: whole number in [0, 2^32), may be traced.
          worker: in [0, num_workers), may be traced (`lax.axis_index`).
        """
        check_key("key", key)
        worker = check_count("worker", worker, maximum=self.num_workers - 1)
        words = step_words(key_data(tagged(key, self._tag)), check_step(step))
        indices, mask = self._draw_worker(words, worker)
        # A traced worker that is none draws nothing.
        return indices, mask & (worker >= 0) & (worker < self.num_workers)

    def _draw(self, words: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
        words = step_words(words, step)
        draw = jax.vmap(lambda worker: self._draw_worker(words, worker))
        indices, mask = draw(jnp.arange(self.num_workers))
        return indices.reshape(-1), mask.reshape(-1)

    def _draw_worker(self, words: jax.Array, worker: Any) -> tuple[jax.Array, jax.Array]:
        positions, priorities = chosen_positions(
            _threefry.fold(words, worker),
            self._thresholds,
            size=self.dataset_size,
            rows=self._rows,
        )
        return keep_uniform_subset(
            positions, priorities, size=self.dataset_size, capacity=self.capacity
        )


def check_uncut_capacity(capacity: Any, needed: int) -> int:
    """Returns the capacity, at least `needed`: for samplers in which no analysis covers a cut."""
    if capacity is None:
        return needed
    capacity = check_count("capacity", capacity, minimum=1, maximum=MAX_CAPACITY)
    require(
        capacity >= needed,
        f"capacity must be at least {needed}, got {capacity}: with less, records would be cut, "
        "which this sampler's accounting does not cover. For less memory use the Chunked engine",
    )
    return capacity
