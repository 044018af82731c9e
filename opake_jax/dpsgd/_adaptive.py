"""Adaptive clipping within a plan: gradient and count are released together, at one price."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from opake_jax import clipping
from opake_jax._checks import check_real
from opake_jax.clipping._adaptive import check_bounds
from opake_jax.dpsgd._grad_fn import check_mask
from opake_jax.types import ClippedSum, PyTree

__all__ = ["AdaptiveClipping", "PlannedAdaptiveGradFn"]

# Noise on the count for each record of the expected batch (Andrew et al. 2021, section 3).
_COUNT_NOISE = 1 / 20


@dataclasses.dataclass(frozen=True)
class AdaptiveClipping:
    """How a plan's clipping norm follows a quantile of the gradient norms.

    Attributes:
      quantile: in (0, 1), the fraction of gradients to leave unclipped.
      learning_rate: of log norm, positive.
      count_noise_std: noise std on the count of unclipped gradients, in records; None: a twentieth of
        the expected batch size. Above half the noise multiplier, since at half the count would cost
        the whole budget.
      bounds: the norm stays between.

    Reference: Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv:1905.03871.
    """

    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise_std: float | None = None
    bounds: tuple[float, float] = (1e-6, 1e6)

    def __post_init__(self) -> None:
        check_real("quantile", self.quantile, low_open=True, high=1.0)
        check_real("learning_rate", self.learning_rate, low_open=True)
        if self.count_noise_std is not None:
            check_real("count_noise_std", self.count_noise_std, low_open=True)
        object.__setattr__(self, "bounds", check_bounds(self.bounds))

    def count_std(self, expected_batch_size: float) -> float:
        """Returns the noise std on the count, in records."""
        given = self.count_noise_std
        return expected_batch_size * _COUNT_NOISE if given is None else float(given)


class PlannedAdaptiveGradFn:
    """Gradient function of a plan with adaptive clipping; `Plan.adaptive_clipped_grad` makes it.

    `init()` gives the state. A call gives `(ClippedSum, PrivateAux)`; the sum's tree is the pair
    (gradient, count) with shares such that the noise step gives each its part. The noise step's
    output is the pair (gradient, count), both public now: the gradient goes to the optimizer,
    and `update(state, count)` gives the next state.
    """

    def __init__(self, inner: clipping.AdaptiveGradFn, shares: tuple[float, float]):
        self._inner = inner
        self._shares = shares

    def init(self) -> Any:
        """Returns the state of the first step."""
        return self._inner.init()

    def __call__(
        self,
        params: PyTree,
        batch: PyTree,
        state: Any,
        *,
        mask: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> tuple[ClippedSum, Any]:
        """Returns the sum of the pair (clipped gradients, count), and per-example private values; needs the mask."""
        check_mask(mask)
        clipped, count, private_aux = self._inner(params, batch, state, mask=mask, key=key)
        if clipped.groups is not None:
            raise ValueError("adaptive clipping has one norm: it cannot be combined with groups")
        tree = (clipped.tree, count.tree)
        groups = (0,) * len(jax.tree.leaves(clipped.tree)) + (1,)
        sensitivity = jnp.stack([clipped.sensitivity, count.sensitivity])
        both = ClippedSum(
            tree,
            sensitivity,
            clipped.denominator,
            shares=jnp.asarray(self._shares, jnp.float32),
            groups=groups,
        )
        return both, private_aux

    def update(self, state: Any, count: jax.Array) -> Any:
        """Returns the next state, from the released count."""
        return self._inner.update(state, count)
