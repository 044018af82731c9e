"""What dp_accounting says of random Poisson settings: python tests/reference/peers.py [--settings 2000].

Needs the extra `bench`; writes peers.json beside this file, a row for each setting: noise multiplier, sample rate, steps,
delta, the optimistic and the pessimistic epsilon of its PLD (its own lower and upper bound), and the epsilon of its RDP.
Its grid is as fine as serves the size of epsilon (a coarser one is looser, not less sound). Its PLD bounds up to the
rounding of one step's masses, 2^-53 of delta a step: in 16 of 2,000 settings our lower end lies above its pessimistic
one, by at most 8e-17 steps in delta (and in 8 of these the certified lower end of tests/accounting/lattice.py does as
well). Below a delta of 1e-11 only its RDP is asked.
"""

import argparse
import importlib.metadata
import json
import math
import pathlib
import time
import warnings

import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant

SOUND = 1e-11
POINTS = 20_000  # of its grid, up to epsilon


def draw(rng, low, high):
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


def ask(sigma, rate, steps, delta):
    """Returns (optimistic, pessimistic, by RDP); NaN where it is not asked, or gives up."""
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))
    try:
        renyi = RdpAccountant().compose(event, steps).get_epsilon(delta)
    except (ValueError, OverflowError):
        renyi = math.nan
    ends = [math.nan, math.nan]
    if delta > SOUND and renyi < 1e3:
        for i, pessimistic in enumerate((False, True)):
            one = pld.from_gaussian_mechanism(
                sigma,
                sampling_prob=rate,
                pessimistic_estimate=pessimistic,
                use_connect_dots=pessimistic,
                value_discretization_interval=min(max(renyi / POINTS, 1e-6), 1e-2),
            )
            ends[i] = one.self_compose(steps).get_epsilon_for_delta(delta)
    return [float(x) for x in (*ends, renyi)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=2000, help="that its PLD answers")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    rows, answered, spent = [], 0, []
    while answered < args.settings:
        sigma, rate = draw(rng, 0.35, 30), draw(rng, 1e-4, 0.5)
        steps, delta = int(draw(rng, 1, 1e5)), draw(rng, 1e-12, 1e-3)
        started = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = ask(sigma, rate, steps, delta)
        spent.append(time.process_time() - started)
        answered += not math.isnan(found[1])
        rows.append([sigma, rate, steps, delta, *found])
        if len(rows) % 20 == 0:
            print(len(rows), answered, f"{np.mean(spent):.2f} s each", flush=True)
    columns = ["sigma", "rate", "steps", "delta", "optimistic", "pessimistic", "renyi"]
    version = importlib.metadata.version("dp-accounting")
    table = {"source": f"dp_accounting {version}, peers.py", "columns": columns}
    lines = ",\n".join(json.dumps([None if x != x else x for x in row]) for row in rows)
    text = json.dumps(table)[:-1] + f', "rows": [\n{lines}\n]}}\n'
    pathlib.Path(__file__).with_name("peers.json").write_text(text)


if __name__ == "__main__":
    main()
