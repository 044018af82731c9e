"""Clipped sums with a second backward pass in the place of books.

Book-keeping holds the operands of all terms until the norms are known: activations and cotangents of every layer at once, so that a loss
that recomputes them saves nothing. Here the forward pass runs once and keeps what the loss's own backward pass needs. One backward pass gives
the norms, a second one the weighted sums; in both a loop over layers reduces each layer's gradient, to a number or to a sum over examples, before
it goes on to the next. The idea of two passes is Goodfellow's (2015, arXiv:1510.01799).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from opake_jax.clipping._ghost._cost import Way
from opake_jax.clipping._ghost._forms import Arranger, Form, form
from opake_jax.clipping._ghost._interpret import run
from opake_jax.clipping._ghost._norms import squared_norm_of
from opake_jax.clipping._ghost._sums import Operands, Summand, summand
from opake_jax.clipping._ghost._terms import Known, Lazy, Reduce, Reduced, view
from opake_jax.clipping._ghost._trace import forward
from opake_jax.clipping._mesh import vary, varying_axes
from opake_jax.clipping._problem import Problem, Rows, Sums, cleaned, weigh

__all__ = ["two_backward"]


def two_backward(
    problem: Problem,
    leaves: list[jax.Array],
    rows: Rows,
    ways: Callable[[list[Form]], list[Way]],
) -> Sums:
    """Returns the clipped sums of these rows."""

    def one(example: Any, key: Any, real: jax.Array) -> Any:
        loss, aux, residuals, backward = forward(problem, leaves, example, key)

        def gradients(residuals: list[Known], reduce: Reduce) -> list[jax.Array]:
            """Returns what `reduce` makes of each leaf's gradient."""
            seed = Known(vary(jnp.ones((), loss.dtype), varying_axes(loss)), False)
            out = run(backward, [*range(len(leaves))], [*residuals, seed], reduce)
            both = zip(out, leaves, strict=True)
            return [reduce(n, value, leaf.shape).array for n, (value, leaf) in enumerate(both)]

        squares = [square[None] for square in gradients(residuals, _norms(ways))]
        finite, factors, norm = weigh(problem, squares, real[None])
        # Behind a barrier: else XLA finds that the second pass does what the first one did, and keeps what that made.
        arrays = [x.array for x in residuals if x.varies]
        arrays, factors = lax.optimization_barrier((arrays, factors))
        following = iter(arrays)
        again = [x._replace(array=next(following)) if x.varies else x for x in residuals]
        total = gradients(again, _sums(finite[0], [factor[0] for factor in factors]))
        return (loss, aux, norm[0]), total

    axes = (0, None if rows.keys is None else 0, 0)
    (loss, aux, norm), total = jax.vmap(one, in_axes=axes, out_axes=(0, None))(
        rows.batch, rows.keys, rows.mask
    )
    return Sums(total, None, loss, norm, aux)


def _norms(ways: Callable[[list[Form]], list[Way]]) -> Reduce:
    """Returns the reduction of one example's gradient to its squared norm."""
    arrange = Arranger()

    def square(number: int, gradient: Known | Lazy, shape: tuple[int, ...]) -> Known:
        del number
        done = _reduced(gradient)
        if done is not None:  # a norm for each step of a loop
            return Known(jnp.sum(done.value.array), True)
        whole = form(gradient, shape, arrange)
        (way,) = ways([whole])
        return Known(squared_norm_of(whole, way)[0], True)

    return square


def _sums(finite: jax.Array, factors: list[jax.Array]) -> Reduce:
    """Returns the reduction of one example's gradient to the weighted sum of all examples', which has no batch axis under `vmap`."""
    arrange = Arranger()

    def total(number: int, gradient: Known | Lazy, shape: tuple[int, ...]) -> Known:
        done = _reduced(gradient)
        if done is not None:
            return Known(view(done.value.array, done.view), False)
        operands = Operands(arrange)
        part = summand(form(gradient, shape, arrange), None, operands)
        array = _over_rows(part, finite, factors[number], operands)
        return Known(array.reshape(shape), False)

    return total


def _reduced(gradient: Known | Lazy) -> Reduced | None:
    terms = gradient.terms if isinstance(gradient, Lazy) else ()
    return next((term for term in terms if isinstance(term, Reduced)), None)


def _over_rows(
    part: Summand, finite: jax.Array, factor: jax.Array, operands: Operands
) -> jax.Array:
    """Returns the weighted sum over the rows of the enclosing `vmap`."""

    @custom_vmap
    def call(finite: Any, factor: Any, varying: Any, fixed: Any) -> jax.Array:
        alone = cleaned(finite[None], [x[None] for x in varying])
        return part(factor[None], alone, fixed)

    @call.def_vmap
    def _(size: int, batched: Any, finite: Any, factor: Any, varying: Any, fixed: Any) -> Any:
        whole = [
            x if has else jnp.broadcast_to(x, (size, *x.shape))
            for x, has in zip(varying, batched[2], strict=True)
        ]
        return part(factor, cleaned(finite, whole), fixed), False

    return call(finite, factor, operands.varying, operands.fixed)
