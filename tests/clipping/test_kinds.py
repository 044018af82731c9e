"""Groups, adaptive norms, units, transforms, projections, second moments: each against numbers worked out by hand or in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from opake_jax import clipping
from opake_jax.noise import gaussian_noise
from opake_jax.random import key
from opake_jax.types import Moments


def linear(w, x):
    """Its gradient in w is the example itself."""
    return jnp.vdot(w, x)


def pair(p, x):
    """Gradients: in p["a"] the first two entries, in p["b"]["c"] the other three."""
    return jnp.vdot(p["a"], x[:2]) + jnp.vdot(p["b"]["c"], x[2:])


PAIR = {"a": jnp.zeros(2), "b": {"c": jnp.zeros(3)}}
X = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32) * 2


def clip(rows, norm):
    return rows * np.minimum(1, norm / np.linalg.norm(rows, axis=1))[:, None]


# Groups


def test_each_group_is_clipped_to_its_own_norm():
    norms = clipping.per_group({"a": 1.0, "b/.*": 0.5})
    clipped, aux = clipping.clipped_grad(pair, norms)(PAIR, X)
    np.testing.assert_allclose(clipped.tree["a"], clip(X[:, :2], 1.0).sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        clipped.tree["b"]["c"], clip(X[:, 2:], 0.5).sum(0), rtol=1e-5, atol=1e-6
    )
    assert clipped.groups == (0, 1)
    assert clipped.sensitivity.tolist() == [1.0, 0.5]
    np.testing.assert_allclose(aux.grad_norm[:, 1], np.linalg.norm(X[:, 2:], axis=1), rtol=1e-5)


def test_shares_minimise_the_expected_squared_error():
    """accounting.md, Groups: sigma_i^2 = nm^2 (B_i / sqrt(d_i)) sum_j B_j sqrt(d_j), here from a noise step's point of view."""
    bounds, sizes = np.array([1.0, 0.5]), np.array([2, 3])
    clipped, _ = clipping.clipped_grad(pair, clipping.per_group({"a": 1.0, "b/.*": 0.5}))(PAIR, X)
    shares = np.asarray(clipped.shares / clipped.shares.sum())
    variances = bounds**2 / shares
    np.testing.assert_allclose(
        variances, bounds / np.sqrt(sizes) * (bounds * np.sqrt(sizes)).sum(), rtol=1e-6
    )
    best = (sizes * variances).sum()
    for shift in (-0.05, 0.05):  # any other division of the same budget is worse
        other = shares + np.array([shift, -shift])
        assert (sizes * bounds**2 / other).sum() > best


def test_a_row_that_is_not_finite_in_one_group_drops_out_of_all():
    x = np.array(X[:2])
    x[1, 4] = np.inf
    clipped, aux = clipping.clipped_grad(pair, clipping.per_group({"a": 9.0, "b.*": 9.0}))(PAIR, x)
    np.testing.assert_allclose(clipped.tree["a"], X[0, :2], rtol=1e-6)
    assert np.isinf(aux.grad_norm[1, 1])


@pytest.mark.parametrize(
    ("norms", "message"),
    [
        ({"a": 1.0}, "'b/c' matches no pattern"),
        ({"a": 1.0, ".*": 1.0}, "'a' matches 'a', '.*'"),
        ({".*": 1.0, "z": 1.0}, "no trainable leaf matches 'z'"),
    ],
)
def test_every_leaf_is_in_exactly_one_group(norms, message):
    with pytest.raises(ValueError, match=message):
        clipping.clipped_grad(pair, clipping.per_group(norms))(PAIR, X)


@pytest.mark.parametrize(
    "bad", [{}, {"(": 1.0}, {"a": -1.0}, {"a": "1"}, {"a": True}, 1.0, {1: 1.0}]
)
def test_bad_groups_are_refused(bad):
    with pytest.raises((TypeError, ValueError)):
        clipping.per_group(bad)


# Adaptive


def test_the_count_is_centred_and_blind_to_padding():
    """Norms 0.5, 2, 3, inf, and one padded row, at 1.0: 1/2 - 1/2 - 1/2 - 1/2 = -1."""
    x = jnp.array([[0.5, 0], [2.0, 0], [0, 3.0], [jnp.inf, 0], [0.1, 0]])
    grad_fn = clipping.adaptive_clipped_grad(linear, 1.0, denominator=4.0)
    state = grad_fn.init()
    clipped, counts, _ = grad_fn(jnp.zeros(2), x, state, mask=jnp.arange(5) < 4)
    assert counts.tree == -1.0
    assert counts.sensitivity == 0.5
    assert counts.denominator == clipped.denominator == 4.0
    np.testing.assert_allclose(clipped.tree, [1.5, 1.0], rtol=2e-6)


