"""What does clipping cost? Time, temporary memory and compile time of one clipped gradient, as ratios.

    python benchmarks/clipping.py --threads 1 --json clipping.json
    python benchmarks/clipping.py --models mlp --small --rounds 3

All variants of a model run interleaved in one process; figures are medians. Two baselines: the plain non-private batched step, and the best
non-private form of those listed as `nonprivate ...`. Within one jit, unless the name says chunks.
"""

import argparse
import functools
import json
import os
import statistics
import time

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--models", default="mlp,cnn,decoder,decoder-remat,lora,mnist")
parser.add_argument("--variants", default="", help="only variants whose name contains one of these")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--rounds", type=int, default=7)
parser.add_argument("--small", action="store_true", help="small shapes, to see that all runs")
parser.add_argument("--json", default="")
options = parser.parse_args()
if hasattr(os, "sched_setaffinity"):  # before jax counts the processors
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402

from opake_jax import clipping  # noqa: E402
from opake_jax.clipping._ghost._sums import Operands, summand  # noqa: E402
from opake_jax.clipping._ghost._trace import gradient_forms  # noqa: E402
from opake_jax.clipping._problem import Problem  # noqa: E402

try:
    import clipping_models as models
except ImportError:  # run as a module
    from benchmarks import clipping_models as models

try:
    from optax import contrib as optax_contrib
except ImportError:
    optax_contrib = None
try:
    from jax_privacy import clipping as jax_privacy_clipping
except ImportError:
    jax_privacy_clipping = None

CLIPPING_NORM = 0.5


# Non-private baselines: the gradient of the summed loss.


def plain(loss_fn):
    """One batched step, as everybody writes it."""
    return jax.grad(lambda p, b: jnp.sum(jax.vmap(loss_fn, (None, 0))(p, b)))


def scanned(loss_fn, size):
    """Microbatches of this size in a scan."""

    def run(params, batch):
        parts = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), batch)
        step = lambda total, part: (  # noqa: E731
            jax.tree.map(jnp.add, total, plain(loss_fn)(params, part)),
            None,
        )
        return lax.scan(step, jax.tree.map(jnp.zeros_like, params), parts)[0]

    return run


def flattened(loss_fn):
    """One batched step whose weight gradients are single products over (example, position) behind a barrier."""

    def run(params, batch):
        leaves, treedef = jax.tree.flatten(params)
        problem = Problem(
            lambda leaves, example, key: (loss_fn(treedef.unflatten(leaves), example), None),
            lambda norm: norm,
            (0,) * len(leaves),
        )
        sums = []

        def one(example):
            _, _, forms, arrange = gradient_forms(problem, leaves, example, None)
            operands = Operands(arrange)
            sums[:] = [summand(form, None, operands) for form in forms]
            return operands.varying, operands.fixed

        varying, fixed = jax.vmap(one, out_axes=(0, None))(batch)
        ones = jnp.ones(len(jax.tree.leaves(batch)[0]))
        out = [s(ones, varying, fixed).reshape(x.shape) for s, x in zip(sums, leaves, strict=True)]
        return treedef.unflatten(out)

    return run


def host_chunks(function, size):
    """Separate calls of a fixed small chunk, sums donated."""

    @functools.partial(jax.jit, donate_argnums=0)
    def add(total, params, part):
        return jax.tree.map(jnp.add, total, function(params, part))

    def run(params, batch):
        total = jax.tree.map(jnp.zeros_like, params)
        for start in range(0, len(jax.tree.leaves(batch)[0]), size):
            total = add(total, params, jax.tree.map(lambda x, s=start: x[s : s + size], batch))
        return total

    return run


# Private variants.


def ours(loss_fn, engine):
    grad_fn = clipping.clipped_grad(loss_fn, CLIPPING_NORM, engine=engine)
    return lambda params, batch: grad_fn(params, batch)[0].tree


def naive(loss_fn):
    """vmap(grad), clip, contract: the best one can write by hand in four lines."""

    def run(params, batch):
        gradients = jax.vmap(jax.grad(loss_fn), (None, 0))(params, batch)
        squares = [jnp.sum(jnp.square(g), range(1, g.ndim)) for g in jax.tree.leaves(gradients)]
        factors = jnp.minimum(1.0, CLIPPING_NORM / jnp.sqrt(sum(squares)))
        return jax.tree.map(lambda g: jnp.tensordot(factors, g, 1), gradients)

    return run


def optax_peer(loss_fn):
    def run(params, batch):
        gradients = jax.vmap(jax.grad(loss_fn), (None, 0))(params, batch)
        dp = optax_contrib.differentially_private_aggregate(
            CLIPPING_NORM, 0.0, key=jax.random.key(0)
        )
        return dp.update(gradients, dp.init(params), params)[0]

    return run


def jax_privacy_peer(loss_fn, size):
    return jax_privacy_clipping.clipped_grad(
        loss_fn, l2_clip_norm=CLIPPING_NORM, keep_batch_dim=False, microbatch_size=size
    )


