"""What must an engine compute?

A `Problem` says whose gradients are clipped and how norms become coefficients; `Rows` are the privacy units of one
call; `Sums` is the answer. Every engine maps (problem, leaves, rows) to sums, and every engine gives the same ones.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from opake_jax.types import PyTree

__all__ = [
    "Engine",
    "Problem",
    "Rows",
    "Sums",
    "accumulator_dtype",
    "check_engine",
    "cleaned",
    "contract",
    "settled",
    "squared_norm",
    "weigh",
    "weighted_sum",
]


class Rows(NamedTuple):
    """The privacy units of one call: `batch` leaves (B, ...), `mask` (B,) bool, `keys` (B,) or None."""

    batch: PyTree
    mask: jax.Array
    keys: jax.Array | None


class Sums(NamedTuple):
    """What an engine returns.

    Attributes:
      first: for each trainable leaf the sum of clipped gradients.
      second: the same of their elementwise squares, or None.
      loss, norm, aux: per row, shapes (B,), (B, G), (B, ...); whatever they are at padded rows.
    """

    first: list[jax.Array]
    second: list[jax.Array] | None
    loss: jax.Array
    norm: jax.Array
    aux: PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """What to clip and how.

    Attributes:
      loss: (trainable leaves, one unit, its key or None) -> (scalar, aux).
      coefficients: norms (B, G) -> factors (B, G) with factor * norm <= clipping norm.
      groups: for each trainable leaf its group, 0 .. G-1.
      transform: None, or a map of one unit's gradient leaves to leaves of the same shapes, applied before the norm.
      second_moment: whether the sum of squared clipped gradients is asked for.
    """

    loss: Callable[[list[jax.Array], PyTree, jax.Array | None], tuple[jax.Array, PyTree]]
    coefficients: Callable[[jax.Array], jax.Array]
    groups: tuple[int, ...]
    transform: Callable[[list[jax.Array]], list[jax.Array]] | None = None
    second_moment: bool = False

    @property
    def group_count(self) -> int:
        """Returns the number of groups."""
        return 1 + max(self.groups)


class Engine(Protocol):
    """A way to compute clipped sums."""

    def sums(self, problem: Problem, leaves: list[jax.Array], rows: Rows) -> Sums:
        """Returns the clipped sums of these rows, called while tracing."""
        ...


def check_engine(engine: Any) -> None:
    """Raises TypeError unless `engine` can run inside one program."""
    if not callable(getattr(engine, "sums", None)):
        raise TypeError(f"engine must be an engine object such as Vmap(), got {engine!r}")


def accumulator_dtype(dtype: Any) -> Any:
    """Returns the dtype in which gradients of this dtype are squared and summed: float32 or better."""
    return jnp.promote_types(dtype, jnp.float32)


def settled(gradients: list[jax.Array]) -> list[jax.Array]:
    """Returns the gradients, those below float32 rounded once for all.

    XLA may leave out the rounding of an intermediate value in one place and not in another: then the norm would be
    that of other numbers than the sum's, by up to 2^-8.
    """
    floats = [i for i, g in enumerate(gradients) if jnp.issubdtype(g.dtype, jnp.floating)]
    small = [i for i in floats if jnp.finfo(gradients[i].dtype).bits < 32]
    if not small:
        return gradients
    out = list(gradients)
    for i in small:
        info = jnp.finfo(out[i].dtype)
        wide = out[i].astype(jnp.float32)
        out[i] = lax.reduce_precision(wide, info.nexp, info.nmant).astype(out[i].dtype)
    kept = lax.optimization_barrier([out[i] for i in small])
    for i, g in zip(small, kept, strict=True):
        out[i] = g
    return out


def squared_norm(gradient: jax.Array) -> jax.Array:
    """Returns (B,): each row's squared L2 norm, in float32 or better (fp16 squares overflow at 256)."""
    g = gradient.astype(accumulator_dtype(gradient.dtype))
    return jnp.sum(jnp.square(g), axis=tuple(range(1, g.ndim)))


def weigh(
    problem: Problem, squares: list[jax.Array], mask: jax.Array
) -> tuple[jax.Array, list[jax.Array], jax.Array]:
    """Returns (finite, factors, norm) from the squared norms of the leaves, each of shape (B,).

    finite (B,): all squared norms are finite. factors: for each leaf (B,), exactly 0 for a row that is padding or not
    finite, whatever group failed. norm (B, G).
    """
    total: list[Any] = [0.0] * problem.group_count
    for group, square in zip(problem.groups, squares, strict=True):
        total[group] = total[group] + square
    # A Gram norm may round to a negative number where the gradient is zero.
    norm = jnp.sqrt(jnp.maximum(jnp.stack(total, axis=1), 0.0))
    finite = jnp.all(jnp.isfinite(norm), axis=1)
    factors = jnp.where((finite & mask)[:, None], problem.coefficients(norm), 0.0)
    return finite, [factors[:, group] for group in problem.groups], norm


def cleaned(finite: jax.Array, arrays: list[jax.Array]) -> list[jax.Array]:
    """Returns the arrays (B, ...) with rows that are not finite set to zero: a factor of 0 would keep a NaN.

    A select is a pass over everything, and another copy. So it stands in a loop that runs once in a step that has such a row
    and never in others; XLA does it in place.
    """
    floats = [i for i, x in enumerate(arrays) if jnp.issubdtype(x.dtype, jnp.floating)]

    def select(x: jax.Array) -> jax.Array:
        return jnp.where(finite.reshape(-1, *[1] * (x.ndim - 1)), x, 0)

    def body(state: Any) -> Any:
        needed, values = state
        return needed ^ needed, [select(x) for x in values]

    start = (~jnp.all(finite), [arrays[i] for i in floats])
    _, values = lax.while_loop(lambda state: state[0], body, start)
    out = list(arrays)
    for i, x in zip(floats, values, strict=True):
        out[i] = x
    return out


def weighted_sum(
    factors: list[jax.Array], finite: jax.Array, gradients: list[jax.Array]
) -> list[jax.Array]:
    """Returns for each leaf sum_i factor_i gradient_i over the finite rows; gradients are (B, ...)."""
    return [contract(c, g) for c, g in zip(factors, cleaned(finite, gradients), strict=True)]


def contract(c: jax.Array, g: jax.Array) -> jax.Array:
    """Returns sum_i c_i g_i of factors (B,) and arrays (B, ...), in float32 or better."""
    # A matrix-vector product: broadcast-and-sum takes 100 times as long on CPU. HIGHEST: tf32 or bfloat16 products
    # would round a clipped gradient to a norm above the bound.
    dtype = accumulator_dtype(g.dtype)
    return jnp.tensordot(c.astype(dtype), g.astype(dtype), axes=1, precision=lax.Precision.HIGHEST)
