"""The recipes of the docs: what stands in for noise inside masked, MultiSteps, TrainState, nnx.Optimizer."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training import train_state

from opake_jax.noise import gaussian_noise
from opake_jax.random import key
from opake_jax.types import ClippedSum

PARAMS = {"w": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), "b": jnp.zeros(3)}
NOISE = gaussian_noise(1.0, key=key(2))


def sums(steps=3):
    rng = np.random.default_rng(0)
    draw = lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32)  # noqa: E731
    return [ClippedSum(jax.tree.map(draw, PARAMS), 1.0, 4.0) for _ in range(steps)]


def by_chain(tx):
    chain = optax.chain(NOISE, tx)
    params, state = PARAMS, chain.init(PARAMS)
    for clipped in sums():
        updates, state = chain.update(clipped, state, params)
        params = optax.apply_updates(params, updates)
    return params


def test_train_state_takes_noisy_updates():
    state = train_state.TrainState.create(apply_fn=None, params=PARAMS, tx=optax.adam(0.1))
    noise_state = NOISE.init(PARAMS)
    for clipped in sums():
        updates, noise_state = NOISE.update(clipped, noise_state, state.params)
        state = state.apply_gradients(grads=updates)
    chex.assert_trees_all_close(state.params, by_chain(optax.adam(0.1)), rtol=1e-6)
    with pytest.raises((TypeError, ValueError)):  # the sum itself, or the noise inside
        state.apply_gradients(grads=sums()[0])
    inside = train_state.TrainState.create(
        apply_fn=None, params=PARAMS, tx=optax.chain(NOISE, optax.sgd(0.1))
    )
    with pytest.raises(TypeError, match="takes a ClippedSum"):
        inside.apply_gradients(grads=sums()[0].tree)


def test_nnx_optimizer_takes_noisy_updates():
    class Model(nnx.Module):
        def __init__(self):
            self.w, self.b = nnx.Param(PARAMS["w"]), nnx.Param(PARAMS["b"])

    model = Model()
    _, params = nnx.split(model, nnx.Param)
    params = jax.tree.map(jnp.copy, params)  # the split shares its variables with the model
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    chain = optax.chain(NOISE, optax.adam(0.1))
    expected, state, noise_state = params, chain.init(params), NOISE.init(params)
    for step, old in enumerate(sums()):
        tree = jax.tree.unflatten(jax.tree.structure(params), jax.tree.leaves(old.tree))
        clipped = ClippedSum(tree, 1.0, 4.0)
        updates, noise_state = NOISE.update(clipped, noise_state, nnx.state(model, nnx.Param))
        optimizer.update(model, updates)
        updates, state = chain.update(clipped, state, expected)
        expected = optax.apply_updates(expected, updates)
        assert int(noise_state.count) == step + 1
    chex.assert_trees_all_close(
        jax.tree.leaves(nnx.state(model, nnx.Param)), jax.tree.leaves(expected), rtol=1e-6
    )


def test_masked_behind_the_noise():
    mask = {"w": True, "b": False}
    tx = optax.chain(optax.masked(optax.scale(2.0), mask), optax.sgd(0.1))
    plain, masked = by_chain(optax.sgd(0.1)), by_chain(tx)
    chex.assert_trees_all_close(masked["b"], plain["b"])
    chex.assert_trees_all_close(
        masked["w"] - PARAMS["w"], 2 * (plain["w"] - PARAMS["w"]), rtol=1e-5
    )


def test_frozen_parameters_keep_their_bits():
    # None in the sum: no noise, no optimizer state, and the parameter is carried past the update.
    params = {**PARAMS, "frozen": jnp.full(2, 0.1)}
    trained = {**params, "frozen": None}
    chain = optax.chain(NOISE, optax.adamw(0.1, weight_decay=0.5))
    state = chain.init(trained)
    for clipped in sums():
        clipped = ClippedSum({**clipped.tree, "frozen": None}, 1.0, 4.0)
        updates, state = chain.update(clipped, state, {**params, "frozen": None})
        params = jax.tree.map(
            lambda p, u: p if u is None else p + u, params, updates, is_leaf=lambda x: x is None
        )
    assert (params["frozen"] == jnp.full(2, 0.1)).all()
    chex.assert_trees_all_close(
        {k: params[k] for k in PARAMS}, by_chain(optax.adamw(0.1, weight_decay=0.5)), rtol=1e-5
    )
    assert len(jax.tree.leaves(state[1][0].mu)) == 2


def test_accumulation_adds_clipped_sums_and_draws_once():  # report R22
    n = 2**15
    zero = {"w": jnp.zeros(n)}
    part = ClippedSum(zero, 1.0, 64.0)  # micro-batches of 16, four of them: 64 are expected
    state = NOISE.init(zero)
    update, after = NOISE.update(part + part + part + part, state)
    spread = 4 * np.sqrt(0.5 / n)
    assert float(jnp.std(update["w"])) == pytest.approx(1 / 64, rel=spread)
    assert int(after.count) == 1
    # What accumulating behind the noise would do: four draws, each for a denominator of 16.
    noisy = optax.MultiSteps(optax.identity(), 4)
    multi_state = noisy.init(zero)
    for _ in range(4):
        micro, state = NOISE.update(ClippedSum(zero, 1.0, 16.0), state)
        wrong, multi_state = noisy.update(micro, multi_state, zero)
    assert float(jnp.std(wrong["w"])) == pytest.approx(0.03125, rel=spread)
