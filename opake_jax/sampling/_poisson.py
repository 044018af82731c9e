"""Poisson sampling: every record takes part in a step with probability q, independently."""

import dataclasses
from typing import Any

import jax
import numpy as np

from opake_jax import accounting
from opake_jax._checks import check_count, check_probability, is_traced, require
from opake_jax.sampling._gaps import (
    MAX_ROWS,
    binomial_bound,
    chosen_positions,
    gap_thresholds,
    keep_uniform_subset,
)
from opake_jax.sampling._sampler import (
    MAX_CAPACITY,
    MAX_DATASET_SIZE,
    STATIC,
    Sampler,
    step_words,
)

__all__ = ["PoissonSampler", "check_rate", "check_thresholds", "gap_rows"]

# Without a cap given, more records than fit are drawn with probability below 2^-64 a step; even then
# the subset that is kept is the uniform one that is accounted for.
_CAP_BITS = 64
# The gaps themselves run out with probability below 2^-128 a step: the only event outside the
# accounting, 3e-27 over 10^12 steps.
_GAP_BITS = 128


@dataclasses.dataclass(frozen=True, init=False)
class PoissonSampler(Sampler):
    """A sampler that draws each record with probability `sample_rate`, up to a cap.

    Of more than `capacity` drawn records a uniformly random subset of that size is kept, and
    `process` accounts for it: truncated Poisson with this cap.

    | case | draw |
    |---|---|
    | sample_rate 0 | nothing, in every step |
    | sample_rate 1 | everything; over the cap, a uniform subset of fixed size |
    | capacity None | as large as needed: overflows with probability below 2^-64 a step |

    Args:
      dataset_size: number of records N, public, in [1, 2^31].
      sample_rate: q in [0, 1], usually expected batch size / N; a float, taken exactly.
      capacity: rows of a batch, in [1, 2^31); None: see the table. Public.

    Raises:
      TypeError, ValueError: an argument out of range, or a traced sample rate (the thresholds are
        computed on the host).

    Guarantee: a record is chosen with probability q up to a relative error of order 2^-58, whatever
    the other choices, from 64-bit words of threefry, which is no vetted cipher (see the threat model).

    >>> from opake_jax.random import key
    >>> sampler = PoissonSampler(60_000, 512 / 60_000, capacity=640)
    >>> indices, mask = sampler.sample(key(0), step=3)
    >>> indices.shape, bool(mask.any())
    ((640,), True)
    """

    _tag = "sampling"

    dataset_size: int = dataclasses.field(metadata=STATIC)
    sample_rate: float
    capacity: int = dataclasses.field(metadata=STATIC)
    _thresholds: Any = dataclasses.field(init=False, repr=False, compare=False)
    _rows: int = dataclasses.field(init=False, metadata=STATIC, repr=False, compare=False)

    def __init__(self, dataset_size: int, sample_rate: float, capacity: int | None = None):
        size = check_count("dataset_size", dataset_size, minimum=1, maximum=MAX_DATASET_SIZE)
        rate = check_rate(sample_rate)
        if capacity is None:
            cap = max(1, binomial_bound(size, rate, _CAP_BITS)) if rate > 0 else 1
        else:
            cap = check_count("capacity", capacity, minimum=1, maximum=MAX_CAPACITY)
        rows = gap_rows(size, rate)
        self._set(
            dataset_size=size,
            sample_rate=rate,
            capacity=cap,
            _thresholds=gap_thresholds(size, rate),
            _rows=rows,
        )

    def process(self, mechanism: Any) -> Any:
        """Returns the accounting of one step: truncated Poisson with this cap."""
        check_thresholds(self._thresholds, self.dataset_size, self.sample_rate)
        if self.capacity >= self.dataset_size:
            return accounting.poisson(mechanism, self.sample_rate)
        return accounting.poisson(
            mechanism,
            self.sample_rate,
            truncated_batch_size=self.capacity,
            dataset_size=self.dataset_size,
        )

    def _draw(self, words: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
        positions, priorities = chosen_positions(
            step_words(words, step), self._thresholds, size=self.dataset_size, rows=self._rows
        )
        return keep_uniform_subset(
            positions, priorities, size=self.dataset_size, capacity=self.capacity
        )


def gap_rows(size: int, rate: float) -> int:
    """Returns how many gaps are drawn: they run out with probability below 2^-128."""
    rows = binomial_bound(size, rate, _GAP_BITS) if rate > 0 else 0
    require(
        rows <= MAX_ROWS,
        f"a batch of about {size * rate:.0f} records is too large to be drawn as one array "
        f"(at most {MAX_ROWS}): lower sample_rate",
    )
    return rows


def check_thresholds(thresholds: Any, size: int, rate: Any) -> None:
    """Raises if a sampler's draws are not those of its sample rate: something mapped over its leaves."""
    if is_traced(rate) or is_traced(thresholds):
        return
    if not (0 <= rate <= 1 and np.array_equal(thresholds, gap_thresholds(size, float(rate)))):
        raise ValueError(
            f"the sampler draws at another rate than its sample_rate, {rate}: it was changed after it was made. "
            "Make a new one"
        )


def check_rate(sample_rate: Any) -> float:
    """Returns a concrete sample rate in [0, 1] as a float."""
    if is_traced(sample_rate):
        raise TypeError(
            "sample_rate must be a concrete number: its digits are computed on the host"
        )
    check_probability("sample_rate", sample_rate, remedy="expected batch size / dataset size")
    return float(np.float64(sample_rate))
