"""Differentially private training in JAX, with an accountant whose every answer is certified.

The public namespaces are imported when they are first used, so that a command-line query for one
epsilon does not pay for optax.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

__all__ = [
    "accounting",
    "auditing",
    "clipping",
    "dpsgd",
    "noise",
    "plotting",
    "random",
    "sampling",
    "types",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"opake_jax.{name}")
    raise AttributeError(f"module 'opake_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
