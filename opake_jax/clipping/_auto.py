"""The engine that picks the cheapest way."""

import dataclasses

import jax

from opake_jax._checks import check_count
from opake_jax.clipping._ghost._engine import Ghost
from opake_jax.clipping._mesh import varying_axes
from opake_jax.clipping._parts import in_parts
from opake_jax.clipping._problem import Engine, Problem, Rows, Sums
from opake_jax.clipping._vmap import Vmap
from opake_jax.clipping._work import Work, work_of

__all__ = ["Auto"]

# A batch whose values leave the cache runs slower than the same rows in parts that stay in it (a decoder of 128 tokens, one CPU thread: 0.62 of the
# time). The size is that of the last-level cache that the prices in _ghost/_cost.py were fitted on.
_CACHE = 16 * 2**20
# Each part reads and adds to all weights once. Its price in multiply-adds of the forward pass for each weight: dense layers at one position took
# 1.15 and 5.5 of the batch's time in parts of 64 and 4, and the decoder 1.08 in parts of 1 of what it took in parts of 4 (one CPU thread).
_PART = 15.0
# A part is large enough when that price is this share of its work.
_SHARE = 0.03
# Time of two backward passes beside book-keeping, on parts of one size: a decoder that recomputes its layers, 1.58 and 1.12 of the plain step.
_SECOND = 1.4


@dataclasses.dataclass(frozen=True)
class Auto:
    """Engine that picks the cheapest of the others for this loss, batch and backend, while tracing.

    It runs `Ghost` (or `Vmap` where every gradient is needed: `pre_clipping`, `second_moment`) on the whole batch at once; on
    a CPU in parts if the batch's values leave the cache and a part has enough work for each weight, never with convolutions; and in
    parts wherever the limit asks for it. Where these would be too small to pay, it runs the backward pass twice on larger ones.

    Args:
      memory_limit: bytes of temporary memory to stay below, estimated from the program's values, at least 1; None: no limit, or what a plain
        step keeps if the loss recomputes (`jax.checkpoint`). One row at a time is the least that is tried.

    Raises:
      TypeError, ValueError: a limit that is no whole number of at least 1.
    """

    memory_limit: int | None = None

    def __post_init__(self) -> None:
        if self.memory_limit is not None:
            limit = check_count("memory_limit", self.memory_limit, minimum=1)
            object.__setattr__(self, "memory_limit", limit)

    def sums(self, problem: Problem, leaves: list[jax.Array], rows: Rows) -> Sums:
        """Returns the clipped sums of these rows."""
        count = rows.mask.shape[0]
        example, key = jax.tree.map(lambda x: x[0], (rows.batch, rows.keys))
        work = work_of(problem, leaves, example, key)
        weights = sum(leaf.size for leaf in leaves)
        every = problem.transform is not None or problem.second_moment
        size = count
        if jax.default_backend() == "cpu" and not work.convolves:
            size = min(size, _cheapest(work, count, weights, every))
        engine: Engine
        if every:
            engine, size = Vmap(), min(size, self._most(count, work.total + 4 * weights, None))
        else:
            # A loss that recomputes says that memory is short: no more than it keeps itself.
            kept = work.total + work.at_once
            limit = count * kept if work.recomputed else None
            once = min(size, self._most(count, work.total + work.recomputed, limit))
            twice = min(size, self._most(count, kept, limit))
            part = _PART * weights / max(work.products, 1.0)
            second = _SECOND + part / twice < 1.0 + part / once
            engine, size = (
                Ghost(self.memory_limit, second_backward=second),
                twice if second else once,
            )
        return in_parts(engine, _even(size, leaves, rows), problem, leaves, rows)

    def _most(self, count: int, each: float, limit: float | None) -> int:
        """Returns how many rows may be worked on at once if each keeps `each` bytes; `limit` holds where the user gave none."""
        limit = limit if self.memory_limit is None else float(self.memory_limit)
        return count if limit is None else min(count, max(1, int(limit // max(each, 1))))


def _even(size: int, leaves: list[jax.Array], rows: Rows) -> int:
    """Returns the size of the parts when all are made about equal."""
    count = rows.mask.shape[0]
    if size < count and not varying_axes((leaves, rows)):
        # The batch may lie on all devices (that does not show here): a part must too.
        size = min(count, -(-size // jax.device_count()) * jax.device_count())
    return -(-count // -(-count // size))


def _cheapest(work: Work, count: int, weights: int, every: bool) -> int:
    """Returns the rows of a part on a CPU."""
    if every:  # gradients are written, read for the norm and read for the sum
        return max(1, _CACHE // (4 * weights))
    if count * work.largest <= _CACHE:
        return count
    return max(1, round(_PART / _SHARE * weights / max(work.products, 1.0)))
