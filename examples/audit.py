"""Attacks the mechanism as it ships, and broken versions of it: does the accountant's epsilon hold?

python examples/audit.py            # some minutes on two cores
python examples/audit.py --smoke    # two rows of few runs, for CI

Each row plays thousands of whole runs (sampler, clipping, noise), half of them with a canary, in one
jitted program. A sound mechanism must keep its claim; a broken one must be caught.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from _audited import Audit, broken, sound

from opake_jax import auditing
from opake_jax.random import key

DELTA, CONFIDENCE = 1e-5, 0.999


def attack(audit: Audit, num_runs: int) -> auditing.OperatingPoints:
    return auditing.points_from_runs(
        audit.run,
        num_runs=num_runs,
        key=key(1),  # a seed: the runs protect nobody, and the table can be made again
        statistic=audit.statistic,
        confidence=CONFIDENCE,
    )


def judge(audit: Audit, num_runs: int) -> auditing.Verdict:
    return auditing.judge(attack(audit, num_runs), audit.claim, audit.sigma, delta=DELTA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="two rows of few runs")
    smoke = parser.parse_args().smoke
    num_runs, shown = (4_000, 1) if smoke else (200_000, None)
    print(f"epsilon at delta {DELTA}; each row with confidence {CONFIDENCE}, {num_runs} runs\n")
    print("| mechanism | claimed | audited | audited, but for the noise | the claim |")
    print("|---|---|---|---|---|")
    for title, audits in (("", sound()), ("BROKEN: ", broken())):
        for name, audit in list(audits.items())[:shown]:
            found = judge(audit, num_runs)
            sides = np.ceil(1e3 * found.claimed), *np.floor(1e3 * np.array(found[1:3]))
            numbers = " | ".join(f"{x / 1e3:.3f}" for x in sides)
            print(f"| {title}{name} | {numbers} | {fate(found.contradicted)} |", flush=True)
    draws = jax.random.normal(key(1), (100_000,), jnp.bfloat16).astype(jnp.float32)
    p_value = auditing.normal_p_value(draws)
    print(
        f"| BROKEN: noise in bfloat16 | | | p = {p_value:.0e} | {fate(p_value < 1 - CONFIDENCE)} |"
    )


def fate(contradicted: bool) -> str:
    return "falls" if contradicted else "stands"


if __name__ == "__main__":
    main()
