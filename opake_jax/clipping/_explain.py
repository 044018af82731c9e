"""What would be done with each leaf, and why?"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from opake_jax._checks import check_count
from opake_jax.clipping._ghost._cost import Way, sizes
from opake_jax.clipping._ghost._engine import Ghost, ways
from opake_jax.clipping._ghost._forms import Whole
from opake_jax.clipping._ghost._trace import gradient_forms
from opake_jax.clipping._guards import check_loss
from opake_jax.clipping._options import Options, Spec
from opake_jax.clipping._partition import partition
from opake_jax.clipping._problem import Problem
from opake_jax.clipping._rules import Fixed
from opake_jax.clipping._run import prepare
from opake_jax.types import PyTree

__all__ = ["Explanation", "LeafExplanation", "explain"]


@dataclasses.dataclass(frozen=True)
class LeafExplanation:
    """One leaf: its path, its shape, how its norm is computed, and why."""

    path: str
    shape: tuple[int, ...]
    way: str
    why: str


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A table, one line for each trainable leaf; `str` and `repr` print it."""

    leaves: tuple[LeafExplanation, ...]
    batch_size: int

    def __str__(self) -> str:
        rows = [(e.path, "x".join(map(str, e.shape)) or "()", e.way, e.why) for e in self.leaves]
        rows = [("leaf", "shape", "norm", "why"), *rows]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]])
            for row in rows
        ]
        return f"Ghost, {self.batch_size} rows at once\n" + "\n".join(lines)

    __repr__ = __str__


def explain(
    loss_fn: Callable[..., Any],
    params: PyTree,
    example: PyTree,
    *,
    batch_size: int = 256,
    engine: Ghost = Ghost(),  # noqa: B008 - frozen
    has_aux: bool = False,
    trainable: PyTree | None = None,
    needs_key: bool | None = None,
) -> Explanation:
    """Returns what the ghost engine does with each leaf, and why; print it. Nothing is computed.

    "rank one" and "Gram" take the norm from activations and cotangents; "computed and kept" and "computed for the norm alone" compute
    the leaf's per-example gradient although it is a product, since that is cheaper at these shapes (K positions, M x N
    weights, S of them, R scattered rows); "whole" is a leaf whose gradient is no product of known operands.

    Args:
      loss_fn: as for `clipped_grad`.
      params: parameters, or their shapes (`jax.ShapeDtypeStruct`).
      example: one example, without batch axis; arrays or shapes.
      batch_size: rows at once, at least 1.
      engine: a `Ghost`.
      has_aux, trainable, needs_key: as for `clipped_grad`.

    Raises:
      TypeError, ValueError: as `clipped_grad`'s function does.
    """
    check_count("batch_size", batch_size, minimum=1)
    if not isinstance(engine, Ghost):
        raise TypeError(
            f"engine must be a Ghost, got {engine!r}: the others treat all leaves alike"
        )
    options = Options(has_aux=has_aux, trainable=trainable, needs_key=needs_key)
    spec = Spec(loss_fn, Fixed(), None, options)
    parts = partition(params, trainable)
    found: list[LeafExplanation] = []

    def look(params: PyTree, example: PyTree, key: Any) -> None:
        key = key if spec.needs_key else None
        leaves, loss = prepare(spec, parts, params)
        value = loss if has_aux else lambda *args: loss(*args)[0]
        check_loss(value, leaves, example, key, has_aux)
        problem = Problem(loss, lambda norm: norm, (0,) * len(leaves))
        forms = gradient_forms(problem, leaves, example, key).forms
        chosen = ways(forms, batch_size, engine)
        for name, leaf, form, way in zip(parts.names, leaves, forms, chosen, strict=True):
            found.append(LeafExplanation(name, leaf.shape, way.value, _why(form, way)))

    jax.eval_shape(look, params, example, jax.random.key(0))
    return Explanation(tuple(found), batch_size)


def _why(form: Any, way: Way) -> str:
    if isinstance(form, Whole):
        return form.reason
    s, k, r, m, n = sizes(form)
    kind = "convolution" if form.convolution is not None else "product"
    parts = [f"S={s}"] if s > 1 else []
    parts += [f"K={k}"] if k else []
    parts += [f"R={r}"] if r else []
    constant = " + a constant" if form.constant is not None else ""
    rows = "rows" if not k else kind + (" + rows" if r else "")
    return f"{rows}{constant}: {', '.join([*parts, f'M={m}', f'N={n}'])}"