def variants(case):
    f = case.loss_fn
    out = {"nonprivate plain": plain(f), "nonprivate flattened": flattened(f)}
    for size in case.scan_sizes:
        out[f"nonprivate scan {size}"] = scanned(f, size)
    out |= {
        "auto": ours(f, clipping.Auto()),
        "ghost": ours(f, clipping.Ghost()),
        "vmap": ours(f, clipping.Vmap()),
        "naive": naive(f),
    }
    for size in case.scan_sizes:
        out[f"microbatched {size} vmap"] = ours(f, clipping.Microbatched(size, clipping.Vmap()))
        out[f"microbatched {size} ghost"] = ours(f, clipping.Microbatched(size, clipping.Ghost()))
    if optax_contrib is not None:
        out["peer optax"] = optax_peer(f)
    if jax_privacy_clipping is not None:
        for size in (None, *case.peer_sizes):
            out[f"peer jax_privacy {size}"] = jax_privacy_peer(f, size)
    for size in case.chunk_sizes:
        out[f"nonprivate chunks {size}"] = host_chunks(plain(f), size)
        out[f"chunked {size}"] = ours(f, clipping.Chunked(size))
    wanted = options.variants.split(",")
    return {n: v for n, v in out.items() if any(w in n for w in wanted) or n == "nonprivate plain"}


def measure(case):
    params, batch = case.make()
    rows = {}
    calls = {}
    reference = None
    for name, function in variants(case).items():
        in_chunks = "chunk" in name
        start = time.perf_counter()
        try:
            if in_chunks:
                call, memory = function, None
            else:
                call = jax.jit(function).lower(params, batch).compile()
                memory = call.memory_analysis().temp_size_in_bytes / 2**20
            compiled = time.perf_counter() - start
            out = jax.block_until_ready(call(params, batch))
        except Exception as error:  # a peer that fails is a result
            rows[name] = {"error": f"{type(error).__name__}: {error}"[:200]}
            continue
        start = time.perf_counter()
        jax.block_until_ready(call(params, batch))
        rows[name] = {
            "compile_s": compiled,
            "temp_mib": memory,
            "once": time.perf_counter() - start,
        }
        if not name.startswith("nonprivate"):
            reference = out if reference is None else reference
            rows[name]["difference"] = difference(out, reference)
        calls[name] = call
    times = {name: [rows[name].pop("once")] for name in calls}
    for round_number in range(options.rounds):
        for name, call in calls.items():
            if times[name][0] > 20 and round_number > 1:  # the slow ones need no more
                continue
            start = time.perf_counter()
            jax.block_until_ready(call(params, batch))
            times[name].append(time.perf_counter() - start)
    for name, seconds in times.items():
        rows[name]["ms"] = 1e3 * statistics.median(seconds[1:] or seconds)
    report(case.name, rows)
    return rows


def difference(a, b):
    """Largest difference relative to the largest entry. optax divides by the batch size: compared up to scale."""
    a, b = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)]) for t in (a, b))
    return float(np.abs(a / np.abs(a).max() - b / np.abs(b).max()).max())


def report(name, rows):
    plain_ms = rows["nonprivate plain"]["ms"]
    inside = {n: r["ms"] for n, r in rows.items() if n.startswith("nonprivate") and "ms" in r}
    chunks = {n: ms for n, ms in inside.items() if "chunk" in n}
    inside = {n: ms for n, ms in inside.items() if "chunk" not in n}
    best, best_chunks = min(inside.values()), min(chunks.values(), default=float("nan"))
    plain_mib = rows["nonprivate plain"]["temp_mib"]
    naive_s = rows.get("naive", {}).get("compile_s", float("nan"))
    print(f"\n## {name}: plain {plain_ms:.1f} ms, {plain_mib:.1f} MiB; best {best:.1f} ms")
    print(
        f"{'variant':26s} {'ms':>9s} {'/plain':>7s} {'/best':>7s} {'MiB':>8s} {'/plain':>7s} {'compile':>8s} {'/naive':>7s}"
    )
    for n, r in rows.items():
        if "error" in r:
            print(f"{n:26s} {r['error']}")
            continue
        base = best_chunks if "chunk" in n else best
        r["of_plain"], r["of_best"] = r["ms"] / plain_ms, r["ms"] / base
        memory = (
            ""
            if r["temp_mib"] is None
            else f"{r['temp_mib']:8.1f} {r['temp_mib'] / max(plain_mib, 1e-9):7.2f}"
        )
        off = "" if r.get("difference", 0.0) < 1e-5 else f"  DIFFERS {r['difference']:.1e}"
        print(
            f"{n:26s} {r['ms']:9.1f} {r['of_plain']:7.2f} {r['of_best']:7.2f} {memory:16s} {r['compile_s']:7.1f}s {r['compile_s'] / naive_s:7.2f}{off}",
            flush=True,
        )


def main():
    print(
        f"jax {jax.__version__}, {jax.default_backend()}, {options.threads} threads, medians of {options.rounds}"
    )
    out = {name: measure(models.CASES[name](options.small)) for name in options.models.split(",")}
    if options.json:
        with open(options.json, "w") as file:
            json.dump(out, file, indent=1)


if __name__ == "__main__":
    main()
