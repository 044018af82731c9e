"""Runs a program and leaves the values that need not be computed as sums of terms."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from opake_jax.clipping._ghost._liveness import (
    Want,
    is_row_scatter,
    lazy_operands,
    lazy_variables,
)
from opake_jax.clipping._ghost._scan import run_scan
from opake_jax.clipping._ghost._terms import (
    Apply,
    Contraction,
    Convolution,
    Known,
    Lazy,
    Reduce,
    Reshape,
    RowScatter,
    Transpose,
    add,
    materialise,
    scaled,
    stepped,
)
from opake_jax.clipping._jaxpr import (
    Program,
    bind,
    constant,
    inner_program,
    is_constant,
    is_remat_barrier,
    name_of,
)

__all__ = ["run"]

Value = Known | Lazy


def run(
    program: Program, wanted: list[Want], arguments: list[Value], reduce: Reduce | None = None
) -> list[Value]:
    """Returns the outputs of the program: those that are wanted lazily may come as terms.

    With `reduce`, the slices of a gradient that a loop would stack are reduced in the loop.
    """
    lazy = lazy_variables(program, wanted)
    known: dict[Any, Value] = {v: Known(x, False) for v, x in program.constants}
    known.update(zip(program.invars, arguments, strict=True))

    def read(atom: Any) -> Value:
        return Known(constant(atom), False, "constant") if is_constant(atom) else known[atom]

    for equation in program.equations:
        outs = [lazy.get(v) for v in equation.outvars]
        values = _equation(equation, outs, [read(atom) for atom in equation.invars], reduce)
        known.update(zip(equation.outvars, _as_wanted(values, outs), strict=True))
    return _as_wanted([read(atom) for atom in program.outvars], wanted)


def _as_wanted(values: list[Value], wanted: list[Want]) -> list[Value]:
    return [materialise(x) if w is None else x for x, w in zip(values, wanted, strict=True)]


def _equation(
    equation: Any, wanted: list[Want], values: list[Value], reduce: Reduce | None
) -> list[Value]:
    if any(want is not None for want in wanted):
        inner = inner_program(equation)
        if inner is not None:
            return _call(equation, inner, wanted, values, reduce)
        if name_of(equation) == "scan":
            outs = run_scan(equation, wanted, values, run, reduce)
            return compute(equation, values) if outs is None else outs
        rule = _RULES.get(name_of(equation))
        value = None if rule is None else rule(equation, values)
        if value is not None:
            return [value]
    return compute(equation, values)


def compute(equation: Any, values: list[Value]) -> list[Value]:
    """Returns the equation's outputs, computed as the program says."""
    inputs = [materialise(value) for value in values]
    varies = any(x.varies for x in inputs)
    outs = bind(equation, *(x.array for x in inputs))
    return [Known(x, varies, name_of(equation)) for x in outs]


def _call(
    equation: Any,
    inner: Program,
    wanted: list[Want],
    values: list[Value],
    reduce: Reduce | None,
) -> list[Value]:
    values = _as_wanted(values, lazy_operands(equation, wanted))
    if is_remat_barrier(equation):
        # As jax does it: without the barrier XLA would find the first computation and keep its results.
        kept = iter(lax.optimization_barrier([x.array for x in values if isinstance(x, Known)]))
        values = [x._replace(array=next(kept)) if isinstance(x, Known) else x for x in values]
    return run(inner, wanted, values, reduce)


def _like(equation: Any) -> tuple[tuple[int, ...], Any]:
    aval = equation.outvars[0].aval
    return aval.shape, aval.dtype


def _contraction(equation: Any, values: list[Value]) -> Value | None:
    left, right = (materialise(value) for value in values)
    if not (left.varies or right.varies):
        return None
    p = equation.params
    term = Contraction(left, right, p["dimension_numbers"], p["precision"])
    return Lazy((term,), *_like(equation))


def _convolution(equation: Any, values: list[Value]) -> Value | None:
    left, right = (materialise(value) for value in values)
    groups = equation.params["feature_group_count"] * equation.params["batch_group_count"]
    if groups != 1 or not (left.varies and right.varies):
        return None
    return Lazy((Convolution(left, right, equation),), *_like(equation))


def _scatter(equation: Any, values: list[Value]) -> Value | None:
    table, index, rows = values
    if not is_row_scatter(equation) or not isinstance(table, Lazy):
        return None
    (count, *row), dtype = _like(equation)
    positions, updates = materialise(index), materialise(rows)
    at = positions.array.reshape(-1)
    if equation.params["mode"] == lax.GatherScatterMode.CLIP:
        at = jnp.clip(at, 0, count - 1)
    at = jnp.where((at < 0) | (at >= count), count, at)
    width = math.prod(row)
    term = RowScatter(
        Known(at, positions.varies),
        updates._replace(array=updates.array.reshape(at.size, width)),
        (count, width),
        () if len(row) == 1 else (Reshape((count, *row)),),
    )
    return Lazy((*table.terms, term), (count, *row), dtype)


def _zeros(equation: Any, values: list[Value]) -> Value | None:
    atom = equation.invars[0]
    if is_constant(atom) and np.ndim(constant(atom)) == 0 and constant(atom) == 0:
        return Lazy((), *_like(equation))
    return _reshape(equation, values)


def _reshape(equation: Any, values: list[Value]) -> Value | None:
    shape, dtype = _like(equation)
    if not isinstance(values[0], Lazy):
        return None
    return stepped(values[0], Reshape(shape), shape, dtype)


def _step(equation: Any, values: list[Value]) -> Value | None:
    if not isinstance(values[0], Lazy):
        return None
    rest = [materialise(value).array for value in values[1:]]
    step: Any = None
    if name_of(equation) == "transpose":
        step = Transpose(tuple(equation.params["permutation"]))
    elif name_of(equation) in ("rev", "pad"):
        step = Apply(lambda x: bind(equation, x, *rest)[0])
    return stepped(values[0], step, *_like(equation))


def _negative(equation: Any, values: list[Value]) -> Value | None:
    if not isinstance(values[0], Lazy):
        return None
    return scaled(values[0], lambda x: -x, False, _like(equation)[1])


def _sum(equation: Any, values: list[Value]) -> Value | None:
    return add(values, *_like(equation)) if any(isinstance(x, Lazy) for x in values) else None


def _product(equation: Any, values: list[Value]) -> Value | None:
    lazy = [x for x in values if isinstance(x, Lazy)]
    others = [x for x in values if isinstance(x, Known)]
    if len(lazy) != 1 or jnp.shape(others[0].array) != ():
        return None
    by = others[0]
    if name_of(equation) == "mul":
        return scaled(lazy[0], lambda x: x * by.array, by.varies, _like(equation)[1])
    return scaled(lazy[0], lambda x: x / by.array, by.varies, _like(equation)[1])


_RULES: dict[str, Callable[[Any, list[Value]], Value | None]] = {
    "dot_general": _contraction,
    "conv_general_dilated": _convolution,
    "scatter-add": _scatter,
    "broadcast_in_dim": _zeros,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _step,
    "rev": _step,
    "pad": _step,
    "copy": _step,
    "copy_p": _step,
    "name": _step,
    "convert_element_type": _step,
    "neg": _negative,
    "add_any": _sum,
    "mul": _product,
    "div": _product,
}
