"""The accounting names of DP-SGD, handed on from `opake_jax.accounting`."""

from opake_jax.accounting import (
    adaclip,
    fixed_size,
    gaussian,
    k_out_of_t,
    parallel_poisson,
    poisson,
    shuffled,
)

__all__ = [
    "adaclip",
    "fixed_size",
    "gaussian",
    "k_out_of_t",
    "parallel_poisson",
    "poisson",
    "shuffled",
]
