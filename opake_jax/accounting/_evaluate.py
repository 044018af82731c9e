"""Where and in which precision is an answer computed?

Always in float64, without touching jax's global flag. Known numbers: by NumPy, at once, even inside somebody's
jit. Traced numbers: in the program that traces them, with a derivative that is formed in
float64 as well, so that a float32 program can take it in reverse mode.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax._checks import is_traced
from opake_jax.accounting._rounding import to_program, to_wide_program

__all__ = [
    "Grouped",
    "any_traced",
    "ask_each",
    "evaluate_each",
    "evaluate_traced",
    "or_trivial",
    "quietly",
]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Grouped:
    """A mechanism as a group sees it, once its numbers are in float64."""

    mechanism: Any
    size: int = dataclasses.field(metadata={"static": True})

    def settled(self) -> Any:
        """Returns the group's mechanism."""
        return self.mechanism.grouped(self.size)

    @property
    def pair_is_tight(self) -> bool:
        """Returns that of the group's mechanism."""
        return self.settled().pair_is_tight

    def squared_mu(self) -> Any:
        """Returns None if the group's mechanism is no Gaussian; the number itself is not to be used."""
        return self.settled().squared_mu()

    def is_valid(self) -> Any:
        """Returns: the mechanism's numbers are in range."""
        return self.mechanism.is_valid()


def _settled(tree: Any) -> Any:
    """Returns the tree with everything computed that waited for float64."""

    def waits(node: Any) -> bool:
        return isinstance(node, Grouped)

    return jax.tree.map(lambda n: n.settled() if waits(n) else n, tree, is_leaf=waits)


def any_traced(tree: Any) -> bool:
    """Returns True if some number in the tree is a tracer."""
    return any(is_traced(leaf) for leaf in jax.tree.leaves(tree))


def quietly() -> np.errstate:
    """Inside, NumPy computes as jax does: inf and NaN where they arise, without a word."""
    return np.errstate(all="ignore")


