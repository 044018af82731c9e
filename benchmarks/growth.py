"""How does the cost grow: with the batch, the parameters, the steps, the number of settings asked?

    python -m benchmarks.growth            # under three minutes on two quiet cores
    python -m benchmarks.growth --smoke    # small sizes, to see that it runs

Clipping: the clipped gradient of `Auto` beside the plain batched step, interleaved, medians of wall time,
and the temporary memory of the compiled program (beside parameters and gradient). Past this machine's
memory the program is compiled for shapes alone: the plan of its memory is there, the time is not.
Accounting: epsilon of Poisson sampling at known numbers, which NumPy answers, and at traced ones, which are compiled.
"""

import argparse
import functools
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # compile times are measured

import jax
import jax.numpy as jnp
import numpy as np

import opake_jax.accounting as acc
from benchmarks import _table
from benchmarks import clipping_models as models
from opake_jax import clipping

# A row is measured for so long, and at most so often: enough for a median.
SECONDS, ROUNDS = 1.0, 9
DELTA = 1e-5


# --- Clipping --------------------------------------------------------------------------------------------


def plain(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda p, b: jnp.sum(jax.vmap(loss_fn, (None, 0))(p, b)))


def clipped(loss_fn: Callable[..., Any], engine: Any) -> Callable[..., Any]:
    grad_fn = clipping.clipped_grad(loss_fn, 0.5, engine=engine)
    return lambda params, batch: grad_fn(params, batch)[0].tree


def compiled(function: Callable[..., Any], shapes: Any) -> tuple[Any, float, float]:
    """Returns the program, its temporary MiB and the seconds to trace and compile it."""
    started = time.perf_counter()
    program = jax.jit(function).lower(*shapes).compile()
    seconds = time.perf_counter() - started
    return program, program.memory_analysis().temp_size_in_bytes / 2**20, seconds


def mlp_case(batch: int, width: int) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """Returns the loss and what makes (params, batch): two hidden layers, width^2 of the weights."""
    sizes = (width, width, width, 10)

    def make() -> Any:
        k = jax.random.key(0)
        x = jax.random.normal(k, (batch, width))
        return models.mlp_init(k, sizes), (x, jax.random.randint(k, (batch,), 0, 10))

    return models.mlp_loss, make


def decoder_case(batch: int, width: int) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """Returns the same of a decoder of one layer on 32 tokens of 96 kinds."""

    def make() -> Any:
        tokens = jax.random.randint(jax.random.key(0), (batch, 33), 0, 96)
        params = models.decoder_init(jax.random.key(1), 1, width, 96, 32)
        return params, (tokens[:, :-1], tokens[:, 1:])

    return models.decoder_loss, make


def clipping_row(case: Any, batch: int, run: bool) -> dict[str, Any]:
    """Returns memory of the plain step, `Auto` and `Vmap`, and with `run` the times of the first two."""
    loss_fn, make = case
    shapes = jax.eval_shape(make)
    programs = {
        "plain": compiled(plain(loss_fn), shapes),
        "auto": compiled(clipped(loss_fn, clipping.Auto()), shapes),
        "vmap": compiled(clipped(loss_fn, clipping.Vmap()), shapes),
    }
    row: dict[str, Any] = {
        "parameters": sum(x.size for x in jax.tree.leaves(shapes[0])),
        "batch": batch,
        "mib": {name: mib for name, (_, mib, _) in programs.items()},
        "compile_s": programs["auto"][2],
    }
    if run:
        params, examples = jax.jit(make)()

        def call(program: Any) -> Callable[[], Any]:
            return lambda: jax.block_until_ready(program(params, examples))

        calls = {name: call(programs[name][0]) for name in ("plain", "auto")}
        _table.interleaved(calls, 1)
        row["seconds"] = _table.interleaved(calls, ROUNDS, SECONDS)
    return row


def clipping_table(title: str, rows: list[dict[str, Any]]) -> str:
    def cells(row: dict[str, Any]) -> list[str]:
        mib = [f"{x:,.0f}" if x > 100 else f"{x:.3g}" for x in row["mib"].values()]
        times = ["on paper", "", "", ""]
        if "seconds" in row:
            a, b = row["seconds"]["plain"], row["seconds"]["auto"]
            ratio = statistics.median(y / x for x, y in zip(a, b, strict=True))
            ms = [f"{1e3 * statistics.median(s):.3g}" for s in (a, b)]
            times = [*ms, f"{ratio:.2f}", _table.percent(_table.spread(b))]
        return [
            str(row["batch"]),
            f"{row['parameters']:,}",
            *times,
            *mib,
            f"{row['compile_s']:.1f}",
        ]

    columns = ["batch", "parameters", "plain, ms", "clipped, ms", "ratio", "spread"]
    columns += ["plain, MiB", "clipped, MiB", "one gradient each, MiB", "compile, s"]
    return _table.markdown(title, columns, [cells(row) for row in rows])


