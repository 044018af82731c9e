"""The mechanisms that audit.py attacks: ours, and six that look like it and are broken."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import opake_jax.accounting as acc
from opake_jax import auditing, sampling
from opake_jax.accounting import NeighboringRelation
from opake_jax.clipping import clipped_grad
from opake_jax.noise import gaussian_noise
from opake_jax.types import ClippedSum

PARAMS = {"canary": jnp.zeros(1), "w": jnp.zeros(3)}  # no ordinary gradient reaches the first
CANARY = auditing.DiracCanaries([0])


class Audit(NamedTuple):
    run: Callable  # the mechanism: (key, is the canary in?) -> what was seen
    claim: Callable[[float], acc.Process]  # noise multiplier -> the whole run
    sigma: float
    statistic: Callable


def loss_fn(params, example):
    return 0.5 * (jnp.vdot(params["w"], example) - 1.0) ** 2


def rows(size: int, ordinary: int = 0, canary: int = 1) -> Any:
    """Returns examples with their marks, the canary first; mark -1 is a canary's opposite."""
    x = np.random.default_rng(0).normal(size=(size, 3))
    return jnp.asarray(x, jnp.float32), jnp.full(size, ordinary).at[0].set(canary)


def audit(sampler, sigma, num_steps, statistic, *, relation=None, claim=None, **changed) -> Audit:
    """Returns the audit of a mechanism as it ships, or with parts of it changed."""
    relation = relation or NeighboringRelation.ADD_REMOVE
    parts = {
        "sample": sampler.sample,
        "grad_fn": clipped_grad(CANARY.loss(loss_fn), 1.0),
        "noise": lambda k: gaussian_noise(sigma, key=k),
        "data": rows(sampler.dataset_size),
    }
    run = auditing.run_of(
        **{**parts, **changed}, params=PARAMS, num_steps=num_steps, read=CANARY.read
    )
    process = claim or (lambda s: sampler.process(acc.gaussian(s, relation=relation)))
    periods = num_steps // sampler.period
    return Audit(run, lambda s: process(s) * periods, sigma, statistic)


def poisson(rate: float, sigma: float, num_steps: int, **changed: Any) -> Audit:
    ratio = auditing.likelihood_ratio(sigma, rate)
    return audit(sampling.PoissonSampler(9, rate), sigma, num_steps, ratio, **changed)


def capped(claim: Callable | None = None) -> Audit:
    """Returns the audit of a batch that is mostly full: the canary displaces one that pulls against it."""
    present, absent = (
        audit(
            sampling.PoissonSampler(n, 0.95, capacity=15),
            1.0,
            1,
            auditing.total,
            data=rows(n, -1, canary),
            claim=claim,
        )
        for n, canary in ((17, 1), (16, -1))
    )
    return present._replace(run=auditing.paired(present.run, absent.run))


def sound() -> dict[str, Audit]:
    twice, half = (
        auditing.likelihood_ratio(1.0, [0.49, 0.42, 0.09]),
        auditing.likelihood_ratio(1.0, 0.5),
    )

    def one_of(seen):  # the canary is in one step, unknown which: the likelihood ratio at sigma 1
        return jax.nn.logsumexp(seen, axis=0)

    return {
        "full batch": poisson(1.0, 1.0, 1),
        "full batch, 4 steps, little noise": poisson(1.0, 0.5, 4),
        "full batch, much noise": poisson(1.0, 3.0, 1),
        "Poisson 1/2, 2 steps": poisson(0.5, 1.0, 2),
        "Poisson 1/4, little noise": poisson(0.25, 0.5, 1),
        "Poisson 0.95, capped": capped(),
        "parallel Poisson 0.3, 2 workers": audit(
            sampling.ParallelPoissonSampler(8, 0.3, 2), 1.0, 2, twice
        ),
        "fixed size 4 of 8, replace-one": audit(
            sampling.FixedSizeSampler(8, 4),
            1.0,
            1,
            lambda seen: half(seen) - half(-seen),
            relation=NeighboringRelation.REPLACE_ONE,
            absent=rows(8, canary=-1),
        ),
        "balls in 4 bins": audit(sampling.KOutOfTSampler(8, 1, 4), 1.0, 4, one_of),
        "shuffled, 4 batches, zero-out": audit(
            sampling.ShuffleSampler(8, 2), 1.0, 4, one_of, relation=NeighboringRelation.ZERO_OUT
        ),
    }


def broken() -> dict[str, Audit]:
    """Returns mechanisms with one fault each, under the claim of the sound one."""
    sampler = sampling.PoissonSampler(9, 0.5)
    honest, unclipped = (clipped_grad(CANARY.loss(loss_fn), c) for c in (1.0, 1e6))

    def passed_off(grad_fn, scale):  # the sum changed, and still called one of sensitivity 1
        def changed(params, batch, *, mask):
            tree = jax.tree.map(
                lambda x: x * scale(mask), grad_fn(params, batch, mask=mask)[0].tree
            )
            return ClippedSum(tree, 1.0, 1.0), None

        return changed

    def all_rows(k, step):
        indices, mask = sampler.sample(k, step)
        return indices, jnp.ones_like(mask)

    def stuck(k):  # the state that `update` returns is thrown away
        tx = gaussian_noise(1.0, key=k)
        return optax.GradientTransformation(tx.init, lambda c, s, p: (tx.update(c, s, p)[0], s))

    mean = passed_off(honest, lambda mask: 2.25 / jnp.maximum(mask.sum(), 1))
    loose = passed_off(unclipped, lambda mask: 1.0)
    again = poisson(0.5, 1.0, 2, noise=stuck)._replace(statistic=auditing.spread)
    return {
        "noise halved": poisson(0.5, 1.0, 2, noise=lambda k: gaussian_noise(0.5, key=k)),
        "clip skipped": poisson(0.5, 1.0, 2, grad_fn=loose),
        "padded rows counted": poisson(0.5, 1.0, 2, sample=all_rows),
        "mean over the drawn batch": poisson(0.25, 0.5, 1, grad_fn=mean),
        "cap accounted as none": capped(lambda s: acc.poisson(acc.gaussian(s), 0.95)),
        "one key for every step": again,
    }
