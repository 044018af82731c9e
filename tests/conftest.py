"""Keeps the tests on the CPU, where their expected numbers were made, and shares what they compile.

With jax's compilation cache the workers and the examples' processes compile each program once. Most of the tests' time
is compilation, so programs are compiled with little optimisation unless XLA_FLAGS says something: `.ci/run`
sets it empty for the slow tests, which therefore see programs as they ship. What looks at the compiled
program itself (memory, collectives) is among those.
"""

import os
import pathlib

_CACHE = pathlib.Path(__file__).parent.parent / ".jax_cache"

_QUICKLY_COMPILED = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1"
)

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", _QUICKLY_COMPILED)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
