"""The accounting names of DP-SGD, handed on from `opake_jax.accounting`."""

from opake_jax.accounting import adaclip, fixed_size, gaussian, parallel_poisson, poisson

__all__ = ["adaclip", "fixed_size", "gaussian", "parallel_poisson", "poisson"]
