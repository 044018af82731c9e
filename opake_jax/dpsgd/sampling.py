"""The samplers of DP-SGD under the names that its scripts use."""

from opake_jax.sampling import (
    FixedSizeSampler,
    KOutOfTSampler,
    ParallelPoissonSampler,
    PoissonSampler,
    Sampler,
    ShuffleSampler,
    UserSampler,
)

__all__ = [
    "FixedSizeSampler",
    "KOutOfTSampler",
    "ParallelPoissonSampler",
    "PoissonSampler",
    "Sampler",
    "ShuffleSampler",
    "UserSampler",
]
