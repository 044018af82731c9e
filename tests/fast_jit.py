"""`jax.jit` for tests of what a program computes to a tolerance: it compiles in a quarter of the time.

The program is the same up to XLA's fusions and LLVM's optimisations. Memory, HLO text, equal bits and anything that
rounds in a direction are tested in programs that are compiled as they ship, by plain `jax.jit`.
"""

import jax

OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,  # each fusion would take a pipeline of MLIR passes
    "xla_cpu_parallel_codegen_split_count": 1,
}


def fast_jit(function):
    return jax.jit(function, compiler_options=OPTIONS)
