"""The batch in parts, one program call each: a host loop."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax._checks import is_traced
from opake_jax.clipping._sized import Sized

__all__ = ["Chunked"]


@dataclasses.dataclass(frozen=True)
class Chunked(Sized):
    """Engine that calls one compiled program on `size` real rows at a time, and adds up.

    A host loop: not for use inside `jit`. It compiles once for any batch size, skips padding wherever it lies, and so takes
    Poisson draws without a cap. On a CPU it is often the fastest engine for convolutions. Batch leaves may be numpy arrays; then only
    one chunk at a time is moved to the device.

    Args:
      size: rows in each chunk, at least 1.
      engine: how each chunk is computed.

    Raises:
      TypeError, ValueError: `size` is not a whole number of at least 1, `engine` no engine.
    """

    def loop(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `run(params, batch, mask, key, limit, index) -> (sums, values per row)` as a loop over chunks."""
        run = jax.jit(functools.partial(run, self.engine))  # traced once, for shapes and for sums

        @functools.partial(jax.jit, donate_argnums=0)
        def add(total: Any, *args: Any) -> Any:
            sums, values = run(*args)
            return jax.tree.map(jnp.add, total, sums), values

        def call(params: Any, batch: Any, mask: Any, key: Any, limit: Any, index: Any) -> Any:
            del index  # rows are counted here
            if any(is_traced(x) for x in jax.tree.leaves((params, batch, mask, key, limit))):
                raise ValueError(
                    "Chunked is a host loop of compiled calls and cannot run inside jit, grad or vmap: jit the "
                    "rest of the step, or use Microbatched(size)"
                )
            count = len(jax.tree.leaves(batch)[0])
            marks = np.ones(count, bool) if mask is None else np.asarray(mask)
            real = np.flatnonzero(marks.any(axis=tuple(range(1, marks.ndim))))

            def arguments(rows: np.ndarray, keep: np.ndarray) -> Any:
                kept = marks[rows] & keep.reshape(-1, *[1] * (marks.ndim - 1))
                return params, _take(batch, rows), kept, key, limit, rows

            chunk = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((self.size, *x.shape[1:]), x.dtype),
                (batch, marks, np.zeros(count, np.uint32)),
            )
            sums, values = run.eval_shape(params, chunk[0], chunk[1], key, limit, chunk[2])
            total = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), sums)
            found = []
            for start in range(0, len(real), self.size):
                rows, keep = _rows(real, start, self.size)
                total, part = add(total, *arguments(rows, keep))
                found.append((rows[keep], keep, part))
            return total, _scatter(values, found, count)

        return call


def _rows(real: np.ndarray, start: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns `size` row numbers from position `start` of the real rows, filled up with the first, and which are real."""
    rows = real[start : start + size]
    keep = np.arange(size) < len(rows)
    return np.concatenate([rows, np.full(size - len(rows), rows[0])]).astype(np.uint32), keep


def _take(batch: Any, rows: np.ndarray) -> Any:
    return jax.tree.map(
        lambda x: (
            x[rows.astype(np.int64)] if isinstance(x, np.ndarray) else jnp.take(x, rows, axis=0)
        ),
        batch,
    )


def _scatter(shapes: Any, found: list[Any], total: int) -> Any:
    """Returns the values of all rows in their places; where no chunk reached, NaN for floats and 0 for others."""

    def place(path_values: list[Any], shape: Any) -> jax.Array:
        fill = np.nan if jnp.issubdtype(shape.dtype, jnp.floating) else 0
        out = np.full((total, *shape.shape[1:]), fill, shape.dtype)
        for (rows, keep, _), value in zip(found, path_values, strict=True):
            out[rows] = np.asarray(value)[keep]
        return jnp.asarray(out)

    leaves, treedef = jax.tree.flatten(shapes)
    parts = [jax.tree.leaves(part) for _, _, part in found]
    return jax.tree.unflatten(
        treedef, [place([p[i] for p in parts], leaf) for i, leaf in enumerate(leaves)]
    )
