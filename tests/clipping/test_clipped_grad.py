"""What `clipped_grad` promises whatever the engine: bounds, masks, keys, dtypes, messages.

Expected numbers are worked out by hand beside each test; R.. names the user report in shared/cases/user_reports.md.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clipping_models import normal

from opake_jax import clipping
from opake_jax.random import key


def linear(w, x):
    """Its gradient in w is the example itself."""
    return jnp.vdot(w, x)


def test_r05_the_clipping_norm_is_used_also_as_a_traced_argument():
    x = jnp.array([[6.0, 8.0], [0.3, 0.4], [0.0, 2.0]])  # norms 10, 0.5, 2

    @jax.jit
    def norms(clipping_norm):
        grad_fn = clipping.clipped_grad(linear, clipping_norm)
        one = lambda row: jnp.linalg.norm(grad_fn(jnp.zeros(2), row[None])[0].tree)  # noqa: E731
        return jnp.stack([one(row) for row in x]), grad_fn(jnp.zeros(2), x)[0].sensitivity

    for clipping_norm, expected in ((1.0, [1, 0.5, 1]), (5.0, [5, 0.5, 2])):
        got, sensitivity = norms(clipping_norm)
        np.testing.assert_allclose(got, expected, rtol=2e-6)
        assert sensitivity == clipping_norm


def test_r06_a_nonfinite_gradient_drops_out_whole_and_is_counted():
    x = jnp.array([[3.0, 4.0, 0.0], [0.0, 1.0, 0.0], [jnp.nan, 1.0, 1.0], [jnp.inf, 0.0, 0.0]])
    clipped, aux = clipping.clipped_grad(linear, 1.0)(jnp.zeros(3), x)
    np.testing.assert_allclose(clipped.tree, [0.6, 1.8, 0.0], rtol=2e-6)
    assert int(jnp.isinf(aux.grad_norm).sum()) == 2


def test_r06_a_finite_loss_with_a_nan_gradient_drops_out():
    loss_fn = lambda w, x: jnp.sqrt(jnp.vdot(w, x)) + jnp.vdot(w, x)  # noqa: E731 - inf * 0 at w = 0
    clipped, aux = clipping.clipped_grad(loss_fn, 1.0)(jnp.zeros(2), jnp.array([[0.0, 3.0]]))
    assert jnp.isfinite(aux.loss).all()
    assert clipped.tree.tolist() == [0.0, 0.0]


def test_r02_padding_contributes_nothing_whatever_it_holds():
    real = normal(3, 4) * 3
    mask = jnp.array([True, True, True, False, False, False, False, False])
    grad_fn = clipping.clipped_grad(linear, 1.0)
    expected, _ = grad_fn(jnp.ones(4), real)
    for fill in (0.0, 1e6, jnp.nan, jnp.inf, 3e38):
        batch = jnp.concatenate([real, jnp.full((5, 4), fill)])
        clipped, aux = grad_fn(jnp.ones(4), batch, mask=mask)
        np.testing.assert_allclose(clipped.tree, expected.tree, rtol=1e-6, atol=1e-6)
        assert jnp.isnan(aux.loss).tolist() == (~mask).tolist()
        assert jnp.isnan(aux.grad_norm).tolist() == (~mask).tolist()
        np.testing.assert_allclose(jnp.nanmean(aux.loss), (real.sum(1)).mean(), rtol=1e-6)


def test_an_empty_draw_sums_to_zero():
    batch = jnp.full((2, 3), jnp.nan)
    clipped, _ = clipping.clipped_grad(linear, 1.0)(jnp.zeros(3), batch, mask=jnp.zeros(2, bool))
    assert clipped.tree.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_r07_norms_and_sums_of_half_precision_are_float32(dtype):
    grad_fn = clipping.clipped_grad(linear, 1.0)
    clipped, _ = grad_fn(jnp.zeros(2, dtype), jnp.array([[5000, 5000]], dtype))
    assert clipped.tree.dtype == jnp.float32
    np.testing.assert_allclose(clipped.tree, [0.70711, 0.70711], rtol=1e-5)
    for small in (0.0, 1e-4):  # below the norm: unchanged
        x = jnp.full((1, 2), small, dtype)
        clipped, _ = grad_fn(jnp.zeros(2, dtype), x)
        assert clipped.tree.tolist() == x[0].astype(jnp.float32).tolist()


def test_the_clipped_norm_is_at_most_the_bound_after_rounding():
    """In float64, over scales of 1e-12 to 1e12 and sizes of 1 to 10,000; the bound is never passed."""
    for size, clipping_norm in ((1, 0.1), (7, 1.0), (1000, 0.3), (10_000, 1e3)):
        x = normal(25, size) * 10.0 ** jnp.arange(-12, 13)[:, None]
        one = jax.jit(
            jax.vmap(
                lambda row, c=clipping_norm: (
                    clipping.clipped_grad(linear, c)(jnp.zeros(row.shape), row[None])[0].tree
                )
            )
        )
        norms = np.linalg.norm(np.asarray(one(x), np.float64), axis=1)
        assert norms.max() <= np.float32(clipping_norm)
        assert norms.max() >= clipping_norm * (1 - 2e-6)


def test_r08_a_weight_used_twice_is_clipped_once():
    clipped, _ = clipping.clipped_grad(lambda w, x: w * x + w * 2 * x, 1.0)(1.0, jnp.ones(1))
    np.testing.assert_allclose(clipped.tree, 1.0, rtol=2e-6)


def test_r09_a_sequence_is_one_example():
    token_mask = jnp.array([[1.0, 1, 0, 0], [1, 1, 1, 1]])
    loss_fn = lambda w, m: jnp.sum(w * m) / jnp.sum(m)  # noqa: E731
    clipped, aux = clipping.clipped_grad(loss_fn, 10.0)(jnp.array(1.0), token_mask)
    assert clipped.tree == 2.0
    assert aux.grad_norm.tolist() == [1.0, 1.0]


def test_r10_a_sum_divided_by_the_expected_batch_size_only_by_the_noise_step():
    x = jnp.array([[3.0, 4.0], [0.0, 1.0]])
    mean = lambda w, row: jnp.mean(row[None] @ w)  # noqa: E731 - a mean over a batch axis of one
    clipped, _ = clipping.clipped_grad(mean, 1.0, denominator=2.0)(jnp.zeros(2), x)
    np.testing.assert_allclose(clipped.tree, [0.6, 1.8], rtol=2e-6)
    assert clipped.denominator == 2.0


@pytest.mark.parametrize("has_aux", [False, True])
def test_r12_values_norms_and_aux_are_per_example_and_marked(has_aux):
    def loss_fn(w, x):
        return (linear(w, x), {"n": x[0], "i": jnp.int32(7)}) if has_aux else linear(w, x)

    mask = jnp.array([True, True, False, True, False])
    grad_fn = clipping.clipped_grad(loss_fn, 1.0, has_aux=has_aux)
    _, aux = grad_fn(jnp.ones(2), jnp.ones((5, 2)), mask=mask)
    assert aux.loss.shape == aux.grad_norm.shape == (5,)
    np.testing.assert_allclose(aux.grad_norm[mask], np.sqrt(2.0), rtol=1e-6)  # before clipping
    if has_aux:
        assert jnp.isnan(aux.aux["n"]).tolist() == (~mask).tolist()
        assert aux.aux["i"].tolist() == [7, 7, 0, 7, 0]
    else:
        assert aux.aux is None


def dropout_loss(w, x, key):
    return jnp.vdot(w, jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.0))


def test_r17_each_example_has_its_own_key_folded_by_its_index():
    grad_fn = clipping.clipped_grad(dropout_loss, 100.0, has_aux=False)
    rows = jnp.ones((4, 16))
    masks = [
        grad_fn(jnp.zeros(16), rows, mask=jnp.arange(4) == i, key=key(3))[0].tree.tolist()
        for i in range(4)
    ]
    expected = [
        jax.random.bernoulli(jax.random.fold_in(key(3), i), 0.5, (16,)).astype(float).tolist()
        for i in range(4)
    ]
    assert masks == expected
    assert len({tuple(m) for m in masks}) == 4


def test_a_key_is_asked_for_and_asked_about():
    w, x = jnp.zeros(2), jnp.ones((1, 2))
    with pytest.raises(ValueError, match="pass key="):
        clipping.clipped_grad(dropout_loss, 1.0)(w, x)
    with pytest.raises(ValueError, match="takes none"):
        clipping.clipped_grad(linear, 1.0)(w, x, key=key(0))
    with pytest.raises(TypeError, match="typed threefry key"):
        clipping.clipped_grad(dropout_loss, 1.0)(w, x, key=jnp.zeros(2, jnp.uint32))
    with_option = functools.partial(lambda w, x, scale: scale * linear(w, x), scale=2.0)
    assert clipping.clipped_grad(with_option, 9.0)(w, x)[0].tree.tolist() == [2.0, 2.0]


def test_r18_frozen_leaves_are_in_no_norm_and_no_sum():
    params = {"base": jnp.eye(4), "a": normal(4, 2), "b": jnp.zeros((2, 4))}
    loss_fn = lambda p, x: jnp.sum(jnp.square(x @ (p["base"] + p["a"] @ p["b"]) - 1))  # noqa: E731
    x = normal(3, 4, seed=1)
    masked = clipping.clipped_grad(loss_fn, 1.0, trainable={"base": False, "a": True, "b": True})
    clipped, aux = masked(params, x)
    without = clipping.clipped_grad(lambda p, x: loss_fn({**params, **p}, x), 1.0)
    expected, expected_aux = without({"a": params["a"], "b": params["b"]}, x)
    assert clipped.tree["base"] is None
    np.testing.assert_allclose(aux.grad_norm, expected_aux.grad_norm, rtol=1e-6)
    assert not clipped.tree["a"].any()  # b is zero
    np.testing.assert_allclose(clipped.tree["b"], expected.tree["b"], rtol=1e-5, atol=1e-7)
    as_none = clipping.clipped_grad(
        lambda p, x: loss_fn({**params, **p, "base": jnp.eye(4)}, x), 1.0
    )
    assert as_none({**params, "base": None}, x)[0].tree["base"] is None


def test_a_mask_tree_may_be_a_prefix_and_frozen_leaves_may_be_integers():
    params = {"head": {"w": jnp.ones(2), "c": jnp.ones(2)}, "steps": jnp.int32(3)}
    loss_fn = lambda p, x: jnp.vdot(p["head"]["w"] + p["head"]["c"], x) * p["steps"]  # noqa: E731
    grad_fn = clipping.clipped_grad(loss_fn, 100.0, trainable={"head": True, "steps": False})
    clipped, _ = grad_fn(params, jnp.array([[1.0, 2.0]]))
    assert clipped.tree["head"]["w"].tolist() == [3.0, 6.0]
    assert clipped.tree["steps"] is None


@pytest.mark.parametrize(
    ("leaf", "name"), [(jnp.int32(3), "step"), (jnp.array(True), "flag"), (1j, "z")]
)
def test_r19_leaves_without_a_gradient_are_named(leaf, name):
    with pytest.raises(TypeError, match=rf"params\['{name}'\] is .* freeze it"):
        clipping.clipped_grad(lambda p, x: linear(p["w"], x), 1.0)(
            {"w": jnp.ones(3), name: leaf}, jnp.ones((2, 3))
        )


W = jnp.zeros(3)


@pytest.mark.parametrize(
    ("batch", "mask", "message"),
    [
        (
            {"x": jnp.ones((5, 3)), "y": jnp.ones((4, 2))},
            None,
            r"\['x'\] \(5, 3\).*\['y'\] \(4, 2\)",
        ),
        ({"x": jnp.float32(1.0)}, None, r"batch\['x'\] is a scalar"),
        ({}, None, "no leaves"),
        ({"x": jnp.ones((5, 3))}, jnp.ones(4, bool), r"shape \(5,\)"),
        ({"x": jnp.ones((5, 3))}, jnp.ones(5), "boolean"),
    ],
)
def test_r42_a_batch_without_a_common_batch_axis_is_named(batch, mask, message):
    grad_fn = clipping.clipped_grad(lambda w, example: linear(w, example["x"]), 1.0)
    with pytest.raises(ValueError, match=message):
        grad_fn(W, batch, mask=mask)


@pytest.mark.parametrize(
    ("loss_fn", "error", "message"),
    [
        (lambda w, x: w * x, ValueError, r"shape \(3,\)"),
        (lambda w, x: jnp.vdot(w, x)[None], ValueError, r"shape \(1,\)"),
        (lambda w, x: jnp.sum(x).astype(int), ValueError, "int"),
        (lambda w, x: (jnp.vdot(w, x), x), TypeError, "has_aux"),
        (lambda w, x: None, TypeError, "one real scalar"),
    ],
)
def test_r10_a_loss_that_is_no_scalar_is_refused(loss_fn, error, message):
    with pytest.raises(error, match=message):
        clipping.clipped_grad(loss_fn, 1.0)(W, jnp.ones((2, 3)))


def test_a_loss_without_aux_is_told_so():
    with pytest.raises(TypeError, match="has_aux=True needs"):
        clipping.clipped_grad(linear, 1.0, has_aux=True)(W, jnp.ones((2, 3)))


BAD_NUMBERS = [-1.0, 0.0, jnp.nan, jnp.inf, True, "1", None, jnp.ones(2)]
# Squares of gradients as small, or as large, leave float32.
BAD_NORMS = [*BAD_NUMBERS, 1e-9, 1e-30, 1e19]


@pytest.mark.parametrize("make", [clipping.clipped_grad, clipping.auto_clipped_grad])
@pytest.mark.parametrize("bad", BAD_NORMS, ids=repr)
def test_r26_bad_clipping_norms_are_refused_at_the_factory_inside_jit_too(make, bad):
    with pytest.raises((ValueError, TypeError), match="clipping_norm"):
        make(linear, bad)
    with pytest.raises((ValueError, TypeError), match="clipping_norm"):
        jax.jit(lambda x: make(linear, bad)(jnp.zeros(3), x)[0].tree)(jnp.ones((2, 3)))


@pytest.mark.parametrize("make", [clipping.clipped_grad, clipping.auto_clipped_grad])
@pytest.mark.parametrize("bad", BAD_NUMBERS, ids=repr)
def test_r26_bad_denominators_are_refused_at_the_factory(make, bad):
    with pytest.raises((ValueError, TypeError), match="denominator"):
        make(linear, 1.0, denominator=bad)


def test_bad_engines_losses_and_stability_are_refused():
    with pytest.raises(TypeError, match="engine"):
        clipping.clipped_grad(linear, 1.0, engine="ghost")
    with pytest.raises(TypeError, match="callable"):
        clipping.clipped_grad(1.0, 1.0)
    with pytest.raises(ValueError, match="stability"):
        clipping.auto_clipped_grad(linear, 1.0, stability=0.0)
    with pytest.raises(ValueError, match="stability"):  # norms below would vanish, and count
        clipping.auto_clipped_grad(linear, 1.0, stability=1e-9)


@pytest.mark.parametrize("stability", [1e-8, 1e-2])
@pytest.mark.parametrize("size", [1e-30, 1e-20, 3e-19, 1e-10, 1.0])
def test_auto_s_bounds_gradients_whose_squares_vanish(stability, size):
    """A confident classifier's gradients are that small; at a stability of 1e-30 they counted 1e12 times."""
    grad_fn = clipping.auto_clipped_grad(linear, 1.0, stability=stability)
    clipped, _ = grad_fn(jnp.zeros(10**4), jnp.full((1, 10**4), size, jnp.float32))
    assert np.linalg.norm(np.asarray(clipped.tree, np.float64)) <= 1.0