def test_the_norm_follows_andrew_et_al():
    """C exp(-lr (fraction unclipped - quantile)), arXiv:1905.03871, algorithm 1, with fraction = released + 1/2."""
    grad_fn = clipping.adaptive_clipped_grad(linear, 2.0, quantile=0.7, learning_rate=0.2)
    state = grad_fn.update(grad_fn.init(), jnp.float32(-0.25))
    np.testing.assert_allclose(state.clipping_norm, 2.0 * np.exp(-0.2 * (0.25 - 0.7)), rtol=1e-6)
    assert np.isnan(grad_fn.update(state, jnp.float32(np.nan)).clipping_norm)


def test_the_norm_finds_the_quantile():
    """Without noise, on norms uniform on [0, 4], 100 steps from 0.1 with rate 0.5 end near the 0.25 quantile, 1."""
    x = jnp.linspace(0.0, 4.0, 401)[1:, None]
    grad_fn = clipping.adaptive_clipped_grad(
        linear, 0.1, quantile=0.25, learning_rate=0.5, denominator=400.0
    )
    noise = gaussian_noise(0.0, key=key(0))

    @jax.jit
    def step(state):
        _, counts, _ = grad_fn(jnp.zeros(1), x, state)
        released, _ = noise.update(counts, noise.init(jnp.zeros(())))
        return grad_fn.update(state, released)

    state = grad_fn.init()
    for _ in range(100):
        state = step(state)
    np.testing.assert_allclose(state.clipping_norm, 1.0, rtol=0.02)


@pytest.mark.parametrize(
    "bad",
    [
        {"quantile": 0.0}, {"quantile": 1.0}, {"learning_rate": 0.0}, {"learning_rate": np.nan},
        {"bounds": (0.0, 1.0)}, {"bounds": (2.0, 1.0)}, {"clipping_norm": -1.0},
        {"clipping_norm": clipping.per_group({".*": 1.0})},
    ],
)  # fmt: skip
def test_bad_adaptive_numbers_are_refused(bad):
    with pytest.raises((TypeError, ValueError)):
        clipping.adaptive_clipped_grad(linear, **bad)


# Units


@pytest.mark.parametrize("engine", [clipping.Vmap(), clipping.Ghost(), clipping.Chunked(2)])
def test_a_unit_is_clipped_as_one_and_its_padding_is_not_seen(engine):
    rng = np.random.default_rng(1)
    records = rng.normal(size=(4, 3, 2)).astype(np.float32) * 3
    real = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 0]], bool)
    means = np.stack([r[m].mean(0) for r, m in zip(records[:3], real[:3], strict=True)])
    holes = np.where(real[..., None], records, np.nan)
    grad_fn = clipping.clipped_grad(linear, 1.0, unit_axis=1, engine=engine)
    clipped, aux = grad_fn(jnp.ones(2), holes, mask=real)
    np.testing.assert_allclose(clipped.tree, clip(means, 1.0).sum(0), rtol=1e-5)
    np.testing.assert_allclose(aux.grad_norm[:3], np.linalg.norm(means, axis=1), rtol=1e-5)
    assert np.isnan(aux.loss[3])


def test_views_of_one_example_are_averaged_before_clipping():
    """K = 2 views with opposite gradients cancel; clipped one by one and averaged they would too, but [3, 0] and [0, 1] would not."""
    views = jnp.array([[[3.0, 0.0], [0.0, 1.0]]])
    clipped, _ = clipping.clipped_grad(linear, 1.0, unit_axis=1)(jnp.zeros(2), views)
    np.testing.assert_allclose(clipped.tree, np.array([1.5, 0.5]) / np.sqrt(2.5), rtol=1e-5)


def test_records_have_their_own_keys():
    def loss(w, x, key):
        return jnp.vdot(w, x * jax.random.normal(key, x.shape))

    grad_fn = clipping.clipped_grad(loss, 1e6, unit_axis=1)
    clipped, _ = grad_fn(jnp.zeros(3), jnp.ones((1, 2, 3)), key=key(4))
    row = jax.random.fold_in(key(4), 0)
    expected = np.mean(
        [jax.random.normal(jax.random.fold_in(row, k), (3,)) for k in range(2)], axis=0
    )
    np.testing.assert_allclose(clipped.tree, expected, rtol=1e-6)


def test_units_of_different_sizes_are_named():
    batch = {"x": jnp.ones((4, 3, 2)), "y": jnp.ones((4, 2))}
    with pytest.raises(ValueError, match=r"records in a unit .*\['x'\] \(4, 3, 2\)"):
        clipping.clipped_grad(lambda w, e: linear(w, e["x"]), 1.0, unit_axis=1)(jnp.zeros(2), batch)


# Transforms and projections


