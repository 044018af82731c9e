"""Noise and sampling: our normal sampler against jax's, and Poisson batches in the graph.

python benchmarks/noise.py            # two minutes
python benchmarks/noise.py --smoke    # small sizes, to see that it runs

Variants are interleaved in one process, warm, blocked; a ratio is the median of the paired ratios of a round.
Compile times are printed apart.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

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


def measure(
    variants: dict[str, tuple[Callable[[], Any], float]], rounds: int
) -> dict[str, list[float]]:
    """Returns each variant's seconds, one for each round; every round runs all of them."""
    for call, _ in variants.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, (call, _) in variants.items():
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    return times


def table(title: str, variants: dict[str, tuple[Callable[[], Any], float]], rounds: int) -> None:
    """Prints the median milliseconds, the ratio to the first variant and the compile time."""
    times = measure(variants, rounds)
    base = next(iter(times.values()))
    print(f"\n{title}\n| variant | ms | ratio | compile s |\n|---|---|---|---|")
    for name, seconds in times.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, base, strict=True))
        print(
            f"| {name} | {1e3 * statistics.median(seconds):.3f} | {ratio:.2f} | {variants[name][1]:.2f} |"
        )


def samplers(size: int, rounds: int) -> None:
    root = key(0)
    words = key_data(root)
    gradient = jnp.zeros(size)
    noise = gaussian_noise(1.0, key=root)
    state = noise.init(gradient)
    table(
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


def poisson(sizes: list[int], rounds: int) -> None:
    root = key(0)
    variants = {}
    for size in sizes:
        sampler = PoissonSampler(size, 512 / size, capacity=640)
        variants[f"exact gaps, N = {size:.0e}"] = compiled(sampler.sample, root, jnp.uint32(0))
    table("Poisson batches in the graph, 512 expected, cap 640", variants, rounds)
    small = sizes[0]
    mask = compiled(lambda k: jax.random.bernoulli(k, 512 / small, (small,)), root)
    rows = {"exact gaps": variants[f"exact gaps, N = {small:.0e}"], "bernoulli mask alone": mask}
    table(f"Against a float32 uniform for each record, N = {small:.0e}", rows, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small sizes")
    args = parser.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}")
    if args.smoke:
        samplers(2**12, 3)
        poisson([10**6, 10**8], 3)
    else:
        samplers(2**20, 31)
        poisson([10**6, 10**7, 10**8], 31)


if __name__ == "__main__":
    main()
