"""The accounting names of DP-SGD, handed on from `opake_jax.accounting`."""

from opake_jax.accounting import gaussian, poisson

__all__ = ["gaussian", "poisson"]
