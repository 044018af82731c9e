"""What is released? The clipped sum plus Gaussian noise, as an optax transform."""

from opake_jax.noise._gaussian import GaussianNoiseState, gaussian_noise

__all__ = ["GaussianNoiseState", "gaussian_noise"]
