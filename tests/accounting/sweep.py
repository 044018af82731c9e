"""The soundness sweep at full length, by hand: python tests/accounting/sweep.py [--settings 2000] [--peers 100].

Each random setting of test_sweep.py: our bracket against the lattice's, against our own brackets at every level (a
tolerance that none meets asks them all: other atoms, frequencies, windows), and, for the first so many Poisson settings,
against dp_accounting's pessimistic and optimistic PLD and its RDP (extra `bench`).
"""

import argparse
import time
import warnings

import numpy as np
from test_sweep import FLOOR, SLACK, complaint, setting

import opake_jax.accounting as acc

SOUND = 1e-11  # delta down to which dp_accounting's PLD bounds


def peer_complaint(case):
    """Returns what dp_accounting contradicts, or None. Its pessimistic PLD and RDP are upper bounds."""
    from dp_accounting import dp_event
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.rdp import RdpAccountant

    ((mechanism, count),) = case.process.parts
    sigma, q = float(mechanism.inner.noise_multiplier), float(mechanism.sample_rate)
    lower, upper, _ = case.process.epsilon_bounds(case.delta)
    found = {}
    for pessimistic in (True, False):
        made = pld.from_gaussian_mechanism(
            sigma,
            sampling_prob=q,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            value_discretization_interval=1e-3,
        )
        found[pessimistic] = made.self_compose(int(count)).get_epsilon_for_delta(case.delta)
    event = dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(sigma))
    renyi = RdpAccountant().compose(event, int(count)).get_epsilon(case.delta)
    wrong = []
    # Below, its transforms' rounding is as large as delta: direct sums at three such settings were on our side.
    if case.delta > SOUND and lower > found[True] * (1 + 1e-6) + FLOOR:
        wrong.append(f"lower {lower} above their pessimistic {found[True]}")
    if case.delta > SOUND and upper < found[False] * (1 - 1e-6) - FLOOR:
        wrong.append(f"upper {upper} below their optimistic {found[False]}")
    if lower > renyi * (1 + 1e-6) + FLOOR:
        wrong.append(f"lower {lower} above their RDP {renyi}")
    return f"{case.words} delta {case.delta}: " + "; ".join(wrong) if wrong else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=2000)
    parser.add_argument("--first", type=int, default=10_000, help="the first seed")
    parser.add_argument(
        "--peers", type=int, default=0, help="settings that dp_accounting is asked, too"
    )
    args = parser.parse_args()
    wrong, wide, asked, spent, levels = [], [], 0, [], 0
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
        if asked < args.peers and case.words.startswith("poisson"):
            asked += 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    peers = peer_complaint(case)
                except Exception as error:  # they give up; we may not
                    print(f"dp_accounting: {type(error).__name__} at {case.words}")
                    peers = None
            if peers:
                wrong.append(peers)
    print(f"{args.settings} settings, {levels} at every level, {asked} against dp_accounting")
    print(f"ms each: median {1e3 * np.median(spent):.1f}, largest {1e3 * max(spent):.0f}")
    print(f"wider than {SLACK:g}: {len(wide)}", *wide, sep="\n  ")
    print(f"wrong: {len(wrong)}", *wrong, sep="\n  ")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
