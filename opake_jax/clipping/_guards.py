"""Is this a loss, a parameter tree and a batch that can be clipped?

Everything here runs while tracing, on shapes and dtypes, and names the leaf that is wrong.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from opake_jax.clipping._jaxpr import primitive_names
from opake_jax.types import PyTree

__all__ = ["check_batch", "check_loss", "check_parameters", "explained", "takes_key"]

# Exceptions by which flax says that a loss changes state that outlives one example, by class name: flax is no dependency.
_STATE_ERRORS = ("ModifyScopeVariableError", "TraceContextError")
_STATE_NOTE = (
    "opake_jax: the loss changes state that is shared between examples (BatchNorm's running statistics are the usual "
    "case). Then one example's gradient depends on others and clipping bounds nothing. Use GroupNorm or LayerNorm, or "
    "BatchNorm with use_running_average=True and fixed statistics. Dropout takes its key as the third argument of "
    "loss_fn(params, example, key)."
)
_COLLECTIVES = (
    "psum", "pmax", "pmin", "pgather", "ppermute", "all_gather", "all_to_all", "reduce_scatter", "ragged_all",
)  # fmt: skip
_STATE_COLLECTION = "batch_stats"  # flax's name for BatchNorm's statistics


def takes_key(loss_fn: Callable[..., Any]) -> bool:
    """Returns whether the loss takes a third positional argument: one without default, or called `key`."""
    try:
        parameters = list(inspect.signature(loss_fn).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 2 and (
        positional[2].default is inspect.Parameter.empty or positional[2].name == "key"
    )


def check_parameters(leaves: list[tuple[Any, Any]]) -> None:
    """Raises unless there is something to train and each trainable (path, leaf) is a floating-point array."""
    if not leaves:
        raise ValueError("params has no trainable leaf: nothing would be clipped or released")
    for path, leaf in leaves:
        dtype = getattr(leaf, "dtype", None)
        if dtype is None and isinstance(leaf, float):
            continue
        if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
            kind = dtype if dtype is not None else type(leaf).__name__
            raise TypeError(
                f"params{jax.tree_util.keystr(path)} is {kind}, and only floating-point leaves have a gradient that "
                "can be clipped: freeze it (trainable= with False there, or None in params)"
            )


def check_batch(batch: PyTree, mask: Any, unit_axis: int | None = None) -> None:
    """Raises unless all leaves and the mask have one number of rows, and with a unit axis one of records."""
    leaves = [
        (f"batch{jax.tree_util.keystr(path)}", leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(batch)
    ]
    if not leaves:
        raise ValueError("batch has no leaves: pass arrays whose first axis counts the examples")
    for name, leaf in leaves:
        if jnp.ndim(leaf) == 0:
            raise ValueError(
                f"{name} is a scalar and has no batch axis: the first axis of every batch leaf counts the examples"
            )
    rows = jnp.shape(leaves[0][1])[0]
    if any(jnp.shape(leaf)[0] != rows for _, leaf in leaves):
        shapes = ", ".join(f"{name} {jnp.shape(leaf)}" for name, leaf in leaves)
        raise ValueError(f"batch leaves disagree on the number of examples (first axis): {shapes}")
    allowed: list[tuple[int, ...]] = [(rows,)]
    if unit_axis is not None:
        records = {jnp.shape(leaf)[unit_axis : unit_axis + 1] for _, leaf in leaves}
        if len(records) != 1 or () in records:
            shapes = ", ".join(f"{name} {jnp.shape(leaf)}" for name, leaf in leaves)
            raise ValueError(
                f"batch leaves disagree on the number of records in a unit (axis {unit_axis}): {shapes}"
            )
        allowed.append((rows, *records.pop()))
    if mask is not None and (jnp.shape(mask) not in allowed or mask.dtype != jnp.bool_):
        raise ValueError(
            f"mask must be boolean of shape {' or '.join(map(str, allowed))}, True at real rows, got "
            f"{mask.dtype} {jnp.shape(mask)}"
        )


def check_loss(
    loss: Callable[..., Any], leaves: list[Any], example: PyTree, key: Any, has_aux: bool
) -> None:
    """Raises unless the loss of one example is a real scalar that depends on this example alone."""
    with explained():
        names, out = primitive_names(loss, leaves, example, key)
    shared = sorted(name for name in names if name.startswith(_COLLECTIVES))
    if shared:
        raise ValueError(
            f"loss_fn talks to other devices ({', '.join(shared)}): one example's gradient would depend on examples there. Take the mean or "
            "sum over devices after clipping: grad_fn(...)[0].psum(axis)"
        )
    if any("custom_vmap" in name for name in names):
        raise ValueError(
            "loss_fn holds a function with a batching rule of its own (jax.custom_batching.custom_vmap), and such a rule "
            "sees all examples of a batch: one example's gradient could depend on others. Write it for one example"
        )
    value, aux = out if has_aux and isinstance(out, tuple) and len(out) == 2 else (out, None)
    if has_aux and value is out:
        raise TypeError(
            f"has_aux=True needs a loss that returns (loss, aux), got {type(out).__name__}"
        )
    shapes = ", ".join(str(jnp.shape(x)) for x in jax.tree.leaves(example))
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise TypeError(
            f"loss_fn must return one real scalar for one example, got {jax.tree.structure(value)}; a loss that "
            "returns (loss, aux) needs has_aux=True"
        )
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            f"loss_fn must return one real scalar for one example, got {value.dtype} of shape {value.shape} for an example with "
            f"leaves of shape {shapes}: the example has no batch axis (add x[None] for a model that wants one, and "
            "take the mean of what comes out)"
        )
    for path, _ in jax.tree_util.tree_leaves_with_path(aux):
        if any(getattr(entry, "key", None) == _STATE_COLLECTION for entry in path):
            raise ValueError(f"aux holds {jax.tree_util.keystr(path)}. {_STATE_NOTE}")


class explained:  # noqa: N801 - reads as a statement: with explained():
    """Adds to flax's errors about shared state what they mean here."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and kind.__name__ in _STATE_ERRORS:
            error.add_note(_STATE_NOTE)
