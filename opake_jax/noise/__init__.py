"""What is released? The clipped sum plus Gaussian noise, as an optax transform."""

from opake_jax.noise._gaussian import GaussianNoiseState, gaussian_noise
from opake_jax.noise._paired import (
    PairedMomentsState,
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
