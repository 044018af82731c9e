"""The terms of one leaf, brought into one form.

`Factored`: the gradient is view(sum over k of A[s, k, :] G[s, k, :]^T), plus rows scattered into it, plus a constant that is the
same for every example. Terms that do not fit together, are computed: `Whole`.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from opake_jax.clipping._ghost._patches import convolution_matrices
from opake_jax.clipping._ghost._terms import (
    Contraction,
    Convolution,
    Dense,
    Known,
    Lazy,
    Reshape,
    RowScatter,
    Step,
    Transpose,
    contraction_shape,
    total,
)

# The transposition of the one matrix of a layout (1, M, N).
_SWAP = Transpose((0, 2, 1))

__all__ = ["Arranger", "Factored", "Form", "Whole", "form"]


@dataclasses.dataclass(frozen=True, eq=False)
class Whole:
    """A gradient that is computed; `reason` says why."""

    value: Known
    reason: str


@dataclasses.dataclass(frozen=True, eq=False)
class Factored:
    """A gradient of layout (S, M, N) that is not computed.

    Attributes:
      left, right: (S, K, M) and (S, K, N), or None.
      index, rows: (R,) and (R, N): rows[r] is added to row index[r] of the M rows (M: dropped); or None. Then S = 1.
      constant: (S, M, N), the same for every example; or None.
      layout: (S, M, N).
      view: the steps from the layout to the leaf.
      convolution: the term whose windows left and right are; its own operands are smaller.
    """

    left: Known | None
    right: Known | None
    index: Known | None
    rows: Known | None
    constant: Known | None
    layout: tuple[int, int, int]
    view: tuple[Step, ...]
    convolution: Convolution | None = None


Form = Whole | Factored


class Arranger:
    """Brings operands into the order (S, K, width), each once: several leaves share an operand."""

    def __init__(self) -> None:
        # The arrays are held so that their ids stay their own.
        self._done: dict[Any, tuple[Any, Known]] = {}
        self._sources: dict[int, Any] = {}

    def __call__(self, value: Known, batch: Any, contracted: Any, shape: Any) -> Known:
        """Returns the operand with its axes in this order and of this shape (S, K, width)."""
        x = value.array
        key = (id(x), tuple(batch), tuple(contracted))
        if key not in self._done:
            free = [d for d in range(x.ndim) if d not in contracted and d not in batch]
            order = (*batch, *contracted, *free)
            y = lax.transpose(x, order).reshape(shape)
            self._done[key] = (x, value._replace(array=y))
            if order == tuple(range(x.ndim)):
                self._sources[id(y)] = x
        return self._done[key][1]

    def source(self, array: Any) -> Any:
        """Returns the array that this one only is another shape of."""
        return self._sources.get(id(array), array)


def form(gradient: Known | Lazy, shape: tuple[int, ...], arrange: Arranger) -> Form:
    """Returns the form of one leaf's gradient; `shape` is the leaf's."""
    if isinstance(gradient, Known):
        return Whole(gradient, f"it comes out of {gradient.origin}")
    factors = [t for t in gradient.terms if not isinstance(t, Dense)]
    dense = [t.value for t in gradient.terms if isinstance(t, Dense)]
    if not factors:
        return Whole(total(gradient), "it comes out of " + (dense[0].origin if dense else "zeros"))
    if any(value.varies for value in dense):
        return Whole(total(gradient), f"a product plus what comes out of {dense[0].origin}")
    parts = [_part(term, shape, arrange) for term in factors]
    layout, steps = parts[0].layout, parts[0].view
    if any(part.layout != layout or part.view != steps for part in parts):
        return Whole(total(gradient), "its uses have different layouts")
    constant = None
    if dense:
        back = _pull_back(dense[0].array, layout, steps)
        if back is None:
            return Whole(total(gradient), "a product plus a constant of another layout")
        constant = Known(back, False)
    products = [part for part in parts if part.left is not None]
    scatters = [part for part in parts if part.rows is not None]
    if len(parts) == 1:
        return dataclasses.replace(parts[0], constant=constant)
    return Factored(
        _join([p.left for p in products], 1),
        _join([p.right for p in products], 1),
        _join([p.index for p in scatters], 0),
        _join([p.rows for p in scatters], 0),
        constant,
        layout,
        steps,
    )


def _join(values: list[Any], axis: int) -> Known | None:
    if not values:
        return None
    if len(values) == 1:
        return values[0]
    varies = any(value.varies for value in values)
    return Known(jnp.concatenate([value.array for value in values], axis), varies)


def _part(term: Any, shape: tuple[int, ...], arrange: Arranger) -> Factored:
    """Returns one term in a form whose layout and view are the same for all terms that can be joined."""
    if isinstance(term, RowScatter):
        layout = (1, *term.shape)
        return Factored(
            None, None, term.left, term.right, None, layout, _simplified(layout, term.view, shape)
        )
    if isinstance(term, Convolution):
        a, g, steps = convolution_matrices(term.left.array, term.right.array, term.equation.params)
        left = Known(a[None], term.left.varies)
        right = Known(g[None], term.right.varies)
        layout = (1, a.shape[1], g.shape[1])
        return Factored(left, right, None, None, None, layout, (*steps, *term.view), term)
    stacked, _, m, n = contraction_shape(term)
    left, right, first = _matrices(term, arrange)
    steps = _simplified((stacked, m, n), (first, *term.view), shape)
    if steps[0] == _SWAP:
        left, right, m, n, steps = right, left, n, m, steps[1:]
    return Factored(left, right, None, None, None, (stacked, m, n), steps)


def _matrices(term: Contraction, arrange: Arranger) -> tuple[Known, Known, Reshape]:
    """Returns (left (S, K, M), right (S, K, N), the reshape of (S, M, N) to what dot_general returns)."""
    (lc, rc), (lb, rb) = term.dimensions
    stacked, positions, m, n = contraction_shape(term)
    left = arrange(term.left, lb, lc, (stacked, positions, m))
    right = arrange(term.right, rb, rc, (stacked, positions, n))

    def free(value: Known, batch: Any, contracted: Any) -> list[int]:
        shape = value.array.shape
        return [size for d, size in enumerate(shape) if d not in batch and d not in contracted]

    batch = [term.left.array.shape[d] for d in lb]
    return left, right, Reshape((*batch, *free(term.left, lb, lc), *free(term.right, rb, rc)))


def _simplified(
    layout: tuple[int, int, int], steps: tuple[Step, ...], shape: tuple[int, ...]
) -> tuple[Step, ...]:
    """Returns an equal sequence of steps from the layout to the leaf, as short as can be told easily."""
    out: list[Step] = []
    sides: tuple[int, ...] = layout[1:]
    now: tuple[int, ...] = layout
    swapped = False
    for step in steps:
        if isinstance(step, Reshape):
            if out and isinstance(out[-1], Reshape):
                out.pop()
            out.append(step)
            now = step.shape
        elif isinstance(step, Transpose):
            # Before anything but reshapes, the transposition of a matrix is one of the layout.
            matrix = layout[0] == 1 and now == sides
            if matrix and step.permutation == (1, 0) and all(isinstance(s, Reshape) for s in out):
                out, sides, swapped = [], sides[::-1], not swapped
                now = sides
                continue
            out.append(step)
            now = tuple(now[axis] for axis in step.permutation)
        else:
            out.append(step)
            now = ()  # not followed further
    tail = _normal_tail(out, shape)
    return (_SWAP, *tail) if swapped else tail


def _normal_tail(steps: list[Step], shape: tuple[int, ...]) -> tuple[Step, ...]:
    """Ends with exactly one reshape to the leaf's shape, unless something else comes last."""
    if steps and isinstance(steps[-1], Reshape):
        steps = steps[:-1]
    return (*steps, Reshape(shape))


def _pull_back(x: Any, layout: tuple[int, int, int], steps: tuple[Step, ...]) -> Any:
    """Returns the array of this layout whose view is `x`, or None if a step cannot be undone here."""
    shapes: list[tuple[int, ...]] = [layout]
    for step in steps:
        if isinstance(step, Reshape):
            shapes.append(step.shape)
        elif isinstance(step, Transpose):
            shapes.append(tuple(shapes[-1][axis] for axis in step.permutation))
        else:
            return None
    for step, before in zip(reversed(steps), reversed(shapes[:-1]), strict=True):
        if isinstance(step, Transpose):
            x = lax.transpose(x, tuple(int(i) for i in np.argsort(step.permutation)))
        else:
            x = x.reshape(before)
    return x
