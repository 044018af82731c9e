"""Optimizers that take both released moments: of the gradient and of its square.

Adam's own second moment is the square of the noisy mean: with noise far above the signal it
estimates the noise, the same for every parameter. Here the second moment is a release of its own, the
mean of the squared clipped gradients, which estimates E[g^2]. Noise makes it negative at times; the
*averaged* estimate is clamped from below at `floor`, after the noise and so at no cost.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from opake_jax._checks import check_real
from opake_jax.types import Moments, PyTree

__all__ = ["PairedMomentsState", "paired_adam", "paired_adamw", "paired_rmsprop"]


class PairedMomentsState(NamedTuple):
    """Averages of the two released moments.

    Attributes:
      count: int32 scalar, updates so far.
      first, second: float32 trees like the parameters.
    """

    count: jax.Array  # type: ignore[assignment]  # tuple.count is not missed
    first: PyTree
    second: PyTree


def paired_adam(
    learning_rate: Any, *, floor: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformationExtraArgs:
    """Returns Adam on released `Moments`, to stand behind the noise in a chain.

    The update is -learning_rate * m / (sqrt(max(v, floor)) + eps) with m and v the bias-corrected
    averages of the two released means.

    Args:
      learning_rate: a number or an optax schedule.
      floor: at least 0: the smallest second moment that is believed. An estimate near 0 would make a
        step of any length; a good start is the noise std of the averaged second stream, about
        noise_multiplier * sqrt(2) * clipping_norm**2 / expected_batch_size * sqrt((1 - b2) / 2).
      b1: decay of the first average, in [0, 1).
      b2: decay of the second, in [0, 1).
      eps: at least 0.

    Raises:
      TypeError, ValueError: a number out of range; an update that is no `Moments`.

    Reference: Kingma and Ba 2015, arXiv:1412.6980, with the second moment released by itself.
    """
    return optax.chain(
        _scale_by_paired_moments(b1, b2, floor, eps), optax.scale_by_learning_rate(learning_rate)
    )


def paired_adamw(
    learning_rate: Any,
    *,
    floor: float,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-4,
) -> optax.GradientTransformationExtraArgs:
    """Returns `paired_adam` with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101).

    Args:
      learning_rate: a number or an optax schedule.
      floor: as for `paired_adam`.
      b1: as for `paired_adam`.
      b2: as for `paired_adam`.
      eps: as for `paired_adam`.
      weight_decay: at least 0; times the parameter and the learning rate.
    """
    check_real("weight_decay", weight_decay)
    return optax.chain(
        _scale_by_paired_moments(b1, b2, floor, eps),
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_learning_rate(learning_rate),
    )


def paired_rmsprop(
    learning_rate: Any, *, floor: float, decay: float = 0.9, eps: float = 1e-8
) -> optax.GradientTransformationExtraArgs:
    """Returns RMSProp on released `Moments`: the newest mean over the root of the averaged square.

    Args:
      learning_rate: a number or an optax schedule.
      floor: as for `paired_adam`.
      decay: of the second average, in [0, 1); bias-corrected.
      eps: at least 0.
    """
    return optax.chain(
        _scale_by_paired_moments(0.0, decay, floor, eps),
        optax.scale_by_learning_rate(learning_rate),
    )


def _scale_by_paired_moments(
    b1: float, b2: float, floor: float, eps: float
) -> optax.GradientTransformation:
    """Returns the transform from `Moments` to m / (sqrt(max(v, floor)) + eps)."""
    for name, value in (("b1", b1), ("b2", b2)):
        check_real(name, value, high=1.0)
    check_real("floor", floor, remedy="see paired_adam for a start")
    check_real("eps", eps)

    def init(params: PyTree) -> PairedMomentsState:
        zeros = jax.tree.map(lambda p: jnp.zeros_like(p, jnp.float32), params)
        return PairedMomentsState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(
        updates: PyTree, state: PairedMomentsState, params: PyTree = None
    ) -> tuple[PyTree, PairedMomentsState]:
        if not isinstance(updates, Moments):
            raise TypeError(
                f"this optimizer takes the Moments of a paired release, got {type(updates).__name__}: "
                "use a gradient function that releases second moments, and the noise before it"
            )
        count = optax.safe_increment(state.count)
        first = optax.tree.update_moment(updates.first, state.first, b1, 1)
        second = optax.tree.update_moment(updates.second, state.second, b2, 1)

        def step(m: jax.Array, v: jax.Array) -> jax.Array:
            return m / (jnp.sqrt(jnp.maximum(v, floor)) + eps)

        out = jax.tree.map(
            step,
            optax.tree.bias_correction(first, b1, count),
            optax.tree.bias_correction(second, b2, count),
        )
        if params is not None:
            out = jax.tree.map(lambda u, p: u.astype(jnp.result_type(p)), out, params)
        return out, PairedMomentsState(count, first, second)

    return optax.GradientTransformation(init, update)
