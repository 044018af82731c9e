"""The factory: a loss becomes a function that returns a clipped sum of per-example gradients."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from opake_jax._checks import check_key, check_real
from opake_jax.clipping._auto import Auto
from opake_jax.clipping._chunked import Chunked
from opake_jax.clipping._guards import check_batch, check_loss, check_parameters, takes_key
from opake_jax.clipping._mesh import row_index, vary, varying_axes
from opake_jax.clipping._problem import Engine, Problem, Rows, Sums, check_engine
from opake_jax.clipping._rules import AutoS, Fixed, Rule, check_clipping_norm
from opake_jax.types import ClippedSum, PyTree

__all__ = ["GradFn", "PrivateAux", "auto_clipped_grad", "clipped_grad"]


class PrivateAux(NamedTuple):
    """Per-example values. They are *private data*: no noise has been added, so log them only where raw data may go.

    Attributes:
      loss: (B,) float; NaN at padded rows, so that `jnp.nanmean(loss)` averages over real ones.
      grad_norm: (B,) L2 norm of the whole gradient before clipping; NaN at padded rows, inf at real rows whose gradient is not
        finite (they contribute nothing: `jnp.isinf(grad_norm).sum()` counts them). With groups (B, G).
      aux: what the loss returned beside its value, stacked; floats are NaN and others 0 at padded rows. None without `has_aux`.
    """

    loss: jax.Array
    grad_norm: jax.Array
    aux: PyTree


class GradFn:
    """Returns `(ClippedSum, PrivateAux)` when called as `grad_fn(params, batch, *, mask=None, key=None)`."""

    def __init__(self, spec: "_Spec", engine: Engine | Chunked, limit: Any, denominator: Any):
        self._spec = spec
        self._limit = limit
        self._denominator = denominator
        run = functools.partial(_run, spec)
        self._run = (
            engine.loop(run)
            if isinstance(engine, Chunked)
            else jax.jit(functools.partial(run, engine))
        )

    def __call__(
        self,
        params: PyTree,
        batch: PyTree,
        *,
        mask: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> tuple[ClippedSum, PrivateAux]:
        """Returns the clipped sum over the real rows of the batch, and per-example values.

        Args:
          params: pytree of parameters; trainable leaves are floating point.
          batch: pytree of arrays; the first axis of each counts the examples.
          mask: (B,) boolean, True at real rows; None: all are real. A padded row contributes exactly zero, whatever it holds.
          key: typed key (`opake_jax.random.key`), needed by a loss that takes one. Row i gets `fold_in(key, i)`. Use a
            fresh one each step.

        Raises:
          TypeError: a trainable leaf that is not floating point; a key of the wrong kind.
          ValueError: a loss that is not scalar, batch leaves without or with different batch axes, a missing key.
        """
        if mask is not None:
            mask = jnp.asarray(mask)
        check_batch(batch, mask)
        if self._spec.needs_key and key is None:
            raise ValueError("this loss takes a key: pass key= (a fresh one each step)")
        if not self._spec.needs_key and key is not None:
            raise ValueError(
                "key was given, but the loss takes none: write loss_fn(params, example, key)"
            )
        if key is not None:
            check_key("key", key)
        tree, private_aux = self._run(params, batch, mask, key, self._limit, None)
        return ClippedSum(tree, self._limit, self._denominator), private_aux


@dataclasses.dataclass(frozen=True, eq=False)
class _Spec:
    """What the factory was told, apart from numbers that may be traced."""

    loss_fn: Callable[..., Any]
    rule: Rule
    has_aux: bool
    needs_key: bool
    trainable: PyTree | None


def clipped_grad(
    loss_fn: Callable[..., Any],
    clipping_norm: Any,
    *,
    engine: Engine | Chunked = Auto(),  # noqa: B008 - frozen
    has_aux: bool = False,
    denominator: Any = 1.0,
    trainable: PyTree | None = None,
    needs_key: bool | None = None,
) -> GradFn:
    """Returns `grad_fn(params, batch, *, mask=None, key=None) -> (ClippedSum, PrivateAux)`: the sum of clipped gradients.

    Each example's gradient g is scaled by min(1, clipping_norm / |g|) and the results are summed; a sum, never a mean.

    Args:
      loss_fn: `(params, example) -> scalar` or `(params, example, key) -> scalar`, for one example without batch axis.
      clipping_norm: positive finite scalar, may be traced: bound on the L2 norm of one example's contribution.
      engine: how it is computed; the result does not depend on it, up to rounding.
      has_aux: the loss returns `(scalar, aux)`; aux comes back per example, as private data.
      denominator: public positive number that the noisy sum will be divided by: the *expected* batch size.
      trainable: None (all), or a tree of booleans, a prefix of params: leaves with False are frozen. They are `None` in the
        result: in no norm, no sum, no noise. (`None` leaves in params do the same.)
      needs_key: whether the loss takes a key; None: it does if it has a third positional argument without default, or
        one that is called `key`.

    Returns:
      The gradient function. The sum is float32 (float64 for float64 parameters) whatever the parameters are.

    Raises:
      TypeError, ValueError: a clipping norm or denominator that is not a positive finite number.

    Guarantee: row i's contribution depends on row i alone, also inside `shard_map` and under sharded `jit`; its norm is at
      most `clipping_norm` after rounding; a padded row and a row whose gradient is not finite contribute exactly zero.

    | case | contribution |
    |---|---|
    | gradient 0 | 0 |
    | a NaN or infinity anywhere in the gradient | 0, whole; grad_norm inf |
    | squared norm beyond float32 (norm over 1.8e19) | counts as not finite |
    | mask all False | 0 |

    Reference: Abadi et al. 2016, arXiv:1607.00133, algorithm 1.

    >>> grad_fn = clipped_grad(lambda w, x: jnp.vdot(w, x), 1.0)
    >>> clipped, private_aux = grad_fn(jnp.zeros(2), jnp.array([[3.0, 4.0], [0.0, 1.0]]))
    >>> clipped.tree.round(4).tolist(), private_aux.grad_norm.tolist()
    ([0.6, 1.8], [5.0, 1.0])
    """
    limit = check_clipping_norm(clipping_norm)
    return _build(loss_fn, Fixed(), limit, engine, has_aux, denominator, trainable, needs_key)


def auto_clipped_grad(
    loss_fn: Callable[..., Any],
    clipping_norm: Any = 1.0,
    *,
    stability: float = 0.01,
    engine: Engine | Chunked = Auto(),  # noqa: B008 - frozen
    has_aux: bool = False,
    denominator: Any = 1.0,
    trainable: PyTree | None = None,
    needs_key: bool | None = None,
) -> GradFn:
    """Returns a gradient function as `clipped_grad` does, with the AUTO-S rule: each gradient times C / (|g| + stability).

    All gradients are brought to about the same norm, so that the clipping norm only scales the update and needs no
    tuning beside the learning rate.

    Args:
      loss_fn: as for `clipped_grad`.
      clipping_norm: positive finite scalar, may be traced: bound on the norm of one example's contribution.
      stability: gamma > 0, in units of the gradient norm. Small gradients keep part of their size.
      engine, has_aux, denominator, trainable, needs_key: as for `clipped_grad`.

    Reference: Bu et al. 2022, arXiv:2206.07136.
    """
    limit = check_clipping_norm(clipping_norm)
    check_real("stability", stability, low_open=True)
    rule = AutoS(float(stability))
    return _build(loss_fn, rule, limit, engine, has_aux, denominator, trainable, needs_key)


def _build(
    loss_fn: Any,
    rule: Rule,
    limit: Any,
    engine: Any,
    has_aux: bool,
    denominator: Any,
    trainable: Any,
    needs_key: bool | None,
) -> GradFn:
    if not callable(loss_fn):
        raise TypeError(f"loss_fn must be callable, got {loss_fn!r}")
    if not isinstance(engine, Chunked):
        check_engine(engine)
    check_real("denominator", denominator, low_open=True)
    needs_key = takes_key(loss_fn) if needs_key is None else needs_key
    spec = _Spec(loss_fn, rule, has_aux, needs_key, trainable)
    return GradFn(spec, engine, limit, denominator)


def _run(
    spec: _Spec,
    engine: Engine,
    params: PyTree,
    batch: PyTree,
    mask: jax.Array | None,
    key: jax.Array | None,
    limit: jax.Array,
    index: jax.Array | None,
) -> tuple[PyTree, PrivateAux]:
    """Returns the clipped sum as a tree like params, and the values per row. `index` numbers the rows; None: from 0."""
    rows = jax.tree.leaves(batch)[0].shape[0]
    axes = varying_axes((batch, mask, key))
    leaves, rebuild, restore = _split(params, spec.trainable, axes)

    def loss(leaves: list[jax.Array], example: PyTree, key: jax.Array | None) -> Any:
        extra = (key,) if spec.needs_key else ()
        out = spec.loss_fn(rebuild(leaves), example, *extra)
        return out if spec.has_aux else (out, None)

    keys = None
    if key is not None:
        index = row_index(rows, axes) if index is None else index
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, index)
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch)
    check_loss(
        (lambda *a: loss(*a)) if spec.has_aux else (lambda *a: loss(*a)[0]),
        leaves,
        example,
        None if keys is None else keys[0],
        spec.has_aux,
    )
    mask = jnp.ones(rows, bool) if mask is None else mask
    limits = jnp.asarray(limit, jnp.float32).reshape(-1)
    problem = Problem(loss, lambda norm: spec.rule.factors(norm, limits), groups=(0,) * len(leaves))
    sums = engine.sums(problem, leaves, Rows(batch, mask, keys))
    return restore(sums.first), _private_aux(sums, mask)


def _split(params: PyTree, trainable: PyTree | None, axes: tuple[Any, ...]) -> Any:
    """Returns (trainable leaves, leaves -> params, leaves -> tree with None at frozen leaves)."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(params)
    if trainable is None:
        chosen = [True] * len(paths)
    else:
        chosen = jax.tree_util.tree_leaves(
            jax.tree_util.tree_map(
                lambda flag, part: jax.tree.map(lambda _: flag, part), trainable, params
            )
        )
        if not all(isinstance(flag, bool) for flag in chosen):
            raise TypeError("trainable must be a tree of Python booleans, a prefix of params")
    check_parameters([leaf for leaf, flag in zip(paths, chosen, strict=True) if flag])
    everything = [vary(jnp.asarray(leaf), axes) for _, leaf in paths]
    leaves = [x for x, flag in zip(everything, chosen, strict=True) if flag]

    def fill(values: list[Any], others: list[Any]) -> PyTree:
        following = iter(values)
        both = zip(others, chosen, strict=True)
        return jax.tree.unflatten(treedef, [next(following) if c else x for x, c in both])

    return (
        leaves,
        lambda values: fill(values, everything),
        lambda values: fill(values, [None] * len(everything)),
    )


def _private_aux(sums: Sums, mask: jax.Array) -> PrivateAux:
    norm = jnp.where(jnp.isfinite(sums.norm), sums.norm, jnp.inf)
    norm = jnp.where(mask[:, None], norm, jnp.nan)

    def mark(x: jax.Array) -> jax.Array:
        padded = jnp.nan if jnp.issubdtype(x.dtype, jnp.floating) else 0
        return jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), x, jnp.asarray(padded, x.dtype))

    loss, aux = jax.tree.map(mark, (sums.loss, sums.aux))
    return PrivateAux(loss, norm[:, 0] if norm.shape[1] == 1 else norm, aux)
