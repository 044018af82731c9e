"""Keeps the tests on the CPU, where their expected numbers were made, and shares what they compile.

The fast kernels are compiled in seconds by every process; with jax's compilation cache the workers and
the examples' processes compile each once.
"""

import os
import pathlib

_CACHE = pathlib.Path(__file__).parent.parent / ".jax_cache"

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
