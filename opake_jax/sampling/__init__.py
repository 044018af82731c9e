"""Who takes part in this step? Samplers: indices and mask of a fixed shape, and what they cost."""

from opake_jax.sampling._epochs import KOutOfTSampler, ShuffleSampler
from opake_jax.sampling._fixed_size import FixedSizeSampler
from opake_jax.sampling._parallel_poisson import ParallelPoissonSampler
from opake_jax.sampling._poisson import PoissonSampler
from opake_jax.sampling._sampler import Sampler
from opake_jax.sampling._users import UserSampler

__all__ = [
    "FixedSizeSampler",
    "KOutOfTSampler",
    "ParallelPoissonSampler",
    "PoissonSampler",
    "Sampler",
    "ShuffleSampler",
    "UserSampler",
]
