"""The program of value and gradient of one example, and its outputs as values, terms and forms."""

from typing import Any, NamedTuple

import jax

from opake_jax.clipping._ghost._forms import Arranger, Form, form
from opake_jax.clipping._ghost._interpret import run
from opake_jax.clipping._ghost._terms import Known, Lazy, materialise
from opake_jax.clipping._jaxpr import trace
from opake_jax.clipping._problem import Problem

__all__ = ["Outcome", "gradient_forms"]


class Outcome(NamedTuple):
    """One example: its loss, its aux, and the form of its gradient for each leaf."""

    loss: jax.Array
    aux: Any
    forms: list[Form]


def gradient_forms(problem: Problem, leaves: list[jax.Array], example: Any, key: Any) -> Outcome:
    """Returns the outcome of one example; run under `vmap`, where operands get their batch axis."""
    structure: Any = None

    def program_of(leaves: list[jax.Array], example: Any, key: Any) -> Any:
        nonlocal structure
        out, gradient = jax.value_and_grad(problem.loss, has_aux=True)(leaves, example, key)
        flat, structure = jax.tree.flatten(out)
        return flat, gradient

    program = trace(program_of, leaves, example, key)
    arguments: list[Known | Lazy] = [Known(x, False, "parameter") for x in leaves]
    arguments += [Known(x, True, "example") for x in jax.tree.leaves((example, key))]
    count = len(program.outvars) - len(leaves)
    outs = run(program, [False] * count + [True] * len(leaves), arguments)
    loss, aux = jax.tree.unflatten(structure, [materialise(x).array for x in outs[:count]])
    arrange = Arranger()
    forms = [form(g, leaf.shape, arrange) for g, leaf in zip(outs[count:], leaves, strict=True)]
    return Outcome(loss, aux, forms)
