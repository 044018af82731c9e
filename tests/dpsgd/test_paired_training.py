"""The second moment's stream, end to end: clip, release both streams at one price, train."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from opake_jax import dpsgd
from opake_jax.noise import paired_adam
from opake_jax.random import key
from opake_jax.types import Moments

SIZE = 50_000


def loss_fn(params, example):
    return jnp.vdot(params["w"], example)


def test_both_streams_get_equal_relative_noise_and_train():
    """sigma_s = nm sqrt(2) D_s with D = (C, C^2); 5 standard errors of a sample std."""
    plan = dpsgd.plan(
        dataset_size=1000,
        expected_batch_size=10,
        num_steps=4,
        clipping_norm=0.5,
        noise_multiplier=1.0,
        delta=1e-5,
        capacity=1000,
    )
    grad_fn = plan.clipped_grad(loss_fn, second_moment=1.0)
    params = {"w": jnp.zeros(SIZE)}
    noise = plan.gaussian_noise(key(0))
    zeros = jnp.zeros((3, SIZE))
    clipped, _ = grad_fn(params, zeros, mask=jnp.ones(len(zeros), bool))
    assert isinstance(clipped.tree, Moments)
    released, _ = noise.update(clipped, noise.init(params))
    tolerance = 5 / np.sqrt(2 * SIZE)
    for stream, norm in ((released.first, 0.5), (released.second, 0.25)):
        expected = np.sqrt(2) * norm / 10
        assert float(jnp.std(stream["w"])) == pytest.approx(expected, rel=tolerance)

    tx = plan.optimizer(paired_adam(0.1, floor=1e-3), key(1))
    updates, _ = jax.jit(tx.update)(clipped, tx.init(params), params)
    assert updates["w"].shape == (SIZE,)
    assert bool(jnp.all(jnp.isfinite(updates["w"])))
