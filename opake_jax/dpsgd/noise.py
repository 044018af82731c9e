"""The noise of DP-SGD under the names that its scripts use."""

from opake_jax.noise import GaussianNoiseState, gaussian_noise

__all__ = ["GaussianNoiseState", "gaussian_noise"]
