"""The clipping names that a DP-SGD script needs, handed on from `opake_jax.clipping`."""

from opake_jax.clipping import *  # noqa: F403
from opake_jax.clipping import __all__ as __all__