# --- Accounting ------------------------------------------------------------------------------------------


def epsilon(sigma: Any, steps: Any) -> Any:
    return (acc.poisson(acc.gaussian(sigma), 0.01) * steps).epsilon_at(DELTA)


def steps_row(steps: int) -> dict[str, Any]:
    """Returns the time of a known T, and how wide the bracket is."""
    process = acc.poisson(acc.gaussian(1.0), 0.01) * steps
    low, high, _ = process.epsilon_bounds(DELTA)
    times = _table.interleaved({"known": lambda: epsilon(1.0, steps)}, ROUNDS, SECONDS)["known"]
    return {
        "steps": steps,
        "epsilon": float(high),
        "width": float((high - low) / high),
        "seconds": times,
    }


def grid_row(count: int) -> dict[str, Any]:
    """Returns the time of so many noise multipliers, known in a loop and traced under one vmap."""
    sigmas = np.geomspace(0.5, 10.0, count)
    program, _, seconds = compiled(
        jax.vmap(lambda s: epsilon(s, 1000)), (jnp.asarray(sigmas, jnp.float32),)
    )
    traced = jnp.asarray(sigmas, jnp.float32)
    calls = {
        "known": lambda: [epsilon(s, 1000) for s in sigmas],
        "traced": lambda: jax.block_until_ready(program(traced)),
    }
    if count <= 30:  # a long call needs no warming
        _table.interleaved(calls, 1)
    return {
        "count": count,
        "compile_s": seconds,
        "seconds": _table.interleaved(calls, ROUNDS, SECONDS),
    }


def steps_table(rows: list[dict[str, Any]]) -> str:
    cells = [
        [
            f"{row['steps']:.0e}",
            f"{row['epsilon']:.6g}",
            f"{row['width']:.0e}",
            f"{1e3 * statistics.median(row['seconds']):.2f}",
            _table.percent(_table.spread(row["seconds"])),
        ]
        for row in rows
    ]
    title = f"Accounting over steps: noise multiplier 1, rate 0.01, delta {DELTA:g}"
    return _table.markdown(title, ["steps", "epsilon <=", "bracket", "ms", "spread"], cells)


def grid_table(rows: list[dict[str, Any]]) -> str:
    def cells(row: dict[str, Any]) -> list[str]:
        known, traced = row["seconds"]["known"], row["seconds"]["traced"]
        each = [f"{1e3 * statistics.median(s) / row['count']:.2f}" for s in (known, traced)]
        spreads = [_table.percent(_table.spread(s)) for s in (known, traced)]
        return [
            str(row["count"]),
            each[0],
            spreads[0],
            each[1],
            spreads[1],
            f"{row['compile_s']:.1f}",
        ]

    title = "Accounting over settings: noise multipliers 0.5 to 10, rate 0.01, 1,000 steps"
    columns = ["settings", "known, ms each", "spread", "traced, ms each", "spread", "compile, s"]
    return _table.markdown(title, columns, [cells(row) for row in rows])


# --- Printing --------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()

    batches = (16, 64) if args.smoke else (16, 64, 256, 1024, 4096)
    # Two hidden layers of this width are 1e4, 1e5, 1e6 and 1e7 weights; the last, 1e8, is on paper.
    widths = (67,) if args.smoke else (67, 220, 704, 2233)
    steps = (10, 10**7) if args.smoke else tuple(10**n for n in range(1, 8))
    counts = (1, 3) if args.smoke else (1, 30, 1000)

    found: dict[str, list[dict[str, Any]]] = {}

    def show(name: str, rows: list[dict[str, Any]], table: Callable[[Any], str]) -> None:
        found[name] = rows
        if not args.json:
            print(table(rows), flush=True)

    mlps = functools.partial(clipping_table, "Clipping over the batch: MLP")
    show("MLP", [clipping_row(mlp_case(b, 220), b, True) for b in batches], mlps)
    decoders = functools.partial(clipping_table, "Clipping over the batch: decoder")
    # A decoder compiles longer: every other size.
    sizes = batches[::2]
    show("decoder", [clipping_row(decoder_case(b, 64), b, True) for b in sizes], decoders)
    sized = functools.partial(clipping_table, "Clipping over the parameters: MLP")
    rows = [clipping_row(mlp_case(64, width), 64, True) for width in widths]
    show("parameters", [*rows, clipping_row(mlp_case(64, 7068), 64, False)], sized)
    show("steps", [steps_row(count) for count in steps], steps_table)
    show("settings", [grid_row(count) for count in counts], grid_table)
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
