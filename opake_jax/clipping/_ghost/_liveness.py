"""Which values of a backward program need never be computed?

A value may stay lazy if its every use is a step of a linear isometry, a sum or a scaling on the way to an output that may. One
pass from the outputs back to the inputs decides it, and enters inner programs.

What is wanted of a value is a `Want`: None if it must be computed; `SHARED` if it may stay lazy; and the number of a gradient if it may
stay lazy and becomes that gradient all by itself, by isometries: then its norm is the gradient's norm.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from opake_jax.clipping._jaxpr import (
    Program,
    constant,
    inner_program,
    is_constant,
    name_of,
    scan_body,
    scan_counts,
)

__all__ = ["SHARED", "Want", "is_row_scatter", "lazy_operands", "lazy_variables"]

Want = int | None
SHARED = -1

_ISOMETRIES = frozenset(
    ("transpose", "reshape", "squeeze", "expand_dims", "copy", "copy_p", "rev", "name")
)


def lazy_variables(program: Program, outputs: list[Want]) -> dict[Any, Want]:
    """Returns what is wanted of each variable that may stay lazy, given what is wanted of the outputs."""
    wanted: dict[Any, Want] = {}

    def use(atom: Any, want: Want) -> None:
        if is_constant(atom):
            return
        if atom in wanted and want is not None and wanted[atom] is not None:
            want = SHARED
        elif atom in wanted:
            want = None
        wanted[atom] = want

    for atom, want in zip(program.outvars, outputs, strict=True):
        use(atom, want)
    for equation in reversed(program.equations):
        outs = [wanted.get(v, SHARED) for v in equation.outvars]
        for atom, want in zip(equation.invars, lazy_operands(equation, outs), strict=True):
            use(atom, want)
    return {v: want for v, want in wanted.items() if want is not None}


def lazy_operands(equation: Any, wanted: list[Want]) -> list[Want]:
    """Returns what the equation wants of its operands, given what is wanted of its outputs."""
    count = len(equation.invars)
    inner = inner_program(equation)
    if inner is not None:
        lazy = lazy_variables(inner, wanted)
        return [lazy.get(v) for v in inner.invars]
    if name_of(equation) == "scan":
        return _scan_operands(equation, wanted)
    if not wanted or wanted[0] is None:  # jax 0.12 has equations without outputs
        return [None] * count
    if _is_isometry(equation):
        return [wanted[0], *[None] * (count - 1)]
    linear = _linear_positions(equation)
    return [SHARED if i in linear else None for i in range(count)]


def _is_isometry(equation: Any) -> bool:
    """Returns whether the equation is a linear isometry in its first operand."""
    name, atoms = name_of(equation), equation.invars
    if name == "broadcast_in_dim":
        same = math.prod(equation.params["shape"]) == math.prod(atoms[0].aval.shape)
        return same and len(atoms) == 1
    if name == "convert_element_type":
        kinds = (equation.params["new_dtype"], atoms[0].aval.dtype)
        return all(jnp.issubdtype(kind, jnp.floating) for kind in kinds)
    if name == "pad":
        zero = is_constant(atoms[1]) and np.ndim(constant(atoms[1])) == 0
        crops = any(low < 0 or high < 0 for low, high, _ in equation.params["padding_config"])
        return zero and constant(atoms[1]) == 0 and not crops
    return name in _ISOMETRIES


def _linear_positions(equation: Any) -> tuple[int, ...]:
    """Returns the operands in which the equation is a sum or a scaling."""
    name, atoms = name_of(equation), equation.invars
    if name == "neg":
        return (0,)
    if name == "add_any":
        return (0, 1)
    if name == "mul":
        return tuple(i for i in (0, 1) if atoms[1 - i].aval.shape == ())
    if name == "div":
        return (0,) if atoms[1].aval.shape == () else ()
    if name == "scatter-add":
        return (0,) if is_row_scatter(equation) else ()
    return ()


def is_row_scatter(equation: Any) -> bool:
    """Returns whether a scatter-add adds whole rows to a table: the gradient of an embedding."""
    table, index, rows = (atom.aval for atom in equation.invars)
    numbers = equation.params["dimension_numbers"]
    row = table.ndim - 1
    return (
        tuple(numbers.inserted_window_dims) == (0,)
        and tuple(numbers.scatter_dims_to_operand_dims) == (0,)
        and not numbers.operand_batching_dims
        and index.shape[-1:] == (1,)
        and rows.shape[rows.ndim - row :] == table.shape[1:]
        and tuple(numbers.update_window_dims) == tuple(range(rows.ndim - row, rows.ndim))
    )


def _scan_operands(equation: Any, wanted: list[Want]) -> list[Want]:
    """Returns SHARED at the carries that only accumulate, and whose total is wanted lazily."""
    constants, carries = scan_counts(equation)
    body = scan_body(equation)
    lazy: list[Want] = [None] * len(equation.invars)
    for j in range(carries):
        if wanted[j] is not None and accumulates(body, constants + j, j):
            lazy[constants + j] = SHARED
    return lazy


def accumulates(body: Program, position: int, output: int) -> bool:
    """Returns whether a carry of a scan only has things added to it."""
    value, target = body.invars[position], body.outvars[output]
    while value is not target:
        uses = [e for e in body.equations for atom in e.invars if atom is value]
        if len(uses) != 1 or name_of(uses[0]) != "add_any":
            return False
        if any(atom is value for atom in body.outvars):
            return False
        value = uses[0].outvars[0]
    return sum(atom is target for atom in body.outvars) == 1
