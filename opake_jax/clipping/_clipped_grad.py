"""The factories: a loss becomes a function that returns a clipped sum of per-example gradients."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax._checks import check_key, check_real
from opake_jax.clipping._auto import Auto
from opake_jax.clipping._chunked import Chunked
from opake_jax.clipping._guards import check_batch
from opake_jax.clipping._options import Options, Spec
from opake_jax.clipping._partition import Partition, partition
from opake_jax.clipping._problem import Engine
from opake_jax.clipping._projection import Projection
from opake_jax.clipping._rules import (
    NORM_RANGE,
    AutoS,
    Fixed,
    PerGroup,
    Rule,
    check_clipping_norm,
    known_range,
)
from opake_jax.clipping._run import PrivateAux, leaf_groups, run
from opake_jax.types import ClippedSum, PyTree

__all__ = ["GradFn", "auto_clipped_grad", "build", "clipped_grad"]


class GradFn:
    """Returns `(ClippedSum, PrivateAux)` when called as `grad_fn(params, batch, *, mask=None, key=None)`."""

    def __init__(self, spec: Spec, limit: Any):
        self.spec = spec
        self.limit = limit
        self._programs: dict[Partition, Callable[..., Any]] = {}
        self._lift = None if spec.options.projection is None else spec.options.projection.lift

    def __call__(
        self,
        params: PyTree,
        batch: PyTree,
        *,
        mask: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> tuple[ClippedSum, PrivateAux]:
        """Returns the clipped sum over the real rows of the batch, and per-unit values.

        Args:
          params: pytree of parameters; trainable leaves are floating point.
          batch: pytree of arrays; the first axis of each counts the units (examples).
          mask: (B,) boolean, True at real rows; None: all are real. A padded row contributes exactly zero, whatever it holds. With
            `unit_axis` also (B, K): which records of each unit are real.
          key: typed key (`opake_jax.random.key`), needed by a loss that takes one. Row i gets `fold_in(key, i)`. Use a
            fresh one each step.

        Raises:
          TypeError: a trainable leaf that is not floating point; a key of the wrong kind.
          ValueError: a loss that is not scalar, batch leaves without or with different batch axes, a missing key.
        """
        return self.at(self.limit, params, batch, mask, key)

    def at(
        self, limit: Any, params: PyTree, batch: PyTree, mask: Any, key: Any
    ) -> tuple[ClippedSum, PrivateAux]:
        """Returns the same at another clipping norm."""
        options = self.spec.options
        if mask is not None and not hasattr(mask, "dtype"):
            mask = np.asarray(mask)  # before jax, whose message would not name the mask
        check_batch(batch, mask, options.unit_axis)
        mask = None if mask is None else jnp.asarray(mask)
        _check_key(self.spec, key)
        parts = partition(params, options.trainable)
        norms = limit.norms if isinstance(limit, PerGroup) else (limit,)
        limits = known_range(jnp.stack([jnp.asarray(norm, jnp.float32) for norm in norms]))
        tree, private_aux = self._program(parts)(params, batch, mask, key, limits, None)
        return self._clipped_sum(tree, limits, parts), private_aux

    def _program(self, parts: Partition) -> Callable[..., Any]:
        if parts not in self._programs:
            call, engine = functools.partial(run, self.spec, parts), self.spec.options.engine
            if isinstance(engine, Chunked):
                self._programs[parts] = engine.loop(call)
            else:
                self._programs[parts] = jax.jit(functools.partial(call, engine))
        return self._programs[parts]

    def _clipped_sum(self, tree: PyTree, limits: jax.Array, parts: Partition) -> ClippedSum:
        options, lift = self.spec.options, self._lift
        groups, second = leaf_groups(self.spec, parts), options.second_moment
        if self.spec.per_group is None and second is None:
            return ClippedSum(tree, limits[0], options.denominator, lift=lift)
        count = len(limits)
        # Leaves come in the same order in both moments.
        sizes = [0.0] * count
        for group, leaf in zip(groups, jax.tree.leaves(tree), strict=False):
            sizes[group] += leaf.size
        shares = limits * jnp.sqrt(jnp.asarray(sizes, jnp.float32))
        if second is not None:
            limits = jnp.concatenate([limits, jnp.square(limits)])
            shares = jnp.concatenate([shares, second * shares])
            groups = (*groups, *(count + group for group in groups))
        return ClippedSum(
            tree, limits, options.denominator, groups=groups, shares=shares, lift=lift
        )


def clipped_grad(
    loss_fn: Callable[..., Any],
    clipping_norm: Any,
    *,
    engine: Engine | Chunked = Auto(),  # noqa: B008 - frozen
    has_aux: bool = False,
    denominator: Any = 1.0,
    trainable: PyTree | None = None,
    needs_key: bool | None = None,
    unit_axis: int | None = None,
    pre_clipping: Callable[[PyTree], PyTree] | None = None,
    projection: Projection | None = None,
    second_moment: Any = None,
) -> GradFn:
    """Returns `grad_fn(params, batch, *, mask=None, key=None) -> (ClippedSum, PrivateAux)`: the sum of clipped gradients.

    Each example's gradient g is scaled by min(1, clipping_norm / |g|) and the results are summed; a sum, never a mean.

    Args:
      loss_fn: `(params, example) -> scalar` or `(params, example, key) -> scalar`, for one example without batch axis.
      clipping_norm: scalar in [1e-8, 1e18], may be traced: bound on the L2 norm of one unit's contribution. Or `per_group(...)`.
      engine: how it is computed; the result does not depend on it, up to rounding.
      has_aux: the loss returns `(scalar, aux)`; aux comes back per example, as private data.
      denominator: public positive number that the noisy sum will be divided by: the *expected* batch size.
      trainable: None (all), or a tree of booleans, a prefix of params: leaves with False are frozen. They are `None` in the
        result: in no norm, no sum, no noise. (`None` leaves in params do the same.)
      needs_key: whether the loss takes a key; None: it does if it has a third positional argument without default, or
        one that is called `key`.
      unit_axis: None: a row is one example. Else the axis of every batch leaf along which the records of one unit lie (1 for leaves
        (B, K, ...)): the unit's gradient is the mean over its real records, and is clipped as one. For users with several records, and
        for several views of one example (augmentation averaging). Record k gets `fold_in(row key, k)`.
      pre_clipping: None, or a function of one unit's gradient tree to a tree of the same shapes, applied before the norm is taken, such as
        clipping by value. Every gradient is then computed: see `Microbatched` for the memory.
      projection: None, or `clipping.projection(...)` on a public subspace.
      second_moment: None, or a positive public number: the ClippedSum's tree is `types.Moments(first, second)`, the sums of the clipped
        gradients and of their elementwise squares (sensitivities C and C^2), for `noise.paired_adam`. The number is the second sum's share
        of the privacy budget relative to the first's: 1.0 is equal shares.

    Returns:
      The gradient function. The sum is float32 (float64 for float64 parameters) whatever the parameters are.

    Raises:
      TypeError, ValueError: a clipping norm or denominator that is not a positive finite number, or another argument of the wrong kind.

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
    >>> [round(x, 4) for x in clipped.tree.tolist()], private_aux.grad_norm.round(4).tolist()
    ([0.6, 1.8], [5.0, 1.0])
    """
    options = Options(
        engine=engine,
        has_aux=has_aux,
        denominator=denominator,
        trainable=trainable,
        needs_key=needs_key,
        unit_axis=unit_axis,
        pre_clipping=pre_clipping,
        projection=projection,
        second_moment=second_moment,
    )
    return build(loss_fn, Fixed(), clipping_norm, options)


def auto_clipped_grad(
    loss_fn: Callable[..., Any],
    clipping_norm: Any = 1.0,
    *,
    stability: float = 0.01,
    **options: Any,
) -> GradFn:
    """Returns a gradient function as `clipped_grad` does, with the AUTO-S rule: each gradient times C / (|g| + stability).

    All gradients are brought to about the same norm, so that the clipping norm only scales the update and needs no
    tuning beside the learning rate.

    Args:
      loss_fn: as for `clipped_grad`.
      clipping_norm: scalar in [1e-8, 1e18], may be traced: bound on the norm of one unit's contribution. Or `per_group(...)`.
      stability: gamma of at least 1e-8, in units of the gradient norm. Small gradients keep part of their size.
      **options: as for `clipped_grad`.

    Reference: Bu et al. 2022, arXiv:2206.07136.
    """
    check_real("stability", stability, low=NORM_RANGE[0])  # else a norm that vanished would count
    return build(loss_fn, AutoS(float(stability)), clipping_norm, Options(**options))


def build(loss_fn: Any, rule: Rule, clipping_norm: Any, options: Options) -> GradFn:
    """Returns the gradient function of a rule."""
    if not callable(loss_fn):
        raise TypeError(f"loss_fn must be callable, got {loss_fn!r}")
    limit = check_clipping_norm(clipping_norm)
    options.check()
    groups = limit if isinstance(limit, PerGroup) else None
    if groups is not None and options.projection is not None:
        raise ValueError("per_group and projection: a projected gradient has one group")
    return GradFn(Spec(loss_fn, rule, groups, options), limit)


def _check_key(spec: Spec, key: Any) -> None:
    if spec.needs_key and key is None:
        raise ValueError("this loss takes a key: pass key= (a fresh one each step)")
    if not spec.needs_key and key is not None:
        raise ValueError(
            "key was given, but the loss takes none: write loss_fn(params, example, key)"
        )
    if key is not None:
        check_key("key", key)