def test_a_bad_traced_clipping_norm_gives_nan_noise():
    @jax.jit
    def intact(clipping_norm):
        return clipping.clipped_grad(linear, clipping_norm)(W, jnp.ones((2, 3)))[0].is_intact()

    assert [bool(intact(c)) for c in (1.0, 1e-8, 1e17)] == [True] * 3
    bad = (0.0, -1.0, jnp.nan, jnp.inf, 1e-9, 1e-30, 1e19)
    assert [bool(intact(c)) for c in bad] == [False] * len(bad)


def test_entries_whose_squares_vanish_hide_nothing_beside_the_smallest_norm():
    """1e6 entries of 1e-20 have norm 1e-17, and float32 squares of 0: nothing beside 1e-8."""
    x = jnp.full((1, 10**6), 1e-20, jnp.float32)
    clipped, _ = clipping.clipped_grad(linear, 1e-8)(jnp.zeros(10**6), x)
    assert np.linalg.norm(np.asarray(clipped.tree, np.float64)) <= 1e-8


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("engine", [clipping.Vmap(), clipping.Microbatched(1, clipping.Vmap())])
def test_the_norm_is_that_of_the_numbers_that_are_summed(engine, dtype):
    """XLA may skip a rounding to half precision in one place only: contributions of 1.003 C were seen."""

    def loss_fn(w, x):
        return (w * x[0] * w * x[1] + jnp.tanh(w * x[2])).sum()

    program = jax.jit(lambda w, x: clipping.clipped_grad(loss_fn, 1e-3, engine=engine)(w, x)[0])
    rng = np.random.default_rng(1)
    for _ in range(300):
        w, x = (jnp.asarray(rng.normal(size=s), dtype) for s in ((4,), (1, 3)))
        total = np.asarray(program(w, x).tree, np.float64)
        assert np.linalg.norm(total) <= 1e-3


