"""XLA's options by which a program compiles in a quarter of the time; its sums are the same up to rounding."""

import importlib.metadata

OPTIONS = {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}
_OLD = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11)
if _OLD:
    # Each fusion would take a pipeline of MLIR passes. Later XLA does not know the option, and ends at unknown flags.
    OPTIONS["xla_cpu_use_fusion_emitters"] = False

# For all programs of README's tests. With later XLA a loop and a vmap at level 0 differ in their last bits.
FLAGS = " ".join(f"--{k}={str(v).lower()}" for k, v in OPTIONS.items()) if _OLD else ""
