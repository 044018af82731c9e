"""Terms through a loop: over layers, over time.

A scan that outputs one weight gradient per layer outputs its operands instead, stacked; the term then has one stacked axis more.
A scan that adds up the gradient of a weight that every step uses, outputs its operands too; the term then has more positions.
Operands that were inputs of the loop are referred to, not copied.

Where slices are to be reduced (`_two_backward`), a stacked gradient that stands alone is reduced step by step, and no operand is kept.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from opake_jax.clipping._ghost._liveness import SHARED, Want, accumulates
from opake_jax.clipping._ghost._terms import (
    Contraction,
    Dense,
    Known,
    Lazy,
    Reduce,
    Reduced,
    RowScatter,
    Term,
    add,
    materialise,
    term_value,
)
from opake_jax.clipping._jaxpr import scan_body, scan_counts

__all__ = ["run_scan"]


class _Source(NamedTuple):
    """Where an operand of a term can be found after the loop: a constant, a slice, or an output made for it."""

    kind: str
    position: int
    varies: bool


class _Recipe(NamedTuple):
    """A term of an output, with sources in the place of operands."""

    term: Term
    sources: tuple[_Source, ...]


def run_scan(
    equation: Any,
    wanted: list[Want],
    values: list[Any],
    run: Callable[..., Any],
    reduce: Reduce | None,
) -> list[Any] | None:
    """Returns the outputs of a scan, those that are wanted lazily as terms; None if none can be."""
    constants, carries = scan_counts(equation)
    body = scan_body(equation)
    lazy = [
        want if j >= carries or _accumulator(body, constants, j, values) else None
        for j, want in enumerate(wanted)
    ]
    loop = _Loop(equation, body, constants, carries, values, run, reduce)
    if not loop.varies or loop.length == 0:
        return None
    # An accumulator pays if its terms are products: their operands are kept for each step. Others are added up in the loop.
    if any(want is not None for want in lazy[:carries]):
        recipes = loop.dry(lazy)
        lazy = [
            want if j >= carries or _is_product(recipes[j]) else None for j, want in enumerate(lazy)
        ]
    if all(want is None for want in lazy):
        return None
    return loop.outputs(lazy)


def _accumulator(body: Any, constants: int, j: int, values: list[Any]) -> bool:
    return isinstance(values[constants + j], Lazy) and accumulates(body, constants + j, j)


def _is_product(recipes: list[_Recipe]) -> bool:
    return all(isinstance(recipe.term, (Contraction, RowScatter)) for recipe in recipes)


@dataclasses.dataclass(frozen=True)
class _Loop:
    equation: Any
    body: Any
    constants: int
    carries: int
    values: list[Any]
    run: Callable[..., Any]
    reduce: Reduce | None

    @property
    def length(self) -> int:
        return self.equation.params["length"]

    @property
    def varies(self) -> bool:
        """Whether anything in the loop depends on the example."""
        return any(not isinstance(x, Known) or x.varies for x in self.values)

    def dry(self, lazy: list[Want]) -> list[list[_Recipe]]:
        """Returns the recipes of all outputs, without running the loop."""
        recipes: list[list[_Recipe]] = []
        step, start, slices = self._step(lazy, recipes)
        jax.eval_shape(step, start, jax.tree.map(lambda x: x[0], slices))
        return recipes

    def outputs(self, lazy: list[Want]) -> list[Any]:
        """Returns the outputs of the loop."""
        recipes: list[list[_Recipe]] = []
        step, start, slices = self._step(lazy, recipes)
        p = self.equation.params
        end, (plain, made) = lax.scan(
            step, start, slices, length=p["length"], reverse=p["reverse"], unroll=p["unroll"]
        )
        finals, stacks = iter(end), iter(plain)
        out: list[Any] = []
        for j, (variable, want) in enumerate(zip(self.equation.outvars, lazy, strict=True)):
            aval = variable.aval
            if want is None:
                array = next(finals) if j < self.carries else next(stacks)
                out.append(Known(array, True, "a loop"))
                continue
            place = self._total if j < self.carries else self._stack
            terms = [place(recipe, self._operands(recipe, slices, made)) for recipe in recipes[j]]
            parts: list[Any] = [Lazy(tuple(terms), aval.shape, aval.dtype)]
            if j < self.carries:
                parts.append(self.values[self.constants + j])
            out.append(add(parts, aval.shape, aval.dtype))
        return out

    def _step(self, lazy: list[Want], recipes: list[list[_Recipe]]) -> Any:
        """Returns (the loop's body with the operands of terms as further outputs, initial carry, slices)."""
        known = [materialise(x) for x in self.values[: self.constants]]
        start = self.values[self.constants : self.constants + self.carries]
        kept = [materialise(x).array for x, w in zip(start, lazy, strict=False) if w is None]
        slices = [materialise(x) for x in self.values[self.constants + self.carries :]]
        after = self.body.invars[self.constants : self.constants + self.carries]

        def step(carry: Any, arrays: Any) -> Any:
            recipes.clear()
            running = iter(carry)
            inputs = [
                Known(next(running), True) if w is None else Lazy((), v.aval.shape, v.aval.dtype)
                for v, w in zip(after, lazy, strict=False)
            ]
            now = [x._replace(array=a) for x, a in zip(slices, arrays, strict=True)]
            outs = self.run(self.body, lazy, [*known, *inputs, *now], self.reduce)
            made: list[Any] = []
            for j, (out, want) in enumerate(zip(outs, lazy, strict=True)):
                if want is None:
                    recipes.append([])
                    continue
                terms: tuple[Term, ...]
                terms = out.terms if isinstance(out, Lazy) else (Dense(out),)
                if self.reduce is not None and j >= self.carries and want != SHARED:
                    shape = self.body.outvars[j].aval.shape
                    terms = (Reduced(self.reduce(want, out, shape)),)
                kinds = (Contraction, RowScatter) if j < self.carries else (Contraction,)
                recipes.append([_recipe(t, kinds, known, now, made) for t in terms])
            left = [x.array for x, w in zip(outs, lazy, strict=True) if w is None]
            carried = len(kept)
            return left[:carried], (left[carried:], made)

        return step, kept, [x.array for x in slices]

    def _operands(self, recipe: _Recipe, slices: list[Any], made: list[Any]) -> list[Any]:
        """Returns (value, whether it has the loop's axis) for each operand."""
        found: list[Any] = []
        for source in recipe.sources:
            if source.kind == "constant":
                found.append((materialise(self.values[source.position]), False))
            else:
                array = (slices if source.kind == "slice" else made)[source.position]
                found.append((Known(array, source.varies, "a loop"), True))
        return found

    def _stack(self, recipe: _Recipe, operands: list[Any]) -> Term:
        """Returns the term of an output that is stacked along the loop."""
        left, *right = [self._spread(value, stacked) for value, stacked in operands]
        if isinstance(recipe.term, Dense):
            return Dense(left)
        if isinstance(recipe.term, Reduced):
            return Reduced(left)
        assert isinstance(recipe.term, Contraction)
        (lc, rc), (lb, rb) = recipe.term.dimensions
        dimensions = ((_inward(lc), _inward(rc)), ((0, *_inward(lb)), (0, *_inward(rb))))
        steps = tuple(step.stacked(self.length) for step in recipe.term.view)
        return dataclasses.replace(
            recipe.term, left=left, right=right[0], dimensions=dimensions, view=steps
        )

    def _total(self, recipe: _Recipe, operands: list[Any]) -> Term:
        """Returns the term of a sum along the loop: the loop's axis is contracted."""
        left, right = [self._spread(value, stacked) for value, stacked in operands]
        if isinstance(recipe.term, RowScatter):
            index = left._replace(array=left.array.reshape(-1))
            rows = right._replace(array=right.array.reshape(-1, right.array.shape[-1]))
            return dataclasses.replace(recipe.term, left=index, right=rows)
        assert isinstance(recipe.term, Contraction)
        (lc, rc), (lb, rb) = recipe.term.dimensions
        dimensions = (((0, *_inward(lc)), (0, *_inward(rc))), (_inward(lb), _inward(rb)))
        return dataclasses.replace(recipe.term, left=left, right=right, dimensions=dimensions)

    def _spread(self, value: Known, stacked: bool) -> Known:
        if stacked:
            return value
        shape = (self.length, *jnp.shape(value.array))
        return value._replace(array=jnp.broadcast_to(value.array, shape))


def _inward(axes: Any) -> tuple[int, ...]:
    """Returns the axes behind one that is put in front."""
    return tuple(axis + 1 for axis in axes)


def _recipe(
    term: Term, kinds: Any, constants: list[Known], slices: list[Known], made: list[Any]
) -> _Recipe:
    """Returns the term with its operands replaced by where they will be; new ones go to `made`.

    Terms of other kinds are computed in the loop.
    """
    if not isinstance(term, (*kinds, Dense, Reduced)):
        term = Dense(term_value(term))
    operands: tuple[Known, ...]
    operands = (term.value,) if isinstance(term, (Dense, Reduced)) else (term.left, term.right)

    def find(operand: Known) -> _Source:
        places = (("slice", slices), ("constant", constants))
        for kind, values in places:
            for i, value in enumerate(values):
                if value.array is operand.array:
                    return _Source(kind, i, operand.varies)
        for i, array in enumerate(made):
            if array is operand.array:
                return _Source("made", i, operand.varies)
        made.append(operand.array)
        return _Source("made", len(made) - 1, operand.varies)

    return _Recipe(term, tuple(find(operand) for operand in operands))
