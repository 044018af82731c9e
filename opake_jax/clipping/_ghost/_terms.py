"""What may a gradient be, before it is computed?

A gradient is a sum of terms; a term is linear in each of its two operands. All arrays here belong to one example; the batch axis is
added by the `vmap` around the interpreter.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from opake_jax.clipping._jaxpr import bind
from opake_jax.clipping._problem import accumulator_dtype

__all__ = [
    "Apply",
    "Contraction",
    "Convolution",
    "Dense",
    "Known",
    "Lazy",
    "Reduce",
    "Reduced",
    "Reshape",
    "RowScatter",
    "Step",
    "Term",
    "Transpose",
    "add",
    "materialise",
    "scaled",
    "stepped",
    "term_value",
    "total",
    "view",
]


class Known(NamedTuple):
    """A value that has been computed.

    Attributes:
      array: the value.
      varies: whether it depends on the example; if not, it has no batch axis under `vmap`.
      origin: the primitive that it came from, for `explain`.
    """

    array: Any
    varies: bool
    origin: str = "input"


@dataclasses.dataclass(frozen=True)
class Transpose:
    """A permutation of the axes."""

    permutation: tuple[int, ...]

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the permuted array."""
        return lax.transpose(x, self.permutation)

    def stacked(self, length: int) -> "Transpose":
        """Returns the step that acts on a stack of `length` arrays."""
        return Transpose((0, *(axis + 1 for axis in self.permutation)))


@dataclasses.dataclass(frozen=True)
class Reshape:
    """A change of shape."""

    shape: tuple[int, ...]

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the reshaped array."""
        return lax.reshape(x, self.shape)

    def stacked(self, length: int) -> "Reshape":
        """Returns the step that acts on a stack of `length` arrays."""
        return Reshape((length, *self.shape))


@dataclasses.dataclass(frozen=True)
class Apply:
    """Any other linear isometry: reversal or padding with zeros."""

    function: Callable[[jax.Array], jax.Array]

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the mapped array."""
        return self.function(x)

    def stacked(self, length: int) -> "Apply":
        """Returns the step that acts on a stack of `length` arrays."""
        return Apply(jax.vmap(self.function))


Step = Transpose | Reshape | Apply


@dataclasses.dataclass(frozen=True)
class Contraction:
    """view(dot_general(left, right, dimensions)), in the precision that the loss asked for."""

    left: Known
    right: Known
    dimensions: Any
    precision: Any = None
    view: tuple[Step, ...] = ()


@dataclasses.dataclass(frozen=True)
class Convolution:
    """view(conv_general_dilated(left, right)), one group; `equation` holds its parameters."""

    left: Known
    right: Known
    equation: Any
    view: tuple[Step, ...] = ()


@dataclasses.dataclass(frozen=True)
class RowScatter:
    """view(zeros(shape) with row index[k] increased by rows[k]); an index of shape[0] is dropped."""

    left: Known  # (K,) integers
    right: Known  # (K, N)
    shape: tuple[int, int]
    view: tuple[Step, ...] = ()


@dataclasses.dataclass(frozen=True)
class Dense:
    """An array that has been computed."""

    value: Known


@dataclasses.dataclass(frozen=True)
class Reduced:
    """What a `Reduce` made of the slices of a gradient, stacked along their loops. It stands alone: nothing is added to it."""

    value: Known
    view: tuple[Step, ...] = ()


Term = Contraction | Convolution | RowScatter | Dense | Reduced


@dataclasses.dataclass(frozen=True)
class Lazy:
    """A sum of terms of this shape and dtype; no term: zero."""

    terms: tuple[Term, ...]
    shape: tuple[int, ...]
    dtype: Any


# (number of the gradient, one slice of it, the slice's shape) -> what is kept of the slice
Reduce = Callable[[int, Known | Lazy, tuple[int, ...]], Known]


