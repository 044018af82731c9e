"""Sample, gather, clip, noise, update as one program: one trace, whatever the batch holds."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from opake_jax import dpsgd
from opake_jax.random import key
from opake_jax.sampling import PoissonSampler

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(200, 3)), jnp.float32)
ROOT = key(1)


def setting(data=X, rate=0.1, capacity=40):
    """Returns (first carry, one step on the records at these indices, one step that samples by itself)."""
    sampler = PoissonSampler(200, rate, capacity=capacity)
    plan = dpsgd.plan(
        dataset_size=200, expected_batch_size=20, num_steps=400, clipping_norm=1.0, noise_multiplier=1.0,
        delta=1e-3, sampler=sampler,
    )  # fmt: skip
    grad_fn = plan.clipped_grad(lambda w, x: jnp.vdot(w, x) ** 2 - x.sum() * w.sum())
    tx = plan.optimizer(optax.adam(0.1), ROOT)

    def on(carry, indices, mask):
        weights, state = carry
        clipped, _ = grad_fn(weights, data[indices], mask=mask)
        updates, state = tx.update(clipped, state, weights)
        return optax.apply_updates(weights, updates), state

    def step(carry):
        return on(carry, *sampler.sample(ROOT, carry[1][0].count))

    weights = jnp.zeros(3)
    return (weights, tx.init(weights)), on, step


def test_a_donated_step_traces_once_over_many_batches_and_a_scan_does_the_same():
    carry, _, step = setting()
    looped = jax.jit(chex.assert_max_traces(step, n=1), donate_argnums=0)
    scan = jax.jit(lambda c: jax.lax.scan(lambda c, _: (step(c), None), c, length=200)[0])
    scanned = scan(jax.tree.map(jnp.copy, carry))
    for _ in range(200):
        carry = looped(carry)
    chex.assert_trees_all_close(carry, scanned, rtol=1e-5)
    assert int(carry[1][0].count) == 200


def test_empty_full_and_poisoned_batches_are_ordinary_steps():
    carry, on, _ = setting()
    program = jax.jit(chex.assert_max_traces(on, n=1))
    none, every = jnp.zeros(40, bool), jnp.ones(40, bool)
    indices = jnp.arange(40)
    empty = program(carry, indices, none)
    full = program(carry, indices, every)
    assert jnp.isfinite(empty[0]).all()
    assert jnp.isfinite(full[0]).all()
    assert (empty[1][1][0].mu != 0).all()  # an empty batch still releases noise
    assert int(empty[1][0].count) == int(full[1][0].count) == 1


def test_records_that_are_not_finite_change_nothing_but_themselves():
    poisoned = X.at[3].set(jnp.nan).at[5, 1].set(jnp.inf)
    carry, on, _ = setting(poisoned)
    indices = jnp.arange(40)
    bad = jnp.isin(indices, jnp.array([3, 5]))
    seen = jax.jit(on)(carry, indices, jnp.ones(40, bool))
    without = jax.jit(on)(carry, indices, ~bad)
    chex.assert_trees_all_close(seen[1][1][0].mu, without[1][1][0].mu, rtol=1e-5)
    assert jnp.isfinite(seen[0]).all()


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_batches_over_the_cap_and_without_records(rate):
    carry, _, step = setting(rate=rate, capacity=16)
    after = jax.jit(step)(carry)
    assert jnp.isfinite(after[0]).all()
