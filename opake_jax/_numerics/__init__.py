"""How is it computed in float64? Normal tails in log space, Fourier inversion, outward rounding."""

from opake_jax._numerics._logspace import log1mexp, logsumexp
from opake_jax._numerics._normal import log_ndtr, tail_quantile
from opake_jax._numerics._nufft import NUFFT_ERROR, nufft
from opake_jax._numerics.rounding import round_down, round_up

__all__ = [
    "NUFFT_ERROR",
    "log1mexp",
    "log_ndtr",
    "logsumexp",
    "nufft",
    "round_down",
    "round_up",
    "tail_quantile",
]