def add(values: list[Known | Lazy], shape: tuple[int, ...], dtype: Any) -> Lazy:
    """Returns the sum, with the dense terms of each kind (varying or not) added up."""
    terms: list[Term] = []
    dense: dict[bool, Known] = {}
    for value in values:
        for term in value.terms if isinstance(value, Lazy) else (Dense(value),):
            if not isinstance(term, Dense):
                terms.append(term)
                continue
            new, old = term.value, dense.get(term.value.varies)
            dense[new.varies] = (
                new if old is None else Known(old.array + new.array, new.varies, new.origin)
            )
    return Lazy((*terms, *(Dense(value) for value in dense.values())), shape, dtype)


def stepped(lazy: Lazy, step: Step | None, shape: tuple[int, ...], dtype: Any) -> Lazy:
    """Returns the image of a sum under a linear isometry (None: the identity)."""

    def move(term: Term) -> Term:
        if step is None:
            return term
        if isinstance(term, Dense):
            return Dense(term.value._replace(array=step(term.value.array)))
        return dataclasses.replace(term, view=(*term.view, step))

    return Lazy(tuple(move(term) for term in lazy.terms), shape, dtype)


def scaled(lazy: Lazy, factor: Callable[[jax.Array], jax.Array], varies: bool, dtype: Any) -> Lazy:
    """Returns the sum times a scalar: `factor` multiplies an array by it, `varies` says whether it differs by example."""

    def scale(value: Known) -> Known:
        wide = value.array.astype(accumulator_dtype(value.array.dtype))
        return Known(factor(wide), value.varies or varies, value.origin)

    def one(term: Term) -> Term:
        if isinstance(term, Dense):
            return Dense(scale(term.value))
        assert not isinstance(term, Reduced)
        return dataclasses.replace(term, right=scale(term.right))

    return Lazy(tuple(one(term) for term in lazy.terms), lazy.shape, dtype)


def view(x: jax.Array, steps: tuple[Step, ...]) -> jax.Array:
    """Returns `x` after all steps."""
    for step in steps:
        x = step(x)
    return x


def contraction_shape(term: Contraction) -> tuple[int, int, int, int]:
    """Returns (S, K, M, N): stacked products, positions, and the sides of the matrices."""
    (left, _), (batch, _) = term.dimensions
    a, g = term.left.array.shape, term.right.array.shape
    stacked = math.prod(a[d] for d in batch)
    positions = math.prod(a[d] for d in left)
    return (
        stacked,
        positions,
        math.prod(a) // max(1, stacked * positions),
        math.prod(g) // max(1, stacked * positions),
    )


def term_value(term: Term) -> Known:
    """Returns the term, computed, in float32 or better."""
    if isinstance(term, Dense):
        return term.value
    assert not isinstance(term, Reduced)
    varies = term.left.varies or term.right.varies
    a, g = term.left.array, term.right.array
    wide = accumulator_dtype(g.dtype)
    if isinstance(term, Contraction):
        out = lax.dot_general(
            a, g, term.dimensions, precision=term.precision, preferred_element_type=wide
        )
    elif isinstance(term, Convolution):
        (out,) = bind(term.equation, a, g)
    else:
        out = jnp.zeros(term.shape, wide).at[a].add(g.astype(wide), mode="drop")
    return Known(view(out, term.view), varies, type(term).__name__)


def total(value: Known | Lazy) -> Known:
    """Returns the value, computed, in the widest dtype of its terms."""
    if isinstance(value, Known):
        return value
    if not value.terms:
        return Known(jnp.zeros(value.shape, value.dtype), False, "zeros")
    first, *rest = [term_value(term) for term in value.terms]
    for part in rest:
        first = Known(first.array + part.array, first.varies or part.varies, first.origin)
    return first


def materialise(value: Known | Lazy) -> Known:
    """Returns the value, computed, in its own dtype."""
    if isinstance(value, Known):
        return value
    out = total(value)
    return out._replace(array=out.array.astype(value.dtype))
