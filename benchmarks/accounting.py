"""How long does an answer take, and how tight is it? Ours beside the peers', in one process.

    python -m benchmarks.accounting [--only W1 W2] [--no-peers] [--smoke] [--json]

Each workload is asked once (`first`: wall time of the first call less a warm one), then ours and
the peers' are called in turn; times are medians of process time. A peer that cannot be imported is left
out (extra `bench`; opacus and opake by hand, opake on Python 3.13). Reference values come from
tests/reference/accounting_reference.json where the setting is in it.
"""

import argparse
import dataclasses
import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import _accounting_peers as peers
from benchmarks import _table

Answer = Callable[[], Any]

# A call is repeated for this long, at least and at most so often: enough for a median.
SECONDS, FEWEST, MOST = 2.0, 3, 51


@dataclasses.dataclass(frozen=True)
class Workload:
    """One question.

    Attributes:
      name: as in the design's table.
      what: the setting in words.
      ours: returns the answer, a number.
      reference: what is known of the truth, (low, high), or None.
      target: ms to reach, warm.
      bracket: returns (lower, upper), or None.
      peers: the same question asked of others.
    """

    name: str
    what: str
    ours: Answer
    reference: tuple[float, float] | None
    target: float
    bracket: Answer | None = None
    peers: Mapping[str, Answer] = dataclasses.field(default_factory=dict)


def workloads() -> list[Workload]:
    """Returns the table; importing jax happens here."""
    import numpy as np

    import opake_jax.accounting as acc
    import opake_jax.dpsgd.accounting as dpsgd

    def poisson(sigma: float, q: float, steps: float) -> Any:
        return dpsgd.poisson(dpsgd.gaussian(sigma), q) * steps

    def epsilon(name, what, process, delta, reference, target, others):
        # The process is made anew each time, as a user would.
        return Workload(
            name,
            what,
            lambda: process().epsilon_at(delta),
            reference,
            target,
            lambda: process().epsilon_bounds(delta)[:2],
            others,
        )

    rows = []
    for name, sigma, q, steps, delta, reference, target in [
        ("W1", 1.0, 0.01, 1000, 1e-5, (1.828230902, 1.828236920), 5),
        ("W2", 0.8, 256 / 50000, 20000, 1e-6, (7.609853463, 7.609997173), 5),
        ("W3", 2.0, 0.1, 2500, 1e-5, (14.42839435, 14.42840152), 5),
        ("W4", 0.5, 0.001, 100000, 1e-6, (14.7324, 14.7333), 5),
        ("H1", 1.0, 0.01, 1000, 1e-15, None, 1000),
        ("H2", 1.0, 0.01, 1000, 1e-30, None, 1000),
        ("H3", 1.0, 0.01, 1000, 1e-100, (29.5984, 29.5992), 1000),
        ("H4", 0.1, 0.01, 1000, 1e-5, (1194.7491, 1194.7511), 1000),
        ("H5", 0.05, 0.01, 100, 1e-5, None, 1000),
        ("H6", 20.0, 0.01, 10**6, 1e-12, (3.451883647, 3.451884455), 1000),
        ("H7", 1.0, 1e-6, 10**6, 1e-12, (0.0, 0.00765), 1000),
        ("H8", 1000.0, 0.5, 10**6, 1e-9, (2.909735975, 2.909736994), 1000),
        ("H9", 1.0, 0.01, 10**7, 1e-5, (1014.066, 1014.068), 1000),
        ("H10", 1e6, 0.01, 1000, 1e-9, (7.427e-7, 7.431e-7), 1000),
    ]:
        what = f"epsilon: sigma {sigma:g}, q {q:g}, T {steps:g}, delta {delta:g}"
        process = functools.partial(poisson, sigma, q, steps)
        # The hard ones send peers into minutes and gigabytes: see the design page for what they say.
        others = peers.epsilon(sigma, q, steps, delta) if name.startswith("W") else {}
        rows.append(epsilon(name, what, process, delta, reference, target, others))

    common = functools.partial(poisson, 1.0, 0.01, 1000)

    def calibrated(module: Any = acc, names: Any = dpsgd) -> float:
        return module.calibrate(
            module.epsilon_budget(3.0, delta=1e-5),
            lambda sigma: names.poisson(names.gaussian(sigma), 0.01) * 1000,
            param_min=0.1,
            param_max=10.0,
        ).param

    rows.append(
        Workload(
            "W6",
            "calibrate sigma: epsilon 3, delta 1e-5, q 0.01, T 1000",
            calibrated,
            (0.813584, 0.813586),
            30,
            peers=peers.calibration(3.0, 1e-5, 0.01, 1000),
        )
    )
    rows.append(
        Workload(
            "W7",
            "RDP epsilon of W1, default orders",
            lambda: common().epsilon_at(1e-5, accountant=acc.RDP()),
            None,
            1,
            peers=peers.renyi_epsilon(1.0, 0.01, 1000, 1e-5),
        )
    )
    sigmas, rates = np.geomspace(0.5, 10, 100), np.geomspace(1e-4, 0.2, 20)
    rows.append(
        Workload(
            "W8",
            "RDP epsilon, 100 sigmas x 20 rates, T 1000, delta 1e-5 (the mean)",
            renyi_grid(sigmas, rates),
            None,
            500,
            peers=peers.renyi_grid(sigmas, rates, 1000, 1e-5),
        )
    )
    counts = np.arange(100, 10001, 100)
    rows.append(
        Workload(
            "W9",
            "epsilon at 100 checkpoints of T 10000, sigma 1, q 0.01, delta 1e-5 (the last)",
            lambda: acc.epsilon_trajectory(common.func(1.0, 0.01, 1), counts, 1e-5)[-1],
            None,
            200,
            peers=peers.trajectory(1.0, 0.01, counts, 1e-5),
        )
    )

    def truncated() -> Any:
        step = dpsgd.poisson(
            dpsgd.gaussian(1.0),
            256 / 50000,
            truncated_batch_size=256,
            dataset_size=50000,
            relation=acc.NeighboringRelation.ZERO_OUT,
        )
        return step * 1000

    what = "truncated: n 50000, b 256, cap 256, sigma 1, T 1000, delta 1e-5, ZERO_OUT"
    others = peers.truncated(1.0, 50000, 256, 256, 1000, 1e-5)
    rows.append(epsilon("W10", what, truncated, 1e-5, (6.7953, 6.7979), 15, others))
    what = "parallel: W 4, q 0.01, sigma 1, T 1000, delta 1e-5"
    others = peers.parallel(1.0, 0.01, 4, 1000, 1e-5)
    rows.append(
        epsilon(
            "parallel",
            what,
            lambda: (
                dpsgd.parallel_poisson(dpsgd.gaussian(1.0), sample_rate=0.01, num_workers=4) * 1000
            ),
            1e-5,
            (8.899078168, 8.899203168),
            20,
            others,
        )
    )
    rows += [
        Workload(
            "delta",
            "delta at epsilon 3 of W1",
            lambda: common().delta_at(3.0),
            (9.2201e-10, 9.2221e-10),
            5,
            lambda: common().delta_bounds(3.0)[:2],
            peers.delta(1.0, 0.01, 1000, 3.0),
        ),
        Workload(
            "advantage",
            "advantage of W1",
            lambda: common().advantage(),
            (0.1610086, 0.1610179),
            5,
            lambda: common().delta_bounds(0.0)[:2],
            peers.delta(1.0, 0.01, 1000, 0.0),
        ),
        Workload(
            "beta",
            "beta at alpha 0.01 of W1",
            lambda: common().beta_at(0.01),
            (0.970860898, 0.970876280),
            5,
            lambda: common().beta_bounds(0.01)[:2],
        ),
    ]
    return rows


