"""Keeps the tests on the CPU, where their expected numbers were made, and shares what they compile.

With jax's compilation cache the workers and the examples' processes compile each program once. Most of the tests' time
is compilation, so programs are compiled with little optimisation unless XLA_FLAGS says something: `.ci/run`
sets it empty for the slow tests, which therefore see programs as they ship. What looks at the compiled
program itself (memory, collectives) is among those.
"""

import os
import pathlib

from compile_options import FLAGS

_CACHE = pathlib.Path(__file__).parent.parent / ".jax_cache"

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", FLAGS)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
