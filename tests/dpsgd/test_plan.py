"""A plan ties sampler, clipping, noise and accounting together, so that they cannot disagree."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import opake_jax.accounting as acc
from opake_jax import dpsgd, sampling
from opake_jax.random import key
from opake_jax.types import NeighboringRelation

SMALL = {"dataset_size": 1000, "expected_batch_size": 50, "num_steps": 20, "clipping_norm": 1.0}


ONE_ROW = jnp.ones(1, bool)


def loss_fn(params, example):
    return jnp.vdot(params["w"], example)


@pytest.fixture(scope="module")
def plan():
    return dpsgd.plan(**SMALL, noise_multiplier=1.0, delta=1e-5)


def test_the_calibrated_plan_stays_within_its_budget_and_uses_it_up():
    made = dpsgd.plan(**SMALL, budget=acc.epsilon_budget(2.0, delta=1e-5))
    epsilon = made.report().epsilon
    assert 1.999 <= epsilon <= 2.0
    assert made.delta == 1e-5


def test_the_report_prices_the_sampler_that_draws_the_batches(plan):
    """The cap that cuts batches is the cap in the accounting (R03)."""
    indices, mask = next(plan.batches(key(0)))
    assert indices.shape == mask.shape == (plan.sampler.capacity,)
    mechanism = acc.gaussian(1.0, relation=NeighboringRelation.ZERO_OUT)
    step = acc.poisson(
        mechanism, 0.05, truncated_batch_size=plan.sampler.capacity, dataset_size=1000
    )
    assert plan.report().epsilon == pytest.approx((step * 20).epsilon_at(1e-5), rel=1e-12)


def test_the_cap_costs_less_than_one_percent(plan):
    plain = acc.poisson(acc.gaussian(1.0), 0.05) * 20
    assert plain.epsilon_at(1e-5) * (1 - 1e-4) <= plan.report().epsilon
    assert plan.report().epsilon <= 1.01 * plain.epsilon_at(1e-5)


def test_a_cap_below_the_expected_batch_is_warned_about_and_priced():
    with pytest.warns(UserWarning, match="below the expected batch size"):
        cut = dpsgd.plan(**SMALL, noise_multiplier=1.0, delta=1e-5, capacity=40)
    plain = acc.poisson(acc.gaussian(1.0), 0.05) * 20
    assert cut.report().epsilon > 1.5 * plain.epsilon_at(1e-5)


def test_the_noise_of_a_real_step_has_the_std_of_the_report(plan):
    """std = noise_multiplier * clipping_norm / expected_batch_size, on 2e5 coordinates.

    False-alarm rate: the sample std of n normals is within 5 / sqrt(2 n) of the truth but for 6e-7.
    """
    size = 200_000
    params = {"w": jnp.zeros(size)}
    tx = plan.gaussian_noise(key(1))
    grad_fn = plan.clipped_grad(loss_fn)
    zeros = jnp.zeros((4, size))
    clipped, _ = grad_fn(params, zeros, mask=jnp.ones(4, bool))
    updates, _ = tx.update(clipped, tx.init(params), params)
    expected = 1.0 * 1.0 / 50
    assert float(jnp.std(updates["w"])) == pytest.approx(expected, rel=5 / np.sqrt(2 * size))
    assert abs(float(jnp.mean(updates["w"]))) < 5 * expected / np.sqrt(size)


def test_nothing_recompiles_over_200_poisson_steps():
    made = dpsgd.plan(**{**SMALL, "num_steps": 200}, noise_multiplier=1.0, delta=1e-5)
    data = jnp.ones((1000, 3))
    grad_fn = made.clipped_grad(loss_fn)
    tx = made.optimizer(optax.adam(0.1), key(0))
    params = {"w": jnp.zeros(3)}
    state = tx.init(params)
    traces = []

    @jax.jit
    def step(params, state, indices, mask):
        traces.append(1)
        clipped, _ = grad_fn(params, data[indices], mask=mask)
        updates, state = tx.update(clipped, state, params)
        return optax.apply_updates(params, updates), state

    sizes = set()
    for indices, mask in made.batches(key(1)):
        sizes.add(int(mask.sum()))
        params, state = step(params, state, indices, mask)
    assert len(traces) == 1
    assert len(sizes) > 10  # the draws do vary


def test_a_step_past_the_horizon_is_not_released(plan):
    params = {"w": jnp.zeros(2)}
    tx = plan.gaussian_noise(key(0))
    clipped, _ = plan.clipped_grad(loss_fn)(params, jnp.ones((1, 2)), mask=ONE_ROW)
    state = tx.init(params)
    last = state._replace(count=jnp.asarray(plan.num_steps - 1, state.count.dtype))
    past = state._replace(count=jnp.asarray(plan.num_steps, state.count.dtype))
    assert np.isfinite(tx.update(clipped, last, params)[0]["w"]).all()
    assert np.isnan(tx.update(clipped, past, params)[0]["w"]).all()


def test_a_schedule_is_composed_and_applied_step_by_step():
    schedule = [1.0] * 10 + [2.0] * 10
    made = dpsgd.plan(**SMALL, noise_multiplier=schedule, delta=1e-5, capacity=1000)
    half = [acc.poisson(acc.gaussian(s), 0.05) * 10 for s in (1.0, 2.0)]
    assert made.report().epsilon == pytest.approx((half[0] | half[1]).epsilon_at(1e-5), rel=1e-4)
    assert made.epsilon_after(10) == pytest.approx(half[0].epsilon_at(1e-5), rel=1e-4)
    assert made.epsilon_after(0) == 0.0
    size = 100_000
    params = {"w": jnp.zeros(size)}
    tx = made.gaussian_noise(key(0))
    clipped, _ = made.clipped_grad(loss_fn)(params, jnp.zeros((1, size)), mask=ONE_ROW)
    state = tx.init(params)
    for count, sigma in ((9, 1.0), (10, 2.0)):
        now = state._replace(count=jnp.asarray(count, state.count.dtype))
        update = tx.update(clipped, now, params)[0]["w"]
        assert float(jnp.std(update)) == pytest.approx(sigma / 50, rel=5 / np.sqrt(2 * size))
    with pytest.raises(ValueError, match="changes over the run"):
        _ = made.noise_multiplier


def test_the_report_says_what_an_auditor_asks_for(plan):
    fields = plan.report().to_dict()
    assert json.loads(json.dumps(fields)) == fields
    text = str(plan.report())
    for word in (
        "epsilon",
        "delta",
        "bracket",
        "unit",
        "relation",
        "sampler",
        "noise multiplier",
        "clipping norm",
        "steps",
        "accountant",
        "assumptions",
        "zero-out",
    ):
        assert word in text
    assert str(plan.sampler.capacity) in text


def test_printed_numbers_are_on_the_private_side(plan):
    report = plan.report()
    printed = float(str(report).split("epsilon <= ")[1].split()[0])
    assert report.epsilon <= printed <= report.epsilon * 1.001


def test_the_report_tells_seeded_runs_from_real_ones():
    made = dpsgd.plan(**SMALL, noise_multiplier=1.0, delta=1e-5)
    assert made.report().seeded == {"noise": None, "sampling": None}
    made.gaussian_noise(key())
    assert "no bare seed (noise)" in str(made.report())
    assert "operating system" not in str(made.report())  # that could have been a lie
    made.batches(key(3))
    assert made.report().seeded == {"noise": False, "sampling": True}
    assert "SEEDED (sampling)" in str(made.report())


def test_weak_guarantees_get_one_line_of_advice():
    weak = dpsgd.plan(**SMALL, noise_multiplier=0.3, delta=1e-5)
    assert weak.report().epsilon > 10
    assert "weak guarantee" in str(weak.report())


def test_a_run_stopped_at_a_fixed_step_may_say_so(plan):
    early = plan.report(stopped_at=5)
    assert early.steps == 5
    assert early.epsilon == plan.epsilon_after(5) < plan.report().epsilon
    assert plan.report(stopped_at=0).epsilon == 0.0


def test_several_draws_for_one_update_are_parallel_poisson():
    sampler = sampling.ParallelPoissonSampler(1000, 0.02, 3)
    made = dpsgd.plan(
        **{**SMALL, "expected_batch_size": 60}, noise_multiplier=1.0, delta=1e-5, sampler=sampler
    )
    step = acc.parallel_poisson(acc.gaussian(1.0), 0.02, 3)
    assert made.report().epsilon == pytest.approx((step * 20).epsilon_at(1e-5), rel=1e-4)
    indices, mask = next(made.batches(key(0)))
    clipped, _ = made.clipped_grad(loss_fn)(
        {"w": jnp.zeros(2)}, jnp.ones((1000, 2))[indices], mask=mask
    )
    assert float(clipped.denominator) == 60.0


def test_batches_resume_at_any_step(plan):
    whole = list(plan.batches(key(4)))
    rest = list(plan.batches(key(4), start=17))
    assert len(whole) == 20
    assert len(rest) == 3
    for (i, m), (j, n) in zip(whole[17:], rest, strict=True):
        np.testing.assert_array_equal(i, j)
        np.testing.assert_array_equal(m, n)


def test_a_sampler_of_another_dataset_is_refused():
    other = sampling.PoissonSampler(999, 0.05)
    with pytest.raises(ValueError, match="999"):
        dpsgd.plan(**SMALL, noise_multiplier=1.0, delta=1e-5, sampler=other)


def test_the_plans_own_numbers_cannot_be_overridden(plan):
    for name in ("clipping_norm", "denominator"):
        with pytest.raises(ValueError, match=name):
            plan.clipped_grad(loss_fn, **{name: 2.0})


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("dataset_size", 0), ("dataset_size", 2.5), ("dataset_size", True), ("dataset_size", "9"),
        ("expected_batch_size", 0), ("expected_batch_size", 1001), ("expected_batch_size", float("nan")),
        ("num_steps", 0), ("num_steps", 2.5), ("num_steps", -1),
        ("clipping_norm", 0.0), ("clipping_norm", -1.0), ("clipping_norm", float("inf")),
        ("clipping_norm", True), ("clipping_norm", "1"),
        ("noise_multiplier", -1.0), ("noise_multiplier", float("nan")), ("noise_multiplier", "1"),
        ("noise_multiplier", [1.0, 2.0]), ("noise_multiplier", True),
        ("delta", 0.0), ("delta", 1.0), ("delta", 2.0), ("delta", float("nan")), ("delta", "x"),
        ("budget", acc.epsilon_budget(1.0, delta=1e-5)), ("noise_multiplier", None), ("delta", None),
        ("capacity", 0), ("capacity", 1001), ("capacity", 2.5),
    ],
)  # fmt: skip
def test_bad_input_is_named(argument, value):
    arguments = {**SMALL, "noise_multiplier": 1.0, "delta": 1e-5, argument: value}
    expected = "exactly one" if value is None and argument == "noise_multiplier" else argument
    expected = "exactly one" if argument == "budget" else expected
    with pytest.raises((ValueError, TypeError), match=expected):
        dpsgd.plan(**arguments)


def test_a_budget_that_is_no_budget_is_refused():
    with pytest.raises(TypeError, match="budget"):
        dpsgd.plan(**SMALL, budget=3.0)


def test_another_horizon_is_another_plan(plan):
    with pytest.raises(ValueError, match="plan\\(\\)"):
        dataclasses.replace(plan, num_steps=plan.num_steps + 1)


@pytest.mark.parametrize("adaptive", [None, dpsgd.AdaptiveClipping()])
def test_a_forgotten_mask_is_refused(adaptive):
    """Padding repeats record 0, which would enter as often as rows were not drawn."""
    made = dpsgd.plan(**SMALL, noise_multiplier=1.0, delta=1e-5, adaptive=adaptive)
    make = made.clipped_grad if adaptive is None else made.adaptive_clipped_grad
    grad_fn = make(loss_fn)
    state = () if adaptive is None else (grad_fn.init(),)
    with pytest.raises(ValueError, match="mask="):
        grad_fn({"w": jnp.zeros(2)}, jnp.ones((5, 2)), *state)
