"""The plain engine: one gradient per row by vmap. Exact for every loss, and the oracle of all others."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from opake_jax.clipping._problem import (
    Problem,
    Rows,
    Sums,
    settled,
    squared_norm,
    weigh,
    weighted_sum,
)

__all__ = ["Vmap", "sums_of_gradients"]


@dataclasses.dataclass(frozen=True)
class Vmap:
    """Engine that holds all per-example gradients at once: memory B times the parameters."""

    def sums(self, problem: Problem, leaves: list[jax.Array], rows: Rows) -> Sums:
        """Returns the clipped sums of these rows."""

        def one(example: Any, key: Any) -> Any:
            (loss, aux), gradient = jax.value_and_grad(problem.loss, has_aux=True)(
                leaves, example, key
            )
            if problem.transform is not None:
                gradient = problem.transform(gradient)
            return loss, aux, gradient

        axes = (0, None if rows.keys is None else 0)
        loss, aux, gradients = jax.vmap(one, in_axes=axes)(rows.batch, rows.keys)
        return sums_of_gradients(problem, gradients, rows.mask, loss, aux)


def sums_of_gradients(
    problem: Problem, gradients: list[jax.Array], mask: jax.Array, loss: jax.Array, aux: Any
) -> Sums:
    """Returns the clipped sums, given every row's gradient."""
    gradients = settled(gradients)
    finite, factors, norm = weigh(problem, [squared_norm(g) for g in gradients], mask)
    first = weighted_sum(factors, finite, gradients)
    second = None
    if problem.second_moment:
        # Clip, then square: the square of a small factor would underflow.
        squares = [
            jnp.square(c.astype(s.dtype).reshape(-1, *[1] * s.ndim) * g.astype(s.dtype))
            for c, g, s in zip(factors, gradients, first, strict=True)
        ]
        second = weighted_sum([jnp.ones_like(c) for c in factors], finite, squares)
    return Sums(first, second, loss, norm, aux)
