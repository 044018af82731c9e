"""The algebra of processes, and what they are to jax."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opake_jax.accounting as acc
from opake_jax.accounting import NeighboringRelation, _mu_gdp, gaussian, poisson

ADD, ZERO, REPLACE = NeighboringRelation


def test_equal_mechanisms_merge_and_counts_multiply():
    step = poisson(gaussian(1.0), 0.01)
    total = (step * 100 | poisson(gaussian(1.0), 0.01) * 900) * 2
    assert total.parts == ((step, 2000.0),)
    assert (3 * step).parts == (step * 3).parts == acc.repeat(step, 3).parts
    assert (step | gaussian(2.0)).parts == ((step, 1.0), (gaussian(2.0), 1.0))


def test_the_identity_is_neutral_under_every_relation():
    for relation in NeighboringRelation:
        step = gaussian(2.0, relation=relation)
        for process in (acc.identity() | step, step | acc.identity(), step | gaussian(1.0) * 0):
            assert process.relation is relation
            assert process.parts == step.parts
    nothing = acc.identity()
    assert nothing.relation is None
    assert (nothing * 7).parts == ()
    assert [nothing.epsilon_at(1e-5), nothing.epsilon_at(0.0), nothing.delta_at(0.0)] == [0, 0, 0]
    assert nothing.beta_at(0.25) == 0.75
    assert nothing.risk_at(0.3) == pytest.approx(0.3, rel=1e-7)


def test_relations_must_agree():
    with pytest.raises(ValueError, match=r"ADD_REMOVE.*ZERO_OUT"):
        gaussian(1.0) | gaussian(1.0, relation=ZERO)
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        acc.compose(gaussian(1.0), acc.identity(), gaussian(1.0, relation=REPLACE))
    with pytest.raises(TypeError):
        gaussian(1.0) | 3
    # An amplifier may declare the relation anew; fixed_size always does.
    assert poisson(gaussian(1.0), 0.1, relation=ZERO).relation is ZERO
    assert acc.fixed_size(gaussian(1.0), batch_size=1, dataset_size=9).relation is REPLACE
    assert (acc.nonprivate() | gaussian(1.0)).epsilon_at(0.1) == math.inf


def test_numbers_stay_as_they_were_given():
    step = poisson(gaussian(0.1), 0.3) * 5
    assert jax.tree.leaves(step) == [0.1, 0.3, 5.0]
    assert all(type(leaf) is float for leaf in jax.tree.leaves(step))
    leaves, tree = jax.tree.flatten(step)
    assert jax.tree.unflatten(tree, leaves) == step


def test_jit_grad_and_vmap_take_processes():
    """Also the derivative against mpmath's figure: d epsilon/d sigma at sigma 1, delta 1e-5 (see below)."""
    ask = jax.jit(lambda process, delta: process.epsilon_at(delta))
    for sigma in (1.0, 2.0):  # one trace, many values
        exact = (gaussian(sigma) * 3).epsilon_at(1e-5)
        value = ask(gaussian(sigma) * 3, 1e-5)
        assert value.dtype == jnp.float32
        assert exact * (1 - 1e-7) <= float(value) <= exact * (1 + 1e-6)
    assert ask._cache_size() == 1
    # mpmath: (e(1 + 1e-10) - e(1 - 1e-10))/2e-10 of the root of the profile, 40 digits.
    slope = jax.jit(jax.grad(lambda s: gaussian(s).epsilon_at(1e-5)))(1.0)
    assert float(slope) == pytest.approx(-5.0677812, rel=1e-5)
    sigmas = jnp.array([0.5, 1.0, 4.0])
    values = jax.vmap(lambda s: gaussian(s).delta_at(1.0))(sigmas)
    loop = [gaussian(float(s)).delta_at(1.0) for s in sigmas]
    assert np.asarray(values) == pytest.approx(loop, rel=1e-5)


def test_bad_traced_numbers_never_look_private():
    def answers(sigma, count):
        process = gaussian(sigma) * count
        return process.epsilon_at(1e-5), process.delta_at(1.0), process.beta_at(0.1)

    ask = jax.jit(answers)
    for sigma, count in [(-1.0, 1.0), (math.nan, 1.0), (1.0, -2.0), (1.0, 2.5), (1.0, math.nan)]:
        epsilon, delta, beta = (float(v) for v in ask(sigma, count))
        assert math.isnan(epsilon) or epsilon == math.inf
        assert math.isnan(delta) or delta == 1.0
        assert math.isnan(beta) or beta == 0.0
    assert [float(v) for v in ask(0.0, 1.0)] == [math.inf, 1.0, 0.0]
    assert [float(v) for v in ask(0.0, 0.0)][:2] == [0.0, 0.0]


def test_arrays_of_deltas_and_epsilons():
    step = gaussian(1.0) * 2
    deltas = np.array([[1e-3, 1e-5], [1e-7, 0.0]])
    values = step.epsilon_at(deltas)
    assert values.shape == (2, 2)
    assert values[1, 1] == math.inf
    assert values[0, 1] == step.epsilon_at(1e-5)
    assert step.delta_at([0.0, 1.0]).tolist() == [step.advantage(), step.delta_at(1.0)]
    traced = jax.jit(lambda d: step.epsilon_at(d))(jnp.array([1e-3, 1e-5]))
    assert np.asarray(traced) == pytest.approx([values[0, 0], values[0, 1]], rel=1e-5)


def test_answers_stay_bounds_after_a_cast_to_float32():
    rng = np.random.default_rng(0)
    for sigma in np.exp(rng.uniform(-2, 3, 60)):
        process = gaussian(float(sigma))
        low, high, _ = process.epsilon_bounds(1e-5)
        # The closed form before it is rounded: both ends within 1e-12 of the truth (test_mu_gdp.py).
        inner = _mu_gdp.epsilon(1 / np.float64(sigma), np.float64(math.log(1e-5)))
        assert np.float64(np.float32(high)) >= inner[1]
        assert np.float64(np.float32(low)) <= inner[0]


def test_groups():
    # k units move the sum by k: one Gaussian of a k-th of the noise.
    assert gaussian(3.0).epsilon_at(1e-5, group_size=3) == gaussian(1.0).epsilon_at(1e-5)
    assert acc.laplace(1.0).epsilon_at(0.0, group_size=4) == 4.0
    rr = acc.eps_delta(0.5, 1e-6)
    assert rr.epsilon_at(1e-3, group_size=2) <= 1.0 * (1 + 1e-6)
    step = poisson(gaussian(1.0), 0.01)
    ((both, _),) = step._parts_of(2)
    assert both == acc.parallel_poisson(gaussian(1.0), 0.01, 2)
    with pytest.raises(NotImplementedError, match="group"):
        acc.k_out_of_t(gaussian(1.0), k=1, t=3).epsilon_at(1e-5, group_size=2)
    with pytest.raises(ValueError, match="group_size"):
        step.epsilon_at(1e-5, group_size=0)


@jax.jit
def answers_about_gaussians(s):
    one, many = ((gaussian(s) * k).epsilon_at(1e-5) for k in (1, 9))
    return one, many, gaussian(s).delta_at(1.0), gaussian(s).beta_at(0.1)


@pytest.mark.parametrize("sigma", [-1.0, math.nan])
def test_a_traced_gaussian_of_no_noise_multiplier_has_no_privacy(sigma):
    assert answers_about_gaussians(sigma) == (math.inf, math.inf, 1.0, 0.0)
