"""Which values of a backward program need never be computed?

A value may stay lazy if its every use is a step of a linear isometry, a sum or a scaling on the way to an output that may. One
pass from the outputs back to the inputs decides it, and enters inner programs.
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

__all__ = ["is_row_scatter", "lazy_operands", "lazy_variables"]

_ISOMETRIES = frozenset(
    ("transpose", "reshape", "squeeze", "expand_dims", "copy", "copy_p", "rev", "name")
)


def lazy_variables(program: Program, outputs: list[bool]) -> set[Any]:
    """Returns the variables that may stay lazy, given which outputs may."""
    may: dict[Any, bool] = {}

    def use(atom: Any, lazily: bool) -> None:
        if not is_constant(atom):
            may[atom] = may.get(atom, True) and lazily

    for atom, lazily in zip(program.outvars, outputs, strict=True):
        use(atom, lazily)
    for equation in reversed(program.equations):
        wanted = [may.get(v, True) for v in equation.outvars]
        for atom, lazily in zip(equation.invars, lazy_operands(equation, wanted), strict=True):
            use(atom, lazily)
    return {v for v, lazily in may.items() if lazily}


def lazy_operands(equation: Any, wanted: list[bool]) -> list[bool]:
    """Returns which operands the equation can take lazily, given which of its outputs are wanted so."""
    count = len(equation.invars)
    inner = inner_program(equation)
    if inner is not None:
        lazy = lazy_variables(inner, wanted)
        return [v in lazy for v in inner.invars]
    if name_of(equation) == "scan":
        return _scan_operands(equation, wanted)
    linear = _linear_positions(equation) if wanted[0] else ()
    return [i in linear for i in range(count)]


def _linear_positions(equation: Any) -> tuple[int, ...]:
    """Returns the operands in which the equation is a sum, a scaling or a linear isometry."""
    name, atoms = name_of(equation), equation.invars
    if name in _ISOMETRIES or name == "neg":
        return (0,)
    if name == "add_any":
        return (0, 1)
    if name == "broadcast_in_dim":
        same = math.prod(equation.params["shape"]) == math.prod(atoms[0].aval.shape)
        return (0,) if same and len(atoms) == 1 else ()
    if name == "convert_element_type":
        kinds = (equation.params["new_dtype"], atoms[0].aval.dtype)
        return (0,) if all(jnp.issubdtype(kind, jnp.floating) for kind in kinds) else ()
    if name == "pad":
        zero = is_constant(atoms[1]) and np.ndim(constant(atoms[1])) == 0
        return (0,) if zero and constant(atoms[1]) == 0 else ()
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


def _scan_operands(equation: Any, wanted: list[bool]) -> list[bool]:
    """Returns True at the carries that only accumulate, and whose total is wanted lazily."""
    constants, carries = scan_counts(equation)
    body = scan_body(equation)
    lazy = [False] * len(equation.invars)
    for j in range(carries):
        lazy[constants + j] = wanted[j] and accumulates(body, constants + j, j)
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
