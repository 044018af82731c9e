"""The soundness sweep at full length, by hand: python tests/accounting/sweep.py [--settings 2000 | --peers].

Each random setting of test_sweep.py: our bracket against the lattice's, and against our own brackets at every level (a
tolerance that none meets asks them all: other atoms, frequencies, windows). With --peers instead: every answer of
another library that tests/reference/peers.py has stored.
"""

import argparse
import json
import time

import numpy as np
from test_sweep import FLOOR, PEERS, SLACK, complaint, peer_complaints, setting

import opake_jax.accounting as acc


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=2000)
    parser.add_argument("--first", type=int, default=10_000, help="the first seed")
    parser.add_argument("--peers", action="store_true", help="compare with the stored answers")
    args = parser.parse_args()
    if args.peers:
        rows = json.loads(PEERS.read_text())["rows"]
        wrong = peer_complaints(rows)
        print(f"{len(rows)} settings of dp_accounting, wrong: {len(wrong)}", *wrong, sep="\n  ")
        raise SystemExit(bool(wrong))
    wrong, wide, spent, levels = [], [], [], 0
    for seed in range(args.first, args.first + args.settings):
        case = setting(seed)
        started = time.process_time()
        case.process.epsilon_bounds(case.delta)
        spent.append(time.process_time() - started)
        found, (width, upper) = complaint(case, 0.05, 2**14)
        if found:
            wrong.append(found)
        if not width <= max(SLACK * upper, FLOOR):
            wide.append(f"{case.words} delta {case.delta}: {width / upper:.1e}")
        if seed % 5 == 0:
            levels += 1
            low, high = acc.PLD(rtol=1e-12).epsilon_bounds(case.process.parts, case.delta)
            if not low <= high:
                wrong.append(f"levels of {case.words} delta {case.delta}: {low} > {high}")
    print(f"{args.settings} settings, {levels} at every level")
    print(f"ms each: median {1e3 * np.median(spent):.1f}, largest {1e3 * max(spent):.0f}")
    print(f"wider than {SLACK:g}: {len(wide)}", *wide, sep="\n  ")
    print(f"wrong: {len(wrong)}", *wrong, sep="\n  ")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
