"""Who takes part in this step? Samplers: indices and mask of a fixed shape, and what they cost."""

from opake_jax.sampling._poisson import PoissonSampler
from opake_jax.sampling._sampler import Sampler

__all__ = ["PoissonSampler", "Sampler"]
