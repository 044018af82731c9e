"""The weighted sum of all examples' gradients of one leaf, from the operands of its terms.

sum_i c_i A_i^T G_i is one contraction over (example, position): the book-keeping of Bu et al. 2022 (arXiv:2210.00038, section 3), with no second
backward pass.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from opake_jax.clipping._ghost._forms import Arranger, Form, Whole
from opake_jax.clipping._ghost._patches import fold_batch
from opake_jax.clipping._ghost._terms import Known, Step, view
from opake_jax.clipping._problem import accumulator_dtype, contract

__all__ = ["Operands", "Summand", "summand"]

_HIGHEST = lax.Precision.HIGHEST


class Place(NamedTuple):
    """Where an operand is among those that vary or those that do not, and its shape for one example."""

    varies: bool
    position: int
    shape: tuple[int, ...]


class Operands:
    """The arrays that sums are made of, each once: those that vary by example and those that do not."""

    def __init__(self, arrange: Arranger) -> None:
        self.varying: list[jax.Array] = []
        self.fixed: list[jax.Array] = []
        self._arrange = arrange

    def put(self, value: Known) -> Place:
        """Returns where the array is found."""
        arrays = self.varying if value.varies else self.fixed
        # The gradient of a bias is the cotangent that is an operand of the weight's.
        source = self._arrange.source(value.array)
        at = next((i for i, array in enumerate(arrays) if array is source), len(arrays))
        if at == len(arrays):
            arrays.append(source)
        return Place(value.varies, at, value.array.shape)


@dataclasses.dataclass(frozen=True)
class Summand:
    """One leaf: places of its operands, and how they are summed."""

    places: tuple[Place, ...]
    total: Callable[..., jax.Array]  # (factors (B,), *operands as (array, varies)) -> leaf
    steps: tuple[Step, ...]

    def __call__(
        self, factors: jax.Array, varying: list[jax.Array], fixed: list[jax.Array]
    ) -> jax.Array:
        """Returns the sum over examples; varying operands have a leading batch axis."""
        operands = []
        for varies, i, shape in self.places:
            rows = (len(factors),) if varies else ()
            operands.append(((varying if varies else fixed)[i].reshape((*rows, *shape)), varies))
        return view(self.total(factors, *operands), self.steps)


def summand(form: Form, kept: Known | None, operands: Operands) -> Summand:
    """Returns how a leaf is summed; what it needs is put among the operands."""
    if isinstance(form, Whole):
        return Summand((operands.put(form.value),), _whole, ())
    if kept is not None:
        return Summand((operands.put(kept),), _whole, form.view)
    if form.convolution is not None and form.constant is None:
        term = form.convolution
        places = (operands.put(term.left), operands.put(term.right))
        return Summand(places, _convolution(term.equation), term.view)
    values: list[Known] = []
    kinds: list[Any] = []
    for kind, pair in (
        (_products, (form.left, form.right)),
        (_scatter(form.layout), (form.index, form.rows)),
        (_constant, (form.constant,)),
    ):
        if pair[0] is not None:
            kinds.append((kind, len(pair)))
            values.extend(x for x in pair if x is not None)
    return Summand(tuple(operands.put(x) for x in values), _together(tuple(kinds)), form.view)


def _together(kinds: tuple[Any, ...]) -> Callable[..., jax.Array]:
    def total(factors: jax.Array, *operands: Any) -> jax.Array:
        out, at = None, 0
        for kind, count in kinds:
            part = kind(factors, *operands[at : at + count])
            out, at = part if out is None else out + part, at + count
        assert out is not None
        return out

    return total


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(accumulator_dtype(x.dtype))


def _scale(factors: jax.Array, x: jax.Array) -> jax.Array:
    x = _wide(x)
    return factors.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1)) * x


def _whole(factors: jax.Array, value: Any) -> jax.Array:
    array, varies = value
    return contract(factors, array) if varies else _wide(array) * jnp.sum(factors)


_constant = _whole


def _products(factors: jax.Array, left: Any, right: Any) -> jax.Array:
    (a, a_varies), (g, g_varies) = left, right
    if not a_varies:
        return jnp.einsum("skm,skn->smn", _wide(a), contract(factors, g), precision=_HIGHEST)
    if not g_varies:
        return jnp.einsum("skm,skn->smn", contract(factors, a), _wide(g), precision=_HIGHEST)
    a, g = (
        (_scale(factors, a), _wide(g))
        if a.shape[-1] < g.shape[-1]
        else (_wide(a), _scale(factors, g))
    )
    if a.shape[1] > 1:
        return jnp.einsum("bskm,bskn->smn", a, g, precision=_HIGHEST)
    # One matrix product over (example, position); the barrier keeps XLA from undoing the flattening, and saves a quarter on CPU.
    a, g = lax.optimization_barrier((a.reshape(-1, a.shape[-1]), g.reshape(-1, g.shape[-1])))
    return lax.dot_general(a, g, (((0,), (0,)), ((), ())), precision=_HIGHEST)[None]


def _scatter(layout: tuple[int, int, int]) -> Callable[..., jax.Array]:
    def total(factors: jax.Array, index: Any, rows: Any) -> jax.Array:
        (at, at_varies), (values, values_vary) = index, rows
        if not values_vary:
            values = jnp.broadcast_to(values, (len(factors), *values.shape))
        if not at_varies:
            at = jnp.broadcast_to(at, values.shape[:2])
        values = _scale(factors, values).reshape(-1, values.shape[-1])
        table = jnp.zeros(layout[1:], values.dtype)
        return table.at[at.reshape(-1)].add(values, mode="drop")[None]

    return total


def _convolution(equation: Any) -> Callable[..., jax.Array]:
    """The convolution that the loss's own backward pass would do for a batch: examples become features."""
    numbers = equation.params["dimension_numbers"]

    def total(factors: jax.Array, left: Any, right: Any) -> jax.Array:
        x = fold_batch(_wide(left[0]), numbers.lhs_spec[1])
        g = fold_batch(_scale(factors, right[0]), numbers.rhs_spec[1])
        p = {
            **equation.params,
            "precision": (_HIGHEST, _HIGHEST),
            "preferred_element_type": g.dtype,
        }
        return lax.conv_general_dilated_p.bind(x, g, **p)

    return total