def renyi_grid(sigmas: Any, rates: Any) -> Answer:
    """Returns one jitted call for the whole grid."""
    import jax
    import numpy as np

    import opake_jax.accounting as acc

    def one(sigma: Any, rate: Any) -> Any:
        process = acc.poisson(acc.gaussian(sigma), rate) * 1000
        return process.epsilon_at(1e-5, accountant=acc.RDP())

    grid = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))
    return lambda: float(np.mean(grid(sigmas, rates)))


# --- Measuring -----------------------------------------------------------------------------------------


def timed(call: Answer) -> tuple[Any, float, float]:
    """Returns (result, process seconds, wall seconds)."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = call()
    return result, time.process_time() - cpu, time.perf_counter() - wall


def attempt(call: Answer) -> Any:
    """Returns (result, process seconds) or the error's words: a peer may fail where we must not."""
    try:
        result, cpu, _ = timed(call)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:80]
    return result, cpu


def measure(work: Workload, first: float, with_peers: bool) -> dict[str, Any]:
    """Returns one row of the table; `first` is the wall time of the first call."""
    answer, _, again = timed(work.ours)
    row: dict[str, Any] = {
        "name": work.name,
        "what": work.what,
        "answer": float(answer),
        "reference": work.reference,
        "target_ms": work.target,
        "compile_s": max(0.0, first - again),
        "bracket": [float(x) for x in work.bracket()] if work.bracket else None,
        "peers": {},
    }
    times: list[float] = []
    others = dict(work.peers) if with_peers else {}
    found: dict[str, list[float]] = {name: [] for name in others}
    started = time.perf_counter()
    while len(times) < FEWEST or (len(times) < MOST and time.perf_counter() - started < SECONDS):
        times.append(timed(work.ours)[1])
        for name, call in others.items():
            # A slow or failing peer is asked once or twice, not until a median settles.
            if sum(found[name]) > SECONDS or isinstance(row["peers"].get(name), str):
                continue
            outcome = attempt(call)
            if isinstance(outcome, str):
                row["peers"][name] = outcome
            else:
                found[name].append(outcome[1])
                row["peers"][name] = {"answer": float(outcome[0])}
    row |= {"ms": 1e3 * statistics.median(times), "spread": _table.spread(times)}
    for name, seconds in found.items():
        if seconds:
            ms = 1e3 * statistics.median(seconds)
            row["peers"][name] |= {"ms": ms, "ratio": ms / row["ms"]}
    return row


