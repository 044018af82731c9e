"""The engine: norms and weighted sums of per-example gradients that are mostly never computed."""

import dataclasses
import functools
import math
from typing import Any

import jax

from opake_jax.clipping._ghost._cost import Machine, Way, choose, machine
from opake_jax.clipping._ghost._forms import Form, Whole
from opake_jax.clipping._ghost._norms import squared_norm_of
from opake_jax.clipping._ghost._sums import Operands, Summand, summand
from opake_jax.clipping._ghost._trace import gradient_forms
from opake_jax.clipping._ghost._two_backward import two_backward
from opake_jax.clipping._problem import Problem, Rows, Sums, cleaned, weigh
from opake_jax.clipping._vmap import Vmap

__all__ = ["Ghost", "ways"]


@dataclasses.dataclass(frozen=True)
class Ghost:
    """Engine that computes norms from activations and cotangents, leaf by leaf where that is cheaper; exact for every loss.

    The backward program of one example is read, not its layers: dense and convolution weights, embeddings, weights used several times,
    scans over layers or time are found in any framework's code. What matches nothing is computed for that leaf alone. `explain` prints
    what is done. A transform of gradients and second moments need every gradient: then it works as `Vmap`.

    Args:
      memory_limit: bytes of per-example gradients that may be kept at once; None: no limit.
      machine: prices by which the way of each leaf is chosen; None: those of the backend.
      second_backward: run the backward pass a second time for the weighted sums, instead of keeping activations and cotangents of all
        leaves until the norms are known. Slower, with the memory of a plain step; for losses that recompute (`jax.checkpoint`).
    """

    memory_limit: int | None = None
    machine: Machine | None = None
    second_backward: bool = False

    def sums(self, problem: Problem, leaves: list[jax.Array], rows: Rows) -> Sums:
        """Returns the clipped sums of these rows."""
        if problem.transform is not None or problem.second_moment:
            return Vmap().sums(problem, leaves, rows)
        if self.second_backward:
            pick = functools.partial(ways, batch=rows.mask.shape[0], engine=self)
            return two_backward(problem, leaves, rows, pick)
        summands: list[Summand] = []

        def one(example: Any, key: Any) -> Any:
            loss, aux, forms, arrange = gradient_forms(problem, leaves, example, key)
            operands = Operands(arrange)
            squares = []
            summands.clear()
            chosen = ways(forms, rows.mask.shape[0], self)
            for f, way in zip(forms, chosen, strict=True):
                square, kept = squared_norm_of(f, way)
                squares.append(square)
                summands.append(summand(f, kept, operands))
            return (loss, aux, squares, operands.varying), operands.fixed

        axes = (0, None if rows.keys is None else 0)
        (loss, aux, squares, varying), fixed = jax.vmap(one, in_axes=axes, out_axes=(0, None))(
            rows.batch, rows.keys
        )
        finite, factors, norm = weigh(problem, squares, rows.mask)
        varying = cleaned(finite, varying)
        first = [
            s(c, varying, fixed).reshape(leaf.shape)
            for s, c, leaf in zip(summands, factors, leaves, strict=True)
        ]
        return Sums(first, None, loss, norm, aux)


def ways(forms: list[Form], batch: int, engine: Ghost) -> list[Way]:
    """Returns how each leaf's norm is computed for a batch of this size."""
    room = math.inf if engine.memory_limit is None else float(engine.memory_limit)
    room = 0.0 if engine.second_backward else room  # nothing is kept between the passes
    prices = machine() if engine.machine is None else engine.machine
    out = []
    for f in forms:
        if isinstance(f, Whole):
            way = Way.WHOLE
            size = f.value.array.size
        else:
            way = choose(f, batch, prices, room)
            size = math.prod(f.layout)
        if way in (Way.WHOLE, Way.KEEP):
            room -= 4 * batch * size
        out.append(way)
    return out