def evaluate_traced(
    core: Callable[[Any], tuple[jax.Array, ...]], arguments: Any, sides: tuple[int, ...]
) -> tuple[jax.Array, ...]:
    """Returns core(arguments), with tracers among the arguments, in the program's float.

    Args:
      core: a function of the same tree with float64 leaves; differentiable forwards.
      arguments: a tree of numbers, some of them traced.
      sides: for each result of core, on which side it must stay when it is rounded: +1 or -1.

    Returns:
      The results, rounded outwards. Their derivative is formed in float64 and is linear in the
      program's float, so that jax can transpose it outside.
    """
    leaves, tree = jax.tree.flatten(arguments)
    slots = [i for i, leaf in enumerate(leaves) if is_traced(leaf)]
    wide = jax.config.jax_enable_x64  # type: ignore[attr-defined, unused-ignore]
    dtype = jnp.float64 if wide else jnp.float32

    def in_float64(numbers: Any) -> tuple[jax.Array, ...]:
        full = [None if is_traced(leaf) else np.asarray(leaf, np.float64) for leaf in leaves]
        for slot, number in zip(slots, numbers, strict=True):
            full[slot] = number
        with quietly():
            return core(_settled(jax.tree.unflatten(tree, full)))

    def rounded(values: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        out = to_wide_program if wide else to_program
        return tuple(out(v, side) for v, side in zip(values, sides, strict=True))

    @jax.custom_jvp
    def call(*numbers: jax.Array) -> tuple[jax.Array, ...]:
        return alone(*numbers)

    @jax.custom_batching.custom_vmap
    def alone(*numbers: jax.Array) -> tuple[jax.Array, ...]:
        with jax.enable_x64(True):
            return rounded(in_float64([jnp.asarray(n, jnp.float64) for n in numbers]))

    @alone.def_vmap
    def _in_turn(size: int, batched: Any, *numbers: jax.Array) -> Any:
        # A grid of settings would need a grid of atoms: few at a time.
        def one(rows: Any) -> tuple[jax.Array, ...]:
            rows = iter(rows)
            return alone(*(next(rows) if b else n for n, b in zip(numbers, batched, strict=True)))

        moving = [n for n, b in zip(numbers, batched, strict=True) if b]
        return jax.lax.map(one, moving), (True,) * len(sides)

    @functools.partial(call.defjvp, symbolic_zeros=True)
    def _jvp(primals: Any, tangents: Any) -> Any:
        moving = [
            i
            for i, t in enumerate(tangents)
            if not isinstance(t, jax.custom_derivatives.SymbolicZero)
        ]
        if not moving:
            values = call(*primals)
            return values, tuple(jnp.zeros_like(v) for v in values)
        with jax.enable_x64(True):
            point = [jnp.asarray(primals[i], jnp.float64) for i in moving]

            def along(some: Any) -> tuple[Any, Any]:
                full = [jnp.asarray(p, jnp.float64) for p in primals]
                for i, number in zip(moving, some, strict=True):
                    full[i] = number
                values = in_float64(full)
                return values, values

            rows, values = jax.jacfwd(along, has_aux=True)(point)
            rows = [
                [_where_finite(value, slope).astype(dtype) for slope in row]
                for value, row in zip(values, rows, strict=True)
            ]
            values = rounded(values)
        slopes = []
        for value, row in zip(values, rows, strict=True):
            total = jnp.zeros_like(value)
            for i, slope in zip(moving, row, strict=True):
                total = total + jnp.tensordot(slope, tangents[i], np.ndim(tangents[i]))
            slopes.append(total)
        return values, tuple(slopes)

    return call(*[leaves[i] for i in slots])


def evaluate_each(
    core: Callable[[Any], tuple[jax.Array, ...]], parts: Any, at: Any, sides: tuple[int, ...]
) -> tuple[jax.Array, ...]:
    """Returns `evaluate_traced` of core at (parts, at), or at each entry of a vector `at`.

    A known vector stays in float64; a traced one is exact in the program's float.
    """
    if np.ndim(at) == 0:
        return evaluate_traced(core, (parts, at), sides)
    if is_traced(at):
        return jax.vmap(lambda x: evaluate_traced(core, (parts, x), sides))(at)

    def entries(arguments: Any) -> tuple[jax.Array, ...]:
        parts, at = arguments
        return jax.lax.map(lambda x: core((parts, x)), jnp.asarray(at))

    return evaluate_traced(entries, (parts, np.asarray(at, np.float64)), sides)


def ask_each(ask: Callable[[Any], Any], at: Any) -> tuple[Any, Any]:
    """Returns (lower, upper) of a question at a number, an array or a list, something in it or beside it traced."""
    if is_traced(at):
        flat = at.ravel() if at.ndim else at
    elif any_traced(at):  # a list: what is known in it stays in float64
        tiny = float(jnp.finfo(jnp.result_type(float)).tiny)
        ends = [ask(x) if is_traced(x) else ask(float(x)) for x in at]
        # An upper end that is known already: below the program's floats it would become 0.
        ends = [(a, max(b, tiny) if not is_traced(b) and b > 0 else b) for a, b in ends]
        lower, upper = (
            jnp.stack([jnp.asarray(end) for end in side]) for side in zip(*ends, strict=True)
        )
        return lower, upper
    else:
        at = np.asarray(at, np.float64)
        flat = at.ravel() if at.ndim else float(at)
    if np.size(flat) == 0:
        return jnp.zeros(np.shape(at)), jnp.zeros(np.shape(at))
    lower, upper = ask(flat)
    return jnp.reshape(lower, np.shape(at)), jnp.reshape(upper, np.shape(at))


@jax.custom_jvp
def or_trivial(valid: jax.Array, value: jax.Array, trivial: jax.Array) -> jax.Array:
    """Returns the value, or the trivial bound where it isn't valid.

    The slope is NaN there: 0 would say that nothing matters.
    """
    return jnp.where(valid, value, trivial)


@or_trivial.defjvp
def _or_trivial_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    valid, value, trivial = primals
    return or_trivial(valid, value, trivial), tangents[1] * jnp.where(valid, 1.0, jnp.nan)


def _where_finite(value: jax.Array, slope: jax.Array) -> jax.Array:
    """Returns the slope, NaN where the value is infinite: 0 would say that nothing matters there."""
    known = jnp.isfinite(value).reshape(value.shape + (1,) * (slope.ndim - value.ndim))
    return jnp.where(known, slope, jnp.nan)
