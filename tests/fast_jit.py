"""`jax.jit` for tests of what a program computes to a tolerance: it compiles in a quarter of the time.

The program is the same up to XLA's fusions and LLVM's optimisations. Memory, HLO text, equal bits and anything that
rounds in a direction are tested by plain `jax.jit`, which compiles as users do in tests marked `as_shipped`.
"""

import jax
from compile_options import OPTIONS


def fast_jit(function):
    return jax.jit(function, compiler_options=OPTIONS)
