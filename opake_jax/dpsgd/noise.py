"""The noise of DP-SGD under the names that its scripts use."""

from opake_jax.noise import (
    GaussianNoiseState,
    PairedMomentsState,
    gaussian_noise,
    paired_adam,
    paired_adamw,
    paired_rmsprop,
)

__all__ = [
    "GaussianNoiseState",
    "PairedMomentsState",
    "gaussian_noise",
    "paired_adam",
    "paired_adamw",
    "paired_rmsprop",
]