COLD = (
    "import opake_jax.accounting as a, opake_jax.dpsgd.accounting as d;"
    "(d.poisson(d.gaussian(1.0), 0.01) * 1000).epsilon_at(1e-5)"
)


def cold_start() -> dict[str, float]:
    """Returns wall seconds of a fresh process with its first epsilon, without and with jax's cache."""

    def run(environment: dict[str, str]) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", COLD], check=True, env=environment)
        return time.perf_counter() - start

    plain = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION_CACHE")}
    with tempfile.TemporaryDirectory() as folder:
        cached = plain | {
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        }
        run(cached)
        return {"cold_s": run(plain), "cold_cached_s": run(cached)}


def peak_memory() -> float:
    """Returns the most MB that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1024**2 if sys.platform == "darwin" else 1024
    )


# --- Printing ------------------------------------------------------------------------------------------


def table(rows: list[dict[str, Any]]) -> str:
    """Returns our answers: the relative width of the bracket, the time and the time to reach."""

    def cells(row: dict[str, Any]) -> list[str]:
        width = "-"
        if row["bracket"]:
            low, high = row["bracket"]
            width = f"{(high - low) / high:.1e}" if high else "0"
        known = row["reference"]
        reference = "-" if known is None else f"{known[0]:.7g} to {known[1]:.7g}"
        met = "" if row["ms"] <= row["target_ms"] else ", missed"
        times = [f"{row['ms']:.2f}", _table.percent(row["spread"]), f"{row['target_ms']:g}{met}"]
        answer = f"{row['answer']:.9g}"
        first = f"{row['compile_s']:.1f}"
        return [f"{row['name']}: {row['what']}", answer, reference, width, *times, first]

    columns = ["", "answer", "known", "bracket", "ms", "spread", "target", "first, s"]
    return _table.markdown("Answers", columns, [cells(row) for row in rows])


def peers_table(rows: list[dict[str, Any]]) -> str:
    """Returns what the others answer, in what time, and that over ours; or how they fail."""
    lines = [
        [row["name"], name, other, "-", "-"]
        if isinstance(other, str)
        else [
            row["name"],
            name,
            f"{other['answer']:.6g}",
            f"{other['ms']:.4g}" if "ms" in other else "-",
            f"{other['ratio']:.0f}" if "ratio" in other else "-",
        ]
        for row in rows
        for name, other in row["peers"].items()
    ]
    return _table.markdown("Peers", ["", "peer", "answer", "ms", "over ours"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="names of workloads")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="W1 alone, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.smoke:
        args.only = ["W1"]
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

    chosen = [w for w in workloads() if not args.only or w.name in args.only]
    # All of ours first, so that the peak is ours alone.
    first = [timed(work.ours)[2] for work in chosen]
    result: dict[str, Any] = {"peak_memory_mb": peak_memory(), "rows": []}
    for work, seconds in zip(chosen, first, strict=True):
        result["rows"].append(measure(work, seconds, not args.no_peers))
    if not args.only:
        result |= cold_start()
    if args.json:
        print(json.dumps(result, indent=1))
        return
    print(table(result["rows"]))
    if any(row["peers"] for row in result["rows"]):
        print(peers_table(result["rows"]))
    print(f"\nPeak memory of ours: {result['peak_memory_mb']:.0f} MB (target 400).")
    if "cold_s" in result:
        print(
            f"Cold start to the first epsilon: {result['cold_s']:.2f} s (target 3), "
            f"with a compilation cache {result['cold_cached_s']:.2f} s (target 1.3)."
        )


if __name__ == "__main__":
    main()
