"""A clipping norm that follows a quantile of the gradient norms."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from opake_jax._checks import check_real
from opake_jax.clipping._clipped_grad import GradFn, build
from opake_jax.clipping._options import Options
from opake_jax.clipping._rules import NORM_RANGE, Fixed
from opake_jax.clipping._run import PrivateAux
from opake_jax.types import ClippedSum, PyTree

__all__ = ["AdaptiveGradFn", "AdaptiveState", "adaptive_clipped_grad", "check_bounds"]


class AdaptiveState(NamedTuple):
    """The state of adaptive clipping: the norm of the next step, a float32 scalar. Public, as far as the counts were released with noise."""

    clipping_norm: jax.Array


class AdaptiveGradFn:
    """A gradient function with a state; made by `adaptive_clipped_grad`."""

    def __init__(
        self,
        grad_fn: GradFn,
        initial: Any,
        *,
        quantile: Any,
        learning_rate: Any,
        bounds: tuple[float, float],
    ):
        self._grad_fn = grad_fn
        self._initial = initial
        self._quantile = quantile
        self._learning_rate = learning_rate
        self._bounds = bounds

    def init(self) -> AdaptiveState:
        """Returns the state of the first step."""
        return AdaptiveState(jnp.asarray(self._initial, jnp.float32))

    def __call__(
        self,
        params: PyTree,
        batch: PyTree,
        state: AdaptiveState,
        *,
        mask: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> tuple[ClippedSum, ClippedSum, PrivateAux]:
        """Returns `(ClippedSum, count, PrivateAux)`; see `adaptive_clipped_grad`. Arguments as for `clipped_grad`'s function."""
        clipped, private_aux = self._grad_fn.at(state.clipping_norm, params, batch, mask, key)
        norm = private_aux.grad_norm
        centred = jnp.where(norm <= state.clipping_norm, 0.5, -0.5)
        total = jnp.sum(jnp.where(jnp.isnan(norm), 0.0, centred))
        return clipped, ClippedSum(total, 0.5, clipped.denominator), private_aux

    def update(self, state: AdaptiveState, released: jax.Array) -> AdaptiveState:
        """Returns the next state, given the count after noise and division.

        Args:
          state: the state that the count was made with.
          released: scalar, the noise step's output for the count: the noisy (unclipped - clipped) / 2 over the expected batch size. A NaN
            stays one.
        """
        error = jnp.asarray(released, jnp.float32) + 0.5 - self._quantile
        norm = state.clipping_norm * jnp.exp(-self._learning_rate * error)
        return AdaptiveState(jnp.clip(norm, *self._bounds).astype(jnp.float32))


def adaptive_clipped_grad(
    loss_fn: Callable[..., Any],
    clipping_norm: Any = 0.1,
    *,
    quantile: Any = 0.5,
    learning_rate: Any = 0.2,
    bounds: tuple[float, float] = (1e-6, 1e6),
    **options: Any,
) -> AdaptiveGradFn:
    """Returns a gradient function whose clipping norm follows a quantile of the gradient norms.

    `grad_fn.init()` gives the state; `grad_fn(params, batch, state, *, mask=None, key=None)` gives `(clipped, count, private_aux)`:
    the clipped sum at the state's norm, and a second ClippedSum, of sensitivity 1/2: the sum over real rows of 1/2 where the
    gradient was not clipped, -1/2 where it was or was not finite. Both are released with noise; then
    `grad_fn.update(state, released_count)` multiplies the norm by exp(-learning_rate (fraction unclipped - quantile)).

    The count costs privacy: with std `s` of noise on it beside noise multiplier `z` on the sum, one step costs a Gaussian of
    (z^-2 + (2 s)^-2)^(-1/2). `dpsgd.plan` does all of this; alone, account for both.

    Args:
      loss_fn: as for `clipped_grad`.
      clipping_norm: the norm of the first step, positive finite scalar.
      quantile: in (0, 1): the fraction of gradients to leave unclipped.
      learning_rate: positive: the largest change of log norm in a step is about half of it.
      bounds: (low, high): the norm stays between.
      **options: as for `clipped_grad`. `denominator` must be the expected batch size, also of the count.

    Raises:
      TypeError, ValueError: a number out of range, or `per_group`.

    Reference: Andrew et al. 2021, arXiv:1905.03871.
    """
    check_real("clipping_norm", clipping_norm, low=NORM_RANGE[0], high=NORM_RANGE[1])
    check_real("quantile", quantile, low_open=True, high=1.0)
    check_real("learning_rate", learning_rate, low_open=True)
    low, high = check_bounds(bounds)
    grad_fn = build(loss_fn, Fixed(), clipping_norm, Options(**options))
    return AdaptiveGradFn(
        grad_fn,
        clipping_norm,
        quantile=quantile,
        learning_rate=learning_rate,
        bounds=(low, high),
    )


def check_bounds(bounds: Any) -> tuple[float, float]:
    """Returns the pair (low, high) of positive finite numbers between which a norm stays."""
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise TypeError(f"bounds must be a pair (low, high), got {bounds!r}")
    low, high = bounds
    check_real("bounds[0]", low, low=NORM_RANGE[0])
    check_real("bounds[1]", high, low=float(low), high=NORM_RANGE[1])
    return float(low), float(high)
