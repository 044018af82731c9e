"""Adaptive clipping in a plan: the count is released at the gradient's price, and the norm follows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opake_jax.accounting as acc
from opake_jax import dpsgd
from opake_jax.random import key

SIZE = 100_000


def loss_fn(params, example):
    return jnp.vdot(params["w"], example)


def make(**changes):
    arguments = {
        "dataset_size": 1000,
        "expected_batch_size": 100,
        "num_steps": 60,
        "clipping_norm": 0.1,
        "noise_multiplier": 1.0,
        "delta": 1e-5,
        "capacity": 1000,
        "adaptive": dpsgd.AdaptiveClipping(count_noise_std=5.0),
    }
    return dpsgd.plan(**{**arguments, **changes})


def test_gradient_and_count_together_cost_the_stated_multiplier():
    plain = acc.poisson(acc.gaussian(1.0), 0.1) * 60
    assert make().report().epsilon == pytest.approx(plain.epsilon_at(1e-5), rel=1e-4)


def test_the_gradients_noise_grows_by_the_counts_share():
    """R25: z = 1 and count noise 5 leave the gradient (1 - 1/100)^(-1/2) = 1.00504 times its norm.

    False-alarm rate: 5 / sqrt(2 n) around the true std, 6e-7.
    """
    plan = make()
    grad_fn = plan.adaptive_clipped_grad(loss_fn)
    params = {"w": jnp.zeros(SIZE)}
    noise = plan.gaussian_noise(key(0))
    clipped, _ = grad_fn(params, jnp.zeros((1, SIZE)), grad_fn.init(), mask=jnp.ones(1, bool))
    (gradient, _), _ = noise.update(clipped, noise.init(params))
    expected = 1.00504 * 0.1 / 100
    assert float(jnp.std(gradient["w"])) == pytest.approx(expected, rel=5 / np.sqrt(2 * SIZE))


def test_the_counts_noise_has_the_stated_std():
    """2,000 draws at different steps; five standard errors of a sample std."""
    plan = make(num_steps=2000)
    grad_fn = plan.adaptive_clipped_grad(loss_fn)
    params = {"w": jnp.zeros(2)}
    noise = plan.gaussian_noise(key(0))
    clipped, _ = grad_fn(params, jnp.zeros((1, 2)), grad_fn.init(), mask=jnp.ones(1, bool))
    state = noise.init(params)

    def draw(step):
        (_, count), _ = noise.update(clipped, state._replace(count=step))
        return count

    counts = 100 * jax.jit(jax.vmap(draw))(jnp.arange(2000, dtype=state.count.dtype))
    assert float(jnp.std(counts)) == pytest.approx(5.0, rel=5 / np.sqrt(2 * 2000))
    assert float(jnp.mean(counts)) == pytest.approx(0.5, abs=5 * 5 / np.sqrt(2000))


def test_the_norm_finds_the_quantile():
    """Gradient norms are uniform on (0, 2): the median is 1; the norm starts a factor of 10 below."""
    plan = make(adaptive=dpsgd.AdaptiveClipping())
    grad_fn = plan.adaptive_clipped_grad(loss_fn)
    norms = jnp.linspace(0.0, 2.0, 1000)
    data = jnp.stack([norms, jnp.zeros(1000)], 1)
    params = {"w": jnp.zeros(2)}
    noise = plan.gaussian_noise(key(0))

    @jax.jit
    def step(clip_state, noise_state, indices, mask):
        clipped, _ = grad_fn(params, data[indices], clip_state, mask=mask)
        (_, count), noise_state = noise.update(clipped, noise_state)
        return grad_fn.update(clip_state, count), noise_state

    clip_state, noise_state = grad_fn.init(), noise.init(params)
    for indices, mask in plan.batches(key(1)):
        clip_state, noise_state = step(clip_state, noise_state, indices, mask)
    assert 0.8 < float(clip_state.clipping_norm) < 1.2


def test_a_count_that_would_cost_everything_is_refused():
    with pytest.raises(ValueError, match="count_noise_std"):
        make(adaptive=dpsgd.AdaptiveClipping(count_noise_std=0.5))


def test_a_plan_offers_the_gradient_function_that_it_accounts_for():
    with pytest.raises(ValueError, match="adaptive_clipped_grad"):
        make().clipped_grad(loss_fn)
    with pytest.raises(ValueError, match="adaptive="):
        make(adaptive=None).adaptive_clipped_grad(loss_fn)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("quantile", 0.0), ("quantile", 1.0), ("quantile", float("nan")), ("quantile", True),
        ("learning_rate", 0.0), ("learning_rate", float("inf")), ("learning_rate", "1"),
        ("count_noise_std", 0.0), ("count_noise_std", -1.0), ("count_noise_std", float("nan")),
    ],
)  # fmt: skip
def test_bad_input_is_named(argument, value):
    with pytest.raises((ValueError, TypeError), match=argument):
        dpsgd.AdaptiveClipping(**{argument: value})
