"""How much work is one example?"""

import math
from typing import Any, NamedTuple

import jax

from opake_jax.clipping._jaxpr import (
    Program,
    inner_programs,
    name_of,
    scan_body,
    trace,
)
from opake_jax.clipping._problem import Problem

__all__ = ["Work", "work_of"]


class Work(NamedTuple):
    """One example's loss, without its gradient (which costs about twice as much again).

    Attributes:
      products: multiply-adds of matrix products and convolutions.
      largest: bytes of the largest value that an equation makes.
      total: bytes of all values that equations make, what a backward pass may keep at most; those that are recomputed are not in it.
      recomputed: bytes of all values that are recomputed (`jax.checkpoint`).
      at_once: the most of them that are there at the same time.
      convolves: whether there is a convolution.
    """

    products: float
    largest: int
    total: float
    recomputed: float
    at_once: float
    convolves: bool


def work_of(problem: Problem, leaves: list[jax.Array], example: Any, key: Any) -> Work:
    """Returns the work of one example."""
    return _of(trace(problem.loss, leaves, example, key))


def _of(program: Program) -> Work:
    products, largest, convolves = 0.0, 0, False
    total, recomputed, at_once = 0.0, 0.0, 0.0
    for equation in program.equations:
        name, turns = name_of(equation), 1
        if name == "scan":
            inner, turns = [scan_body(equation)], equation.params["length"]
        else:
            inner = list(inner_programs(equation))
        for part in map(_of, inner):
            products += turns * part.products
            largest = max(largest, part.largest)
            if name in ("remat2", "checkpoint"):
                recomputed += part.total + part.recomputed
                at_once = max(at_once, part.total + part.at_once)
            else:
                total += turns * part.total
                recomputed += turns * part.recomputed
                at_once = max(at_once, part.at_once)
            convolves |= part.convolves
        sizes = [_bytes(v.aval) for v in equation.outvars]
        largest = max([largest, *sizes])
        total += sum(sizes)
        products += _products(name, equation)
        convolves |= name == "conv_general_dilated"
    return Work(products, largest, total, recomputed, at_once, convolves)


def _bytes(aval: Any) -> int:
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 4)


def _products(name: str, equation: Any) -> float:
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return math.prod(equation.outvars[0].aval.shape) * math.prod(left[d] for d in contracted)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        features = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
        return math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) / features
    return 0.0
