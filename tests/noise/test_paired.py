"""The paired release of gradients and squares, and the optimizers that take both."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from opake_jax.noise import gaussian_noise, paired_adam, paired_adamw, paired_rmsprop
from opake_jax.random import key
from opake_jax.types import ClippedSum, Moments

PARAMS = {"w": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), "frozen": None}


def paired(first, norm=1.0, denominator=1.0, shares=None):
    """A paired sum of one record's clipped gradient."""
    second = jax.tree.map(jnp.square, first)
    count = len(jax.tree.leaves(first))
    groups = (0,) * count + (1,) * count
    return ClippedSum(
        Moments(first, second),
        jnp.array([norm, norm**2]),
        denominator,
        groups=groups,
        shares=shares,
    )


def gradients(steps, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    return [
        {"w": jnp.asarray(rng.normal(size=(2, 3)), dtype), "frozen": None} for _ in range(steps)
    ]


@pytest.mark.parametrize("norm", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("shares", [None, jnp.array([3.0, 1.0])])
def test_both_streams_get_stds_that_cost_one_gaussian(norm, shares):
    # accounting.md, Paired stream: sigma_s = nm D_s / sqrt(share_s), sum (D_s / sigma_s)^2 = 1 / nm^2, in any unit.
    n = 2**15
    zero = {"w": jnp.zeros(n)}
    tx = gaussian_noise(1.3, key=key(1))
    noise, _ = tx.update(paired(zero, norm, shares=shares), tx.init(zero), zero)
    stds = np.array([np.std(noise.first["w"]), np.std(noise.second["w"])])
    relative = np.array([0.5, 0.5]) if shares is None else np.array([0.75, 0.25])
    expected = 1.3 * np.array([norm, norm**2]) / np.sqrt(relative)
    np.testing.assert_allclose(stds, expected, rtol=4 * np.sqrt(0.5 / n))
    cost = ((np.array([norm, norm**2]) / stds) ** 2).sum()
    assert cost == pytest.approx(1 / 1.3**2, rel=0.05)


def test_squares_of_a_clipped_gradient_are_within_their_sensitivity():
    # |g * g|_2 <= |g|_2^2: equality for one entry, far below for many.
    rng = np.random.default_rng(0)
    for size in (1, 2, 100):
        g = rng.normal(size=(1000, size))
        g *= 2.5 / np.linalg.norm(g, axis=1, keepdims=True)
        assert np.linalg.norm(g * g, axis=1).max() <= 2.5**2 * (1 + 1e-12)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (paired_adam(0.1, floor=0.0), optax.adam(0.1)),
        (paired_adamw(0.1, floor=0.0, weight_decay=0.3), optax.adamw(0.1, weight_decay=0.3)),
        (
            paired_rmsprop(0.1, floor=0.0),
            optax.rmsprop(0.1, eps_in_sqrt=False, bias_correction=True),
        ),
    ],
    ids=["adam", "adamw", "rmsprop"],
)
def test_without_noise_they_are_the_optimizers_of_optax(ours, theirs):
    # Independent source: optax, whose second moment is the square of the same gradient.
    chain = optax.chain(gaussian_noise(0.0, key=key(1)), ours)
    state, reference = chain.init(PARAMS), theirs.init(PARAMS)
    for g in gradients(3):
        update, state = chain.update(paired(g), state, PARAMS)
        expected, reference = theirs.update(g, reference, PARAMS)
        np.testing.assert_allclose(update["w"], expected["w"], rtol=1e-5)
        assert update["frozen"] is None


def test_negative_second_moments_are_clamped_after_the_noise():
    g = gradients(1)[0]
    released = Moments(g, jax.tree.map(lambda x: -jnp.ones_like(x), g))
    tx = paired_adam(1.0, floor=0.25, eps=0.0)
    update, state = tx.update(released, tx.init(PARAMS), PARAMS)
    np.testing.assert_allclose(update["w"], -g["w"] / 0.5, rtol=1e-6)
    # The average itself keeps its sign: clamping each step would bias it upwards.
    np.testing.assert_allclose(state[0].second["w"], -0.001, rtol=1e-3)


def test_updates_have_the_parameters_dtype():
    params = {"w": jnp.zeros((2, 3), jnp.bfloat16), "frozen": None}
    tx = optax.chain(gaussian_noise(1.0, key=key(1)), paired_adam(0.1, floor=1e-3))
    update, state = jax.jit(tx.update)(paired(gradients(1)[0]), tx.init(params), params)
    assert update["w"].dtype == jnp.bfloat16
    assert {x.dtype for x in jax.tree.leaves(state[1])} == {np.dtype("int32"), np.dtype("float32")}


@pytest.mark.parametrize("make", [paired_adam, paired_adamw, paired_rmsprop])
def test_an_ordinary_update_is_refused(make):
    tx = make(0.1, floor=0.0)
    with pytest.raises(TypeError, match="takes the Moments of a paired release"):
        tx.update(gradients(1)[0], tx.init(PARAMS), PARAMS)


@pytest.mark.parametrize(
    ("options", "name"),
    [({"floor": -1.0}, "floor"), ({"floor": float("nan")}, "floor"), ({"floor": None}, "floor"),
     ({"floor": 0.0, "eps": -1.0}, "eps"), ({"floor": 0.0, "b1": 1.0}, "b1"), ({"floor": 0.0, "b2": True}, "b2")],
)  # fmt: skip
def test_bad_options_are_refused(options, name):
    with pytest.raises((ValueError, TypeError), match=name):
        paired_adam(0.1, **options)
