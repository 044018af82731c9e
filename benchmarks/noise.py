"""Noise and sampling: our normal sampler against jax's, and Poisson batches in the graph.

    python -m benchmarks.noise [--json]     # two minutes
    python -m benchmarks.noise --smoke      # small sizes, to see that it runs

Variants are interleaved in one process, warm, blocked; a ratio is the median of the paired ratios of a round.
Compile times are printed apart.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # compile times are measured

import jax
import jax.numpy as jnp

from benchmarks import _table
from opake_jax.noise import gaussian_noise
from opake_jax.noise._normal import normal
from opake_jax.random import key, key_data
from opake_jax.sampling import PoissonSampler
from opake_jax.types import ClippedSum


def compiled(function: Callable[..., Any], *arguments: Any) -> tuple[Callable[[], Any], float]:
    """Returns a call that blocks until the result is there, and the seconds that compiling took."""
    lowered = jax.jit(function).lower(*arguments)
    started = time.perf_counter()
    program = lowered.compile()
    seconds = time.perf_counter() - started
    return lambda: jax.block_until_ready(program(*arguments)), seconds


Variants = dict[str, tuple[Callable[[], Any], float]]


def measure(title: str, variants: Variants, rounds: int) -> dict[str, Any]:
    """Returns the seconds of each variant, round by round, and of its compilation."""
    calls = {name: call for name, (call, _) in variants.items()}
    _table.interleaved(calls, 1)
    times = _table.interleaved(calls, rounds)
    compiling = {name: seconds for name, (_, seconds) in variants.items()}
    return {"title": title, "seconds": times, "compile_s": compiling}


def table(found: dict[str, Any]) -> str:
    """Returns the median milliseconds, the ratio to the first variant, spread and compile time."""
    base = next(iter(found["seconds"].values()))
    rows = [
        [
            name,
            f"{1e3 * statistics.median(seconds):.3f}",
            f"{statistics.median(a / b for a, b in zip(seconds, base, strict=True)):.2f}",
            _table.percent(_table.spread(seconds)),
            f"{found['compile_s'][name]:.2f}",
        ]
        for name, seconds in found["seconds"].items()
    ]
    return _table.markdown(found["title"], ["variant", "ms", "ratio", "spread", "compile, s"], rows)


def samplers(size: int, rounds: int) -> dict[str, Any]:
    root = key(0)
    words = key_data(root)
    gradient = jnp.zeros(size)
    noise = gaussian_noise(1.0, key=root)
    state = noise.init(gradient)
    return measure(
        f"Normal draws, {size}",
        {
            "jax.random.normal, float32": compiled(lambda k: jax.random.normal(k, (size,)), root),
            "ours": compiled(lambda w: normal(w, (size,)), words),
            "gaussian_noise: check, draw, add, divide": compiled(
                lambda g, s: noise.update(ClippedSum(g, 1.0, 4.0), s), gradient, state
            ),
        },
        rounds,
    )


def poisson(sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    root = key(0)
    variants = {}
    for size in sizes:
        sampler = PoissonSampler(size, 512 / size, capacity=640)
        variants[f"exact gaps, N = {size:.0e}"] = compiled(sampler.sample, root, jnp.uint32(0))
    title = "Poisson batches in the graph, 512 expected, cap 640"
    drawn = measure(title, variants, rounds)
    small = sizes[0]
    mask = compiled(lambda k: jax.random.bernoulli(k, 512 / small, (small,)), root)
    rows = {"exact gaps": variants[f"exact gaps, N = {small:.0e}"], "bernoulli mask alone": mask}
    title = f"Against a float32 uniform for each record, N = {small:.0e}"
    return [drawn, measure(title, rows, rounds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small sizes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    rounds = 3 if args.smoke else 31
    sizes = [10**6, 10**8] if args.smoke else [10**6, 10**7, 10**8]
    found = [samplers(2**12 if args.smoke else 2**20, rounds), *poisson(sizes, rounds)]
    if args.json:
        print(json.dumps({"device": jax.devices()[0].device_kind, "tables": found}))
        return
    print(f"device {jax.devices()[0].device_kind}")
    for one in found:
        print(table(one))


if __name__ == "__main__":
    main()
