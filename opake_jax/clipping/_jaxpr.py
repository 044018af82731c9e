"""All contact with the parts of jax that move between versions: equations, their parameters, their inner programs.

Tested on jax 0.10.2 and 0.12.0.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

__all__ = [
    "Program",
    "bind",
    "constant",
    "has_primitive",
    "inner_program",
    "inner_programs",
    "is_constant",
    "name_of",
    "primitive_names",
    "scan_body",
    "scan_counts",
    "trace",
]

# Equations that only run an inner program, and the parameter that holds it.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
_REMAT = ("remat2", "checkpoint")


class Program:
    """A program and the values of its constants: `invars`, `outvars` and `equations` in order."""

    def __init__(self, jaxpr: Any, constants: Any):
        self.invars = list(jaxpr.invars)
        self.outvars = list(jaxpr.outvars)
        self.equations = list(jaxpr.eqns)
        self.constants = list(zip(jaxpr.constvars, constants, strict=True))


def trace(function: Callable[..., Any], *args: Any) -> Program:
    """Returns the program of `function` at these arguments; flat inputs and outputs in tree order."""
    return _close(jax.make_jaxpr(function)(*args))


def name_of(equation: Any) -> str:
    """Returns the name of the equation's primitive."""
    return equation.primitive.name


def is_constant(atom: Any) -> bool:
    """Returns whether an equation's operand is a literal number."""
    return isinstance(atom, Literal)


def constant(atom: Any) -> Any:
    """Returns the value of a literal."""
    return atom.val


def bind(equation: Any, *values: Any) -> list[Any]:
    """Returns the equation's outputs at these inputs."""
    parameters = equation.primitive.get_bind_params(equation.params)
    with equation.ctx.manager:
        out = equation.primitive.bind(*values, **parameters)
    return list(out) if equation.primitive.multiple_results else [out]


def inner_program(equation: Any) -> Program | None:
    """Returns the program that the equation only runs (jit, remat, custom_jvp, ...), or None."""
    inner = equation.params.get(_CALLS.get(name_of(equation), ""))
    return None if inner is None else _close(inner)


def is_remat_barrier(equation: Any) -> bool:
    """Returns whether the equation recomputes, and its inputs must be kept apart from the first computation."""
    return name_of(equation) in _REMAT and bool(equation.params.get("prevent_cse", False))


def scan_counts(equation: Any) -> tuple[int, int]:
    """Returns the number of constants and of carries of a scan; jax 0.12 keeps them as flat trees."""
    parameters = equation.params
    if "num_consts" in parameters:
        return parameters["num_consts"], parameters["num_carry"]
    constants, carries, _ = parameters["ft_in"].unpack()
    return len(constants), len(carries)


def scan_body(equation: Any) -> Program:
    """Returns the body of a scan: (constants, carries, slices) -> (carries, outputs)."""
    return _close(equation.params["jaxpr"])


def inner_programs(equation: Any) -> Iterator[Program]:
    """Yields all programs that an equation holds in its parameters (jit, scan, cond, ...)."""
    for value in equation.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, (ClosedJaxpr, Jaxpr)):
                yield _close(item)


def primitive_names(function: Callable[..., Any], *args: Any) -> tuple[frozenset[str], Any]:
    """Returns the names of all primitives in the program of `function`, inner programs included, and its output's shapes."""
    jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    return frozenset(_names(_close(jaxpr))), shapes


def has_primitive(function: Callable[..., Any], name: str, *args: Any) -> bool:
    """Returns whether the program of `function` at these arguments has this primitive anywhere."""
    return name in primitive_names(function, *args)[0]


def _names(program: Program) -> Iterator[str]:
    for equation in program.equations:
        yield name_of(equation)
        for inner in inner_programs(equation):
            yield from _names(inner)


def _close(jaxpr: Any) -> Program:
    # In jax 0.12 there is one class, whose constants are among its inputs unless it is closed.
    if hasattr(jaxpr, "jaxpr") and hasattr(jaxpr, "consts"):
        return Program(jaxpr.jaxpr, jaxpr.consts)
    return Program(jaxpr, ())