def test_pre_clipping_acts_on_each_gradient_before_its_norm():
    clamp = lambda g: jax.tree.map(lambda x: jnp.clip(x, -1.0, 1.0), g)  # noqa: E731
    for engine in (clipping.Vmap(), clipping.Ghost(), clipping.Microbatched(4)):
        grad_fn = clipping.clipped_grad(linear, 1.5, pre_clipping=clamp, engine=engine)
        clipped, _ = grad_fn(jnp.zeros(5), X)
        expected = clip(np.clip(X, -1, 1), 1.5)
        np.testing.assert_allclose(clipped.tree, expected.sum(0), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="pre_clipping must return"):
        clipping.clipped_grad(linear, 1.0, pre_clipping=lambda g: g[:2])(jnp.zeros(5), X)


def test_a_projected_gradient_is_clipped_in_the_subspace_and_lifted_after_the_noise():
    basis, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(5, 2)))
    basis = np.asarray(basis.T, np.float32)  # (2, 5), orthonormal rows
    chosen = clipping.projection(jnp.asarray(basis))
    grad_fn = clipping.clipped_grad(linear, 1.0, projection=chosen, denominator=6.0)
    clipped, aux = grad_fn(jnp.ones(5), X)
    coordinates = X @ basis.T
    expected = clip(coordinates, 1.0).sum(0)
    np.testing.assert_allclose(clipped.tree, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(aux.grad_norm, np.linalg.norm(coordinates, axis=1), rtol=1e-5)
    noise = gaussian_noise(0.0, key=key(0))
    update, _ = noise.update(clipped + grad_fn(jnp.ones(5), X)[0], noise.init(jnp.ones(5)))
    np.testing.assert_allclose(update, 2 * expected @ basis / 6, rtol=1e-5, atol=1e-6)


def test_a_random_projection_is_unbiased():
    """Over 400 draws of 3 directions; the mean of 400 lifts has relative error about sqrt((5 + 1) / 3 / 400) = 0.07; allow 5 times that."""
    g = jnp.arange(1.0, 6.0)
    lifts = [
        p.lift(p.basis @ g)
        for p in (clipping.random_projection(g, 3, key=key(i)) for i in range(400))
    ]
    error = np.linalg.norm(np.mean(lifts, axis=0) - g) / np.linalg.norm(g)
    assert error < 0.35


def test_a_basis_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match="basis must be a tree like"):
        clipping.clipped_grad(linear, 1.0, projection=clipping.projection(jnp.ones((2, 4))))(
            jnp.zeros(5), X
        )
    with pytest.raises(ValueError, match="common first axis"):
        clipping.projection({"a": jnp.ones((2, 4)), "b": jnp.ones((3, 4))})
    with pytest.raises(TypeError, match="concrete"):
        jax.jit(clipping.projection)(jnp.ones((2, 4)))


# Second moments


@pytest.mark.parametrize("engine", [clipping.Vmap(), clipping.Ghost(), clipping.Microbatched(4)])
def test_both_moments_are_sums_of_clipped_gradients_with_their_sensitivities(engine):
    grad_fn = clipping.clipped_grad(linear, 0.5, second_moment=1.0, engine=engine)
    clipped, _ = grad_fn(jnp.zeros(5), X)
    assert isinstance(clipped.tree, Moments)
    rows = clip(X, 0.5)
    np.testing.assert_allclose(clipped.tree.first, rows.sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(clipped.tree.second, (rows**2).sum(0), rtol=1e-5, atol=1e-6)
    assert clipped.groups == (0, 1)
    assert clipped.sensitivity.tolist() == [0.5, 0.25]
    assert clipped.shares[0] == clipped.shares[1]
    assert (np.linalg.norm(rows**2, axis=1) <= 0.25 + 1e-6).all()  # |g * g| <= |g|^2


def test_second_moments_of_groups():
    norms = clipping.per_group({"a": 1.0, "b/.*": 0.5})
    clipped, _ = clipping.clipped_grad(pair, norms, second_moment=2.0)(PAIR, X)
    assert clipped.groups == (0, 1, 2, 3)
    assert clipped.sensitivity.tolist() == [1.0, 0.5, 1.0, 0.25]
    np.testing.assert_allclose(clipped.shares[2:] / clipped.shares[:2], 2.0, rtol=1e-6)


@pytest.mark.parametrize(
    "bad",
    [
        {"second_moment": 0.0}, {"second_moment": True}, {"unit_axis": 0}, {"unit_axis": 1.5},
        {"projection": jnp.ones((2, 5))}, {"pre_clipping": 1.0},
    ],
)  # fmt: skip
def test_bad_options_are_refused(bad):
    with pytest.raises((TypeError, ValueError)):
        clipping.clipped_grad(linear, 1.0, **bad)
