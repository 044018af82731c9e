"""Attacks the mechanism as it ships, and broken versions of it: does the accountant's epsilon hold?

    python examples/audit.py            # a minute or two on two cores
    python examples/audit.py --smoke    # few runs and rows, to see that it works

Each row plays thousands of whole runs (sampler, clipping, noise), half of them with a canary, in one jitted
program. A sound mechanism must keep its claim; a broken one must be caught.
"""

import argparse
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import opake_jax.accounting as acc
from opake_jax import auditing
from opake_jax.clipping import clipped_grad
from opake_jax.noise import gaussian_noise
from opake_jax.random import key
from opake_jax.sampling import PoissonSampler
from opake_jax.types import ClippedSum

DELTA, CONFIDENCE = 1e-5, 0.999
PARAMS = {"canary": jnp.zeros(1), "w": jnp.zeros(3)}  # no ordinary gradient reaches the first
CANARY = auditing.DiracCanaries([0])


class Audit(NamedTuple):
    run: Callable  # the mechanism: (key, is the canary in?) -> what was seen
    claim: Callable[[float], acc.Process]  # noise multiplier -> the whole run
    sigma: float
    statistic: Callable = auditing.total


def loss_fn(params, example):
    return 0.5 * (jnp.vdot(params["w"], example) - 1.0) ** 2


def rows(count: int) -> Any:
    """Returns the canary's row, then `count` ordinary ones."""
    x = np.random.default_rng(0).normal(size=(count, 3))
    return CANARY.data(jnp.asarray(x, jnp.float32))


def mechanism(sampler: Any, sigma: float, num_steps: int, **changed: Any) -> Callable:
    """Returns the run of the mechanism as it ships, or with parts of it changed."""
    parts = {
        "sample": sampler.sample,
        "grad_fn": clipped_grad(CANARY.loss(loss_fn), 1.0),
        "noise": lambda k: gaussian_noise(sigma, key=k),
        "data": rows(sampler.dataset_size - 1),
    }
    return auditing.run_of(
        **{**parts, **changed}, params=PARAMS, num_steps=num_steps, read=CANARY.read
    )


def poisson(rate: float, sigma: float, num_steps: int, **changed: Any) -> Audit:
    """Returns the audit of Poisson sampling; rate 1 is the full-batch Gaussian."""
    sampler = PoissonSampler(9, rate)
    return Audit(
        mechanism(sampler, sigma, num_steps, **changed),
        lambda s: sampler.process(acc.gaussian(s)) * num_steps,
        sigma,
        auditing.likelihood_ratio(sigma, rate),
    )


def capped(claim: Callable | None = None) -> Audit:
    """Returns the audit of a batch that is mostly full: the canary displaces one that pulls against it."""
    sampler, shorter = (PoissonSampler(n, 0.95, capacity=15) for n in (17, 16))
    examples, marks = rows(16)
    data = examples, jnp.where(marks == 0, -1, marks)
    present = mechanism(sampler, 1.0, 1, data=data)
    absent = mechanism(shorter, 1.0, 1, data=jax.tree.map(lambda x: x[1:], data))
    claim = claim or (lambda s: sampler.process(acc.gaussian(s)))
    return Audit(auditing.paired(present, absent), claim, 1.0)


def sound() -> dict[str, Audit]:
    return {
        "full batch": poisson(1.0, 1.0, 1),
        "full batch, 4 steps, little noise": poisson(1.0, 0.5, 4),
        "full batch, much noise": poisson(1.0, 3.0, 1),
        "Poisson, rate 1/2, 2 steps": poisson(0.5, 1.0, 2),
        "Poisson, rate 1/2, little noise": poisson(0.5, 0.4, 2),
        "Poisson, rate 0.95, capped": capped(),
    }


def broken() -> dict[str, Audit]:
    """Returns mechanisms with one fault each, under the claim of the sound one."""
    sampler = PoissonSampler(9, 0.5)
    honest, unclipped = (clipped_grad(CANARY.loss(loss_fn), c) for c in (1.0, 1e6))

    def passed_off(grad_fn, scale):  # the sum changed, and still called one of sensitivity 1
        def changed(params, batch, *, mask):
            total, aux = grad_fn(params, batch, mask=mask)
            return ClippedSum(jax.tree.map(lambda x: x * scale(mask), total.tree), 1.0, 1.0), aux

        return changed

    def all_rows(k, step):
        indices, mask = sampler.sample(k, step)
        return indices, jnp.ones_like(mask)

    def stuck(k):  # the state that `update` returns is thrown away
        tx = gaussian_noise(1.0, key=k)
        return optax.GradientTransformation(tx.init, lambda c, s, p: (tx.update(c, s, p)[0], s))

    case = functools.partial(poisson, 0.5, 1.0, 2)
    mean = passed_off(honest, lambda mask: 2.25 / jnp.maximum(mask.sum(), 1))
    return {
        "noise halved": case(noise=lambda k: gaussian_noise(0.5, key=k)),
        "clip skipped": case(grad_fn=passed_off(unclipped, lambda mask: 1.0)),
        "padded rows counted": case(sample=all_rows),
        "mean over the drawn batch": poisson(0.25, 0.5, 1, grad_fn=mean),
        "one key for every step": case(noise=stuck)._replace(statistic=auditing.spread),
        "cap accounted as none": capped(lambda s: acc.poisson(acc.gaussian(s), 0.95)),
    }


def judge(audit: Audit, num_runs: int) -> auditing.Verdict:
    options = {"num_runs": num_runs, "statistic": audit.statistic, "confidence": CONFIDENCE}
    points = auditing.points_from_runs(audit.run, key=key(1), **options)
    return auditing.judge(points, audit.claim, audit.sigma, delta=DELTA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="two rows of few runs")
    smoke = parser.parse_args().smoke
    print(
        f"delta {DELTA}, confidence {CONFIDENCE}; epsilon: claimed, audited, audited in the family"
    )
    for kind, audits in (("sound", sound()), ("broken", broken())):
        for name, audit in list(audits.items())[: 1 if smoke else None]:
            found = judge(audit, 4_000 if smoke else 200_000)
            numbers = "".join(f"{x:9.3f}" for x in found[:3])
            print(f"{kind:8}{name:36}{numbers}  {'caught' if found.contradicted else 'stands'}")
    draws = jax.random.normal(key(0), (100_000,), jnp.bfloat16).astype(jnp.float32)
    print(f"broken  noise in bfloat16: p = {auditing.normal_p_value(draws):.0e}, caught")


if __name__ == "__main__":
    main()