def test_auto_s_by_hand():
    """C g / (|g| + gamma) with C = 2, gamma = 0.5: norms 5 and 1 become 2*5/5.5 and 2*1/1.5."""
    x = jnp.array([[3.0, 4.0], [0.0, 1.0]])
    grad_fn = clipping.auto_clipped_grad(linear, 2.0, stability=0.5)
    np.testing.assert_allclose(
        grad_fn(jnp.zeros(2), x)[0].tree, [6 / 5.5, 8 / 5.5 + 2 / 1.5], rtol=2e-6
    )


def test_parts_of_one_draw_add_up():
    x = normal(6, 3) * 2
    grad_fn = clipping.clipped_grad(linear, 1.0, denominator=6.0)
    whole, _ = grad_fn(W, x)
    parts = grad_fn(W, x[:4])[0] + grad_fn(W, x[4:])[0]
    np.testing.assert_allclose(parts.tree, whole.tree, rtol=1e-6)
    assert parts.sensitivity == whole.sensitivity
    assert parts.denominator == 6.0


def test_one_trace_for_many_values_and_jit_equals_eager():
    traces = []

    def loss_fn(w, x):
        traces.append(None)
        return linear(w, x)

    grad_fn = clipping.clipped_grad(loss_fn, 1.0)
    x = normal(4, 3)
    eager = grad_fn(W, x)[0].tree
    seen = len(traces)
    for scale in (2.0, 3.0):
        grad_fn(W, scale * x)
    assert len(traces) == seen
    np.testing.assert_array_equal(jax.jit(grad_fn)(W, x)[0].tree, eager)


def test_float64_parameters_keep_float64_sums():
    with jax.enable_x64(True):
        w, x = jnp.zeros(2, jnp.float64), jnp.array([[1e-9 + 1.0, 0.0]], jnp.float64)
        clipped, _ = clipping.clipped_grad(linear, 2.0)(w, x)
        assert clipped.tree.dtype == jnp.float64
        assert clipped.tree[0] == x[0, 0]
