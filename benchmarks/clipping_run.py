"""One model of the clipping benchmark on so many threads: one JSON object a line for each variant. `benchmarks/clipping.py` starts it."""

import argparse
import json
import os
import statistics
import time

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model")
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--rounds", type=int, required=True)
parser.add_argument("--variants", default="")
parser.add_argument("--every", action="store_true")
parser.add_argument("--small", action="store_true")
parser.add_argument("--batches", nargs="*", type=int, default=[])
options = parser.parse_args()
if hasattr(os, "sched_setaffinity"):  # before jax counts the processors
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if not options.small:  # compile times are measured
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

import jax  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks import clipping_models as models  # noqa: E402
from benchmarks.clipping_variants import variants  # noqa: E402

# Cheap models are repeated for at least so long, dear variants for no longer.
LEAST_SECONDS, MOST_SECONDS = 2.0, 12.0


def compiled(function, params, batch):
    start = time.perf_counter()
    call = jax.jit(function).lower(params, batch).compile()
    return call, time.perf_counter() - start


def seconds(call, params, batch):
    start = time.perf_counter()
    jax.block_until_ready(call(params, batch))
    return time.perf_counter() - start


def difference(a, b):
    """Largest difference relative to the largest entry. optax divides by the batch size: compared up to scale."""
    a, b = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)]) for t in (a, b))
    return float(np.abs(a / np.abs(a).max() - b / np.abs(b).max()).max())


def main():
    case = models.CASES[options.model](options.small)
    params, batch = case.make()
    wanted = options.variants.split(",")
    rows, calls, reference = {}, {}, None
    for name, function in variants(case, options.every).items():
        if name != "nonprivate plain" and not any(w in name for w in wanted):
            continue
        rows[name] = row = {"model": case.name, "threads": options.threads, "variant": name}
        try:
            call = function
            if "chunk" not in name:
                call, row["compile_s"] = compiled(function, params, batch)
                row["temp_mib"] = call.memory_analysis().temp_size_in_bytes / 2**20
            out = jax.block_until_ready(call(params, batch))
        except Exception as error:  # a peer that fails is a result
            row["error"] = f"{type(error).__name__}: {error}"[:200]
            continue
        if not name.startswith("nonprivate"):
            reference = out if reference is None else reference
            row["difference"] = difference(out, reference)
        calls[name] = call
    times = {name: [] for name in calls}
    began, turn = time.perf_counter(), 0
    least = 0.0 if options.small else LEAST_SECONDS
    while turn < options.rounds or (time.perf_counter() - began < least and turn < 50):
        for name, call in calls.items():
            if sum(times[name]) < MOST_SECONDS:
                times[name].append(seconds(call, params, batch))
        turn += 1
    for name, values in times.items():
        rows[name]["ms"] = 1e3 * statistics.median(values)
        rows[name]["samples"] = len(values)
    for size in options.batches:
        shapes = jax.tree.map(
            lambda x, n=size: jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype), batch
        )
        rows["auto"].setdefault("compile_s_of_batch", {})[size] = compiled(
            variants(case, False)["auto"], params, shapes
        )[1]
    for row in rows.values():
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
