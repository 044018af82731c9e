"""The program of value and gradient of one example, and its outputs as values, terms and forms; whole or in two halves."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from opake_jax.clipping._ghost._forms import Arranger, Form, form
from opake_jax.clipping._ghost._interpret import run
from opake_jax.clipping._ghost._terms import Known, Lazy, materialise
from opake_jax.clipping._jaxpr import Program, trace
from opake_jax.clipping._problem import Problem

__all__ = ["Forward", "Outcome", "forward", "gradient_forms"]


class Outcome(NamedTuple):
    """One example: its loss, its aux, the form of its gradient for each leaf, and what brought the operands into it."""

    loss: jax.Array
    aux: Any
    forms: list[Form]
    arrange: Arranger


class Forward(NamedTuple):
    """One example: its loss, its aux, and the program (*residuals, cotangent of the loss) -> gradient of each leaf."""

    loss: jax.Array
    aux: Any
    residuals: list[Known]
    backward: Program


def gradient_forms(problem: Problem, leaves: list[jax.Array], example: Any, key: Any) -> Outcome:
    """Returns the outcome of one example; run under `vmap`, where operands get their batch axis."""
    structure: Any = None

    def program_of(leaves: list[jax.Array], example: Any, key: Any) -> Any:
        nonlocal structure
        out, gradient = jax.value_and_grad(problem.loss, has_aux=True)(leaves, example, key)
        flat, structure = jax.tree.flatten(out)
        return flat, gradient

    program = trace(program_of, leaves, example, key)
    count = len(program.outvars) - len(leaves)
    outs = run(program, [None] * count + [*range(len(leaves))], _arguments(leaves, example, key))
    loss, aux = jax.tree.unflatten(structure, [materialise(x).array for x in outs[:count]])
    arrange = Arranger()
    forms = [form(g, leaf.shape, arrange) for g, leaf in zip(outs[count:], leaves, strict=True)]
    return Outcome(loss, aux, forms, arrange)


def forward(problem: Problem, leaves: list[jax.Array], example: Any, key: Any) -> Forward:
    """Returns the forward half of one example; run under `vmap`."""
    structure: Any = None
    pullback: Any = None

    def program_of(leaves: list[jax.Array], example: Any, key: Any) -> Any:
        nonlocal structure, pullback
        loss, function, aux = jax.vjp(
            lambda leaves: problem.loss(leaves, example, key), leaves, has_aux=True
        )
        residuals, pullback = jax.tree.flatten(function)
        flat, structure = jax.tree.flatten((loss, aux))
        return flat, residuals

    program = trace(program_of, leaves, example, key)
    outs = run(program, [None] * len(program.outvars), _arguments(leaves, example, key))
    known = [materialise(x) for x in outs]
    count = structure.num_leaves
    loss, aux = jax.tree.unflatten(structure, [x.array for x in known[:count]])
    residuals = known[count:]

    def program_back(residuals: list[jax.Array], cotangent: jax.Array) -> Any:
        (gradient,) = jax.tree.unflatten(pullback, residuals)(cotangent)
        return gradient

    backward = trace(program_back, [x.array for x in residuals], jnp.ones_like(loss))
    return Forward(loss, aux, residuals, backward)


def _arguments(leaves: list[jax.Array], example: Any, key: Any) -> list[Known | Lazy]:
    parameters = [Known(x, False, "parameter") for x in leaves]
    return [*parameters, *(Known(x, True, "example") for x in jax.tree.leaves((example, key)))]
