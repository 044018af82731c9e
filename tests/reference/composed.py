"""Recomputes the composed rows with the tests' own lattice accountant.

    python tests/reference/composed.py [fineness]

prints each row's stored and recomputed bracket, and fails if two do not overlap. The stored brackets were
made the same way on a finer lattice (`high`: connect the dots, `low`: merged outcomes with a certified
shift), and beta from the bracketed delta curve.
"""

import json
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "accounting"))

import lattice  # noqa: E402

ROWS = json.loads((HERE / "accounting_reference.json").read_text())[1:]
DIRECTIONS = ("remove", "add")


def directions(row):
    """Returns the steps of each direction that the row's value is the worst of, or None."""
    kind, p = row["kind"], row["params"]
    both = [p["direction"]] if "direction" in p else DIRECTIONS
    match kind:
        case "gaussian":
            return [[(lattice.gaussian(p["sigma"]), p["T"])]]
        case "laplace":
            return [[(lattice.laplace(p["b"]), p["T"])]]
        case "poisson_gaussian":
            return [[(lattice.poisson(p["sigma"], p["q"], d), p["T"])] for d in both]
        case "parallel_poisson":
            return [
                [(lattice.parallel_poisson(p["sigma"], p["q"], p["W"], d), p["T"])] for d in both
            ]
        case "heterogeneous_poisson_gaussian":
            return [
                [(lattice.poisson(x["sigma"], x["q"], d), x["T"]) for x in p["phases"]]
                for d in both
            ]
        case "truncated_poisson_dpacc_formula":
            args = p["sigma"], p["q"], p["truncated_batch_size"], p["dataset_size"]
            return [[(lattice.truncated_poisson(*args, d, zero_out=True), p["T"])] for d in both]
        case "fixed_size_wor":
            return [
                [(lattice.fixed_size(p["sigma"], p["sample_size"] / p["dataset_size"]), p["T"])]
            ]
    return None


def beta_bracket(steps, alpha, fineness):
    """Returns the bracket of sup over eps of max(1 - delta - e^eps alpha, e^-eps (1 - delta - alpha))."""
    low, high = 0.0, 0.0
    for epsilon in np.linspace(0, 6, 61):
        lower, upper = lattice.delta_bracket(steps, float(epsilon), fineness=fineness)
        for delta, is_low in ((upper, True), (lower, False)):
            beta = max(1 - delta - np.exp(epsilon) * alpha, np.exp(-epsilon) * (1 - delta - alpha))
            if is_low:
                low = max(low, beta)
            else:
                high = max(high, beta)
    return low, high


def bracket(row, fineness=0.02, limit=2**18):
    """Returns the lattice's bracket of the row's value, or None where it has none."""
    steps, query = directions(row), row["query"]
    if steps is None:
        return None
    match query["type"]:
        case "epsilon":
            return lattice.epsilon_bracket(steps, query["delta"], fineness=fineness, limit=limit)
        case "delta" | "advantage":
            epsilon = query.get("epsilon", 0.0)
            return lattice.delta_bracket(steps, epsilon, fineness=fineness, limit=limit)
        case "beta":
            return beta_bracket(steps, query["alpha"], fineness)
    return None


def main():
    fineness = float(sys.argv[1]) if len(sys.argv) > 1 else 0.02
    failed = 0
    for row in ROWS:
        made = bracket(row, fineness)
        if made is None:
            continue
        # beta is a supremum over epsilon, here over a grid of them: a lower bound only.
        overlaps = made[0] <= row["high"] * (1 + 1e-9) + 1e-300
        if row["query"]["type"] != "beta":
            overlaps = overlaps and made[1] >= row["low"] * (1 - 1e-9)
        failed += not overlaps
        print(
            f"{row['id']:34} {'ok' if overlaps else 'APART':5} made {made[0]:.9g} .. {made[1]:.9g}"
            f"  stored {row['low']:.9g} .. {row['high']:.9g}",
            flush=True,
        )
    if failed:
        raise SystemExit(f"{failed} brackets do not overlap")


if __name__ == "__main__":
    main()
