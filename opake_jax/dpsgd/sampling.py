"""The samplers of DP-SGD under the names that its scripts use."""

from opake_jax.sampling import PoissonSampler, Sampler

__all__ = ["PoissonSampler", "Sampler"]
