"""Plans under odd arguments: refused by name before any work, or consistent in all their parts."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from fuzz_tools import ODD, answer, arguments, fuzz
from hypothesis import given
from hypothesis import strategies as st

import opake_jax.accounting as acc
from opake_jax import dpsgd, sampling
from opake_jax.random import key

# A capacity is always given: to choose one costs the accountant several answers.
USUAL = {
    "dataset_size": (100, 1000, 2**31), "expected_batch_size": (10, 33.5, 1e-9, 100), "num_steps": (1, 20, 10**6),
    "clipping_norm": (1.0, 1e-6), "budget": (None,), "noise_multiplier": (1.0, 0.0, [1.0], (2.0,) * 20, np.ones(20), jnp.ones(20)),
    "delta": (1e-5, 1e-300), "sampler": (None,), "capacity": (100, 64), "unit": ("one client", ""),
    "adaptive": (None, dpsgd.AdaptiveClipping(), dpsgd.AdaptiveClipping(count_noise_std=30.0)),
}  # fmt: skip


def make(chosen):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a capacity below the expected batch
        return dpsgd.plan(**chosen)


@fuzz(250)
@given(data=st.data())
def test_a_plan_is_refused_by_name_or_consistent(data):
    examine(data)


def examine(data):
    odd = data.draw(st.sets(st.sampled_from(sorted(USUAL)), max_size=2))
    usual = {n: v for n, v in USUAL.items() if n not in odd}
    chosen = data.draw(st.fixed_dictionaries({n: st.sampled_from(v) for n, v in usual.items()}))
    chosen |= data.draw(arguments({n: USUAL[n] for n in odd}))
    plan, error = answer(lambda: make(chosen))
    if error is not None:
        assert any(n.split("_")[0] in str(error) for n in (*chosen, "count_noise_std", "sample")), (
            error
        )
        return
    assert len(plan.noise_multipliers) == plan.num_steps
    assert all(0 <= m < np.inf for m in plan.noise_multipliers)
    assert 0 < plan.delta < 1
    assert plan.clipping_norm > 0
    assert 0 < plan.expected_batch_size <= plan.sampler.dataset_size
    grad_fn = plan.clipped_grad if plan.adaptive is None else plan.adaptive_clipped_grad
    if len(set(plan.noise_multipliers)) == 1:
        assert answer(lambda: grad_fn(lambda w, x: w * x))[1] is None


@fuzz(150)
@given(
    chosen=arguments(
        {"quantile": (0.5, 0.9), "learning_rate": (0.2,), "count_noise_std": (None, 5.0), "bounds": ((1e-6, 1e6), (0.1, 0.1))}
    )
)  # fmt: skip
def test_adaptive_clipping_is_refused_or_usable(chosen):
    adaptive, error = answer(lambda: dpsgd.AdaptiveClipping(**chosen))
    if error is None:
        low, high = adaptive.bounds
        assert 0 < low <= high < np.inf
        assert 0 < adaptive.quantile < 1


@pytest.fixture(scope="module")
def plan():
    return make({n: USUAL[n][0] for n in USUAL} | {"num_steps": 20, "expected_batch_size": 10})


@fuzz(100)
@given(value=ODD, root=st.one_of(st.just(key(0)), st.just(key(0)), ODD))
def test_questions_to_a_plan(plan, value, root):
    for ask in (plan.epsilon_after, lambda v: plan.report(stopped_at=v)):
        answer(lambda ask=ask: ask(value))
    batches, _ = answer(lambda: plan.batches(root, start=value))
    if batches is not None:
        assert len(list(batches)) == 20 - int(value)
    answer(lambda: plan.gaussian_noise(root))
    for options in ({"clipping_norm": value}, {"denominator": value}):
        assert answer(lambda o=options: plan.clipped_grad(lambda w, x: w, **o))[1] is not None


NO_SAMPLERS = (object(), "poisson", 3, len, sampling.PoissonSampler, acc.gaussian(1.0))


@pytest.mark.parametrize("other", NO_SAMPLERS, ids=lambda other: type(other).__name__)
def test_only_a_sampler_chooses_the_batches(other):
    usual = {n: USUAL[n][0] for n in USUAL} | {"capacity": None, "sampler": other}
    _, error = answer(lambda: make(usual))
    assert "sampler" in str(error)


ZERO_OUT = acc.gaussian(1.0, relation=acc.NeighboringRelation.ZERO_OUT)
# What 20 steps of 50 in 1,000 cost under each, written out: the analysis of the sampler's own law, and of no other.
SAMPLERS = [
    (sampling.PoissonSampler(1000, 0.05), lambda: acc.poisson(ZERO_OUT, 0.05) * 20),
    (
        sampling.ParallelPoissonSampler(1000, 0.01, 5),
        lambda: acc.parallel_poisson(ZERO_OUT, 0.01, 5) * 20,
    ),
    (
        sampling.FixedSizeSampler(1000, 50),
        lambda: acc.fixed_size(ZERO_OUT, batch_size=50, dataset_size=1000) * 20,
    ),
    (sampling.KOutOfTSampler(1000, 1, 20), lambda: acc.k_out_of_t(ZERO_OUT, k=1, t=20)),
    (sampling.ShuffleSampler(1000, 50), lambda: ZERO_OUT * 1),
    (sampling.UserSampler(np.arange(1000), 0.05), lambda: acc.poisson(ZERO_OUT, 0.05) * 20),
]


@pytest.mark.parametrize(("sampler", "law"), SAMPLERS, ids=lambda s: type(s).__name__)
def test_every_sampler_is_priced_as_what_it_is(sampler, law):
    made = dpsgd.plan(
        dataset_size=1000, expected_batch_size=50, num_steps=20, clipping_norm=1.0, noise_multiplier=1.0, delta=1e-5,
        sampler=sampler,
    )  # fmt: skip
    # The default caps overflow with probability 2^-64.
    assert made.report().epsilon == pytest.approx(law().epsilon_at(1e-5), rel=1e-4)
    poisson = (acc.poisson(ZERO_OUT, 0.05) * 20).epsilon_at(1e-5)
    kin = isinstance(sampler, (sampling.PoissonSampler, sampling.UserSampler))
    assert kin == (made.report().epsilon == pytest.approx(poisson, rel=1e-3))
