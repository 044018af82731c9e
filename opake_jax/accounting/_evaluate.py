"""Where and in which precision is an answer computed?

Always in float64, without touching jax's global flag. Concrete numbers: on the CPU, at once, even inside
somebody's jit. Traced numbers: in the program that traces them, with a derivative that is formed in
float64 as well, so that a float32 program can take it in reverse mode.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from opake_jax._checks import is_traced
from opake_jax.accounting._rounding import to_program

__all__ = ["any_traced", "evaluate_traced", "float64_on_cpu"]


def any_traced(tree: Any) -> bool:
    """Returns True if some number in the tree is a tracer."""
    return any(is_traced(leaf) for leaf in jax.tree.leaves(tree))


@functools.cache
def _cpu() -> jax.Device | None:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # the CPU backend was switched off by JAX_PLATFORMS
        return None


@contextlib.contextmanager
def float64_on_cpu() -> Iterator[None]:
    """Inside, jax computes at once, in float64, on the CPU."""
    with jax.ensure_compile_time_eval(), jax.enable_x64(True), jax.default_device(_cpu()):
        yield


def evaluate_traced(
    core: Callable[[Any], tuple[jax.Array, jax.Array]], arguments: Any
) -> tuple[jax.Array, jax.Array]:
    """Returns core(arguments) = (lower, upper), with tracers among the arguments.

    Args:
      core: a function of the same tree with float64 scalars for leaves; differentiable forwards.
      arguments: a tree of scalars, some of them traced.

    Returns:
      Two scalars in the program's float, rounded outwards. Their derivative is taken in float64 and is
      linear in the program's float, so that jax can transpose it outside.
    """
    leaves, tree = jax.tree.flatten(arguments)
    wide = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    slots = [i for i, leaf in enumerate(leaves) if is_traced(leaf)]

    def from_numbers(numbers: Any) -> tuple[jax.Array, jax.Array]:
        full = [jnp.float64(0.0) if is_traced(leaf) else jnp.float64(leaf) for leaf in leaves]
        for slot, number in zip(slots, numbers, strict=True):
            full[slot] = number
        return core(jax.tree.unflatten(tree, full))

    @jax.custom_jvp
    def call(*numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
        with jax.enable_x64(True):
            lower, upper = from_numbers([n.astype(jnp.float64) for n in numbers])
            return (lower, upper) if wide else (to_program(lower, -1), to_program(upper, +1))

    @call.defjvp
    def _jvp(primals: Any, tangents: Any) -> Any:
        with jax.enable_x64(True):
            point = jnp.stack([p.astype(jnp.float64) for p in primals])
            rows = jax.jacfwd(lambda v: from_numbers(list(v)))(point)
            dtype = jnp.float64 if wide else jnp.float32
            rows = [[row[i].astype(dtype) for i in range(len(slots))] for row in rows]
        slopes = [
            sum(r * t.astype(dtype) for r, t in zip(row, tangents, strict=True)) for row in rows
        ]
        return call(*primals), tuple(slopes)

    floats = [leaves[i] for i in slots]
    return call(*[n if jnp.issubdtype(n.dtype, jnp.floating) else n * 1.0 for n in floats])
