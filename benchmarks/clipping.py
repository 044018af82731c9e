"""What does clipping cost? Time, temporary memory and compile time of one clipped gradient, as ratios.

    python -m benchmarks.clipping                        # M1 to M4 and an MNIST network, on one thread and on two
    python -m benchmarks.clipping --smoke                # small shapes, to see that all runs
    python -m benchmarks.clipping --models cnn --threads 1 --every --variants nonprivate,auto,ghost

Each model on each number of threads is a process of its own, in which all variants run interleaved; figures are medians. Two
baselines: the plain non-private batched step, and the best of those listed as `nonprivate ...` (for chunks: the best host loop).
"""

import argparse
import json
import subprocess
import sys

MODELS = {
    "mlp": "M1 MLP",
    "cnn": "M2 CNN",
    "decoder": "M3 decoder",
    "decoder-remat": "M3 scan + remat",
    "lora": "M4 LoRA",
    "mnist": "MNIST network",
}
# The figures to reach (issue 4), by model: auto's time over the best baseline, chunked's, auto's memory over the plain step's.
GOALS = {
    "mlp": (1.2, None, 2.0),
    "cnn": (1.3, 1.3, 2.0),
    "decoder": (1.15, None, 1.2),
    "decoder-remat": (1.15, None, 1.0),
    "lora": (1.1, None, 1.1),
    "mnist": (None, 1.3, None),
}
PEER_GOAL, COMPILE_GOAL, BATCH_GOAL = 1.05, 2.5, 2.0
BATCHES = (64, 1024)  # a larger batch must not compile much longer


def rows_of(model, threads, args):
    """Returns the rows of one model, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.clipping_run", model, "--threads", str(threads)]
    command += ["--rounds", str(1 if args.smoke else args.rounds), "--variants", args.variants]
    command += ["--every"] * args.every + ["--small"] * args.smoke
    has_auto = any(part in "auto" for part in args.variants.split(","))
    if threads == args.threads[0] and has_auto and not args.smoke:
        command += ["--batches", *map(str, BATCHES)]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def best(rows, prefix, chunks=False):
    """Returns the least time of the variants whose name starts so, inside one jit or in chunks."""
    found = [
        r["ms"]
        for r in rows
        if r["variant"].startswith(prefix) and "ms" in r and ("chunk" in r["variant"]) == chunks
    ]
    return min(found, default=float("nan"))


def summary(model, rows):
    """Returns the ratios of the issue's table as {what: (value, goal)}."""
    by_name = {r["variant"]: r for r in rows}
    auto, plain = by_name.get("auto", {}), by_name["nonprivate plain"]
    nan = float("nan")
    time_goal, chunk_goal, memory_goal = GOALS[model]
    ms = auto.get("ms", nan)
    compiles = auto.get("compile_s_of_batch", {})
    small, large = (compiles.get(str(size), nan) for size in BATCHES)
    return {
        "auto / best": (ms / best(rows, "nonprivate"), time_goal),
        "chunked / best": (
            best(rows, "chunked", True) / best(rows, "nonprivate", True),
            chunk_goal,
        ),
        "memory / plain": (auto.get("temp_mib", nan) / max(plain["temp_mib"], 1e-9), memory_goal),
        "best of ours / best peer": (
            min(ms, best(rows, "chunked", True)) / best(rows, "peer"),
            PEER_GOAL,
        ),
        "compile / naive": (
            auto.get("compile_s", nan) / by_name.get("naive", {}).get("compile_s", nan),
            COMPILE_GOAL,
        ),
        "compile 1024 / 64": (large / small, BATCH_GOAL),
    }


def print_rows(model, threads, rows):
    plain = rows[0]
    print(
        f"\n## {MODELS[model]}, {threads} thread{'s' * (threads > 1)}: plain {plain['ms']:.1f} ms, {plain['temp_mib']:.1f} MiB"
    )
    print(
        f"{'variant':26} {'ms':>9} {'/plain':>7} {'/best':>7} {'MiB':>8} {'/plain':>7} {'compile':>8}"
    )
    for r in rows:
        if "error" in r:
            print(f"{r['variant']:26} {r['error']}")
            continue
        base = best(rows, "nonprivate", "chunk" in r["variant"])
        memory = " " * 16
        if "temp_mib" in r:
            memory = f"{r['temp_mib']:8.1f} {r['temp_mib'] / max(plain['temp_mib'], 1e-9):7.2f}"
        took = f"{r['compile_s']:7.1f}s" if "compile_s" in r else ""
        off = "" if r.get("difference", 0.0) < 1e-5 else f"  DIFFERS {r['difference']:.1e}"
        print(
            f"{r['variant']:26} {r['ms']:9.1f} {r['ms'] / plain['ms']:7.2f} {r['ms'] / base:7.2f} {memory} {took:>8}{off}",
            flush=True,
        )


def print_table(found):
    """Prints the issue's table: what was found, and what was to be reached."""
    print(f"\n{'':26}" + "".join(f"{f'{model}, {n} thr':>24}" for model, n in found))
    for what in next(iter(found.values())):
        cells = []
        for values in found.values():
            value, goal = values[what]
            if value != value:  # not measured
                cells.append("-")
            elif goal is None:
                cells.append(f"{value:.2f}")
            else:
                cells.append(f"{value:.2f} <= {goal:g} {'yes' if value <= goal else 'NO'}")
        print(f"{what:26}" + "".join(f"{cell:>24}" for cell in cells))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--threads", nargs="+", type=int)
    parser.add_argument("--rounds", type=int, default=3, help="at least so many")
    parser.add_argument("--variants", default="", help="only those whose name has one of these")
    parser.add_argument("--every", action="store_true", help="our other engines too")
    parser.add_argument("--smoke", action="store_true", help="small shapes, once")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    args = parser.parse_args()
    args.threads = args.threads or ([1] if args.smoke else [1, 2])
    found = {}
    for threads in args.threads:
        for model in args.models:
            rows = rows_of(model, threads, args)
            found[model, threads] = summary(model, rows)
            if args.json:
                print("\n".join(map(json.dumps, rows)), flush=True)
            else:
                print_rows(model, threads, rows)
    if args.smoke:
        return  # the ratios of small shapes say nothing
    if not args.json:
        print_table(found)


if __name__ == "__main__":
    main()
