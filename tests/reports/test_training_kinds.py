"""The kinds of fault that the reports stand for, beyond their inputs: other shapes, dtypes, engines, under jit and vmap.

tests/README.md maps each report to its kind's property; most of them are tests of the rooms.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opake_jax import accounting, clipping, dpsgd
from opake_jax.noise import gaussian_noise, paired_adam
from opake_jax.random import key
from opake_jax.sampling import ParallelPoissonSampler
from opake_jax.types import ClippedSum

ENGINES = {
    "vmap": clipping.Vmap(),
    "ghost": clipping.Ghost(),
    "auto": clipping.Auto(),
    "parts": clipping.Microbatched(2, clipping.Ghost()),
    "chunked": clipping.Chunked(2),
}


def few(examples):
    return settings(max_examples=examples, derandomize=True, database=None, deadline=None)


def linear(w, x):
    return jnp.vdot(w, x)


@pytest.mark.parametrize("workers", [2, 5])
def test_workers_of_any_number_share_no_draw(workers):
    """R04, over 4 keys and 200 steps: agreements of two workers are those of independent draws (5 standard errors)."""
    size, rate = 30, 0.3
    sampler = ParallelPoissonSampler(size, rate, workers)
    draw = jax.jit(jax.vmap(sampler.sample, (None, 0)))
    taken = []
    for seed in range(4):
        indices, mask = map(np.asarray, draw(key(seed), jnp.arange(200, dtype=jnp.uint32)))
        one_hot = np.zeros((200, workers, size), bool)
        rows = np.repeat(np.arange(workers), sampler.capacity)
        for step in range(200):
            one_hot[step, rows[mask[step]], indices[step][mask[step]]] = True
        taken.append(one_hot)
    taken = np.concatenate(taken)
    centred = taken - rate
    for a in range(workers):
        for b in range(a):
            z = (centred[:, a] * centred[:, b]).sum() / (rate * (1 - rate) * (800 * size) ** 0.5)
            assert abs(z) < 5
    assert len({x.tobytes() for x in taken}) == 800


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sequence_of_any_length_counts_as_it_does_alone(engine):
    """R09: lengths 1 to 9 in one padded batch; each gradient is that of the sequence by itself, whatever the padding holds."""
    rng = np.random.default_rng(0)
    lengths = np.arange(1, 10)
    tokens = rng.normal(size=(9, 9, 3)).astype(np.float32)
    real = np.arange(9) < lengths[:, None]

    def loss(w, example):
        x, m = example
        return jnp.sum(jnp.where(m, x @ w, 0.0)) / jnp.sum(m)

    clipped, aux = clipping.clipped_grad(loss, 0.4, engine=ENGINES[engine])(
        jnp.ones(3), (np.where(real[..., None], tokens, 1e6), real)
    )
    alone = np.stack([t[m].mean(0) for t, m in zip(tokens, real, strict=True)])
    norms = np.linalg.norm(alone, axis=1)
    np.testing.assert_allclose(aux.grad_norm, norms, rtol=1e-5)
    expected = (alone * np.minimum(1, 0.4 / norms)[:, None]).sum(0)
    np.testing.assert_allclose(clipped.tree, expected, rtol=1e-5, atol=1e-6)


@few(40)
@given(
    shape=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    dtype=st.sampled_from(["float32", "bfloat16", "int32", "bool", "complex64"]),
    engine=st.sampled_from(sorted(ENGINES)),
)
def test_a_loss_of_any_other_shape_or_dtype_is_refused(shape, dtype, engine):
    """R10: at trace time, with the shape and dtype that came out."""

    def loss(w, x):
        return jnp.full(shape, jnp.sum(w) * jnp.sum(x)).astype(dtype)

    grad_fn = clipping.clipped_grad(loss, 1.0, engine=ENGINES[engine])
    call = lambda: grad_fn(jnp.ones(2), jnp.ones((3, 2)))  # noqa: E731
    if shape == () and dtype in ("float32", "bfloat16"):
        assert engine == "chunked" or jax.eval_shape(call)[0].tree.dtype == np.float32
        return
    with pytest.raises(ValueError, match=rf"got {dtype} of shape"):
        call()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_parts_of_any_size_lose_no_row_and_count_none_twice(size):
    """R11: batches of 1 to 8 rows, any mask; row i is 10^i, so that the sum tells which rows were counted, and how often."""
    grad_fn = clipping.clipped_grad(lambda w, x: w * x, 1e9, engine=clipping.Chunked(size))
    rng = np.random.default_rng(size)
    for rows in range(1, 9):
        mask = rng.random(rows) < 0.7
        digits = np.float32(10.0) ** np.arange(rows, dtype=np.float32)
        clipped, aux = grad_fn(jnp.float32(1.0), digits, mask=mask)
        np.testing.assert_allclose(clipped.tree, digits[mask].sum(), rtol=1e-6)
        np.testing.assert_allclose(aux.grad_norm, np.where(mask, digits, np.nan), rtol=1e-6)


@few(24)
@given(
    engine=st.sampled_from(sorted(ENGINES)), has_aux=st.booleans(), masked=st.booleans(), second=st.booleans(),
    groups=st.booleans(), rows=st.sampled_from([1, 2, 5]),
)  # fmt: skip
def test_what_comes_back_has_one_shape_for_every_option(
    engine, has_aux, masked, second, groups, rows
):
    """R12: (B,) or (B, G), never an axis or a level more, by tracing alone."""

    def loss(p, x):
        value = linear(p["a"], x) + linear(p["b"], x)
        return (value, {"x": x, "n": jnp.int32(1)}) if has_aux else value

    norm = clipping.per_group({"a": 1.0, "b": 1.0}) if groups else 1.0
    chosen = ENGINES[engine] if engine != "chunked" else clipping.Microbatched(2)
    grad_fn = clipping.clipped_grad(
        loss, norm, engine=chosen, has_aux=has_aux, second_moment=1.0 if second else None
    )
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    mask = np.ones(rows, bool) if masked else None
    clipped, aux = jax.eval_shape(lambda: grad_fn(params, np.ones((rows, 2)), mask=mask))
    assert aux.loss.shape == (rows,)
    assert aux.grad_norm.shape == ((rows, 2) if groups else (rows,))
    shapes = jax.tree.map(lambda x: x.shape, aux.aux)
    assert shapes == ({"x": (rows, 2), "n": (rows,)} if has_aux else None)
    assert jax.tree.structure(clipped.tree.first if second else clipped.tree) == jax.tree.structure(
        params
    )


@pytest.mark.parametrize(
    ("frozen", "engine"), [("", "ghost"), ("b", "ghost"), ("ac", "vmap"), ("bcd", "parts")]
)
def test_any_choice_of_frozen_leaves_is_a_closure_over_them(frozen, engine):
    """R18: norm, sum and noise are those of the function of the other leaves alone."""
    rng = np.random.default_rng(1)
    params = {n: jnp.asarray(rng.normal(size=3), jnp.float32) for n in "abcd"}
    rest = {n: p for n, p in params.items() if n not in frozen}

    def loss(p, x):
        return linear(p["a"], x) * linear(p["b"], x) + linear(p["c"], x) * linear(p["d"], x)

    x = jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)
    flags = {n: n not in frozen for n in params}
    clipped, aux = clipping.clipped_grad(loss, 0.3, trainable=flags, engine=ENGINES[engine])(
        params, x
    )
    alone, expected = clipping.clipped_grad(lambda p, x: loss(params | p, x), 0.3)(rest, x)
    np.testing.assert_allclose(aux.grad_norm, expected.grad_norm, rtol=1e-5)
    tx = gaussian_noise(1.0, key=key(0))
    update, _ = tx.update(clipped, tx.init(clipped.tree))
    for name in params:
        if name in frozen:
            assert update[name] is None
        else:
            np.testing.assert_allclose(clipped.tree[name], alone.tree[name], rtol=1e-5, atol=1e-6)
            assert not np.array_equal(update[name], clipped.tree[name])


NO_FLOATS = ["bool", "int8", "uint8", "int16", "int32", "uint32", "complex64"]


@pytest.mark.parametrize("dtype", NO_FLOATS)
@pytest.mark.parametrize("engine", ["ghost", "chunked"])
def test_a_leaf_of_any_dtype_without_gradient_is_named_wherever_it_lies(dtype, engine):
    """R19, also under jit: nothing passes through an update unseen."""
    leaf = jnp.ones(2, dtype)
    for params, path in (
        ([jnp.ones(2), (leaf,)], r"params\[1\]\[0\]"),
        ({"a": {"b": [jnp.ones(2), leaf]}}, r"params\['a'\]\['b'\]\[1\]"),
        (leaf, "params"),
    ):
        grad_fn = clipping.clipped_grad(
            lambda p, x: linear(jax.tree.leaves(p)[0].real.astype(jnp.float32), x),
            1.0,
            engine=ENGINES[engine],
        )
        for call in (grad_fn, jax.jit(grad_fn)):
            with pytest.raises(TypeError, match=rf"^{path} is {dtype}.*freeze it"):
                call(params, jnp.ones((3, 2)))


@few(10)
@given(cuts=st.lists(st.integers(0, 12), max_size=3), engine=st.sampled_from(["ghost", "vmap"]))
def test_parts_of_a_draw_however_cut_take_the_noise_of_one(cuts, engine):
    """R22: the noisy update of the parts' sum is that of the whole, bit for bit in the noise, and one step is counted."""
    batch = np.asarray(jax.random.normal(key(1), (12, 5)))
    params = {"w": jnp.zeros(5)}
    grad_fn = clipping.clipped_grad(
        lambda p, x: linear(p["w"], x), 1.0, denominator=12.0, engine=ENGINES[engine]
    )
    edges = [0, *sorted(cuts), 12]
    total = None
    for low, high in itertools.pairwise(edges):
        mask = (np.arange(12) >= low) & (np.arange(12) < high)
        part = grad_fn(params, batch, mask=mask)[0]
        total = part if total is None else total + part
    tx = gaussian_noise(2.0, key=key(2))
    one, state = tx.update(total, tx.init(params))
    whole, _ = tx.update(grad_fn(params, batch)[0], tx.init(params))
    np.testing.assert_allclose(one["w"], whole["w"], atol=2e-6)
    assert int(state.count) == 1


@few(40)
@given(z=st.floats(0.05, 20), factor=st.floats(0.51, 100), batch=st.floats(1, 1000))
def test_gradient_and_count_cost_one_gaussian_at_any_split(z, factor, batch):
    """R25: (C / sigma_g)^2 + (1/2 / sigma_c)^2 = 1 / z^2, read off the noise of the real sum's shares."""
    count_std = z * factor
    plan = dpsgd.plan(
        dataset_size=1000, expected_batch_size=batch, num_steps=1, clipping_norm=1.0, noise_multiplier=z, delta=1e-5,
        capacity=1000, adaptive=dpsgd.AdaptiveClipping(count_noise_std=count_std),
    )  # fmt: skip
    grad_fn = plan.adaptive_clipped_grad(linear)
    shares = np.asarray(grad_fn._shares, np.float64)
    sigma_gradient, sigma_count = z / np.sqrt(shares[0]), z * 0.5 / np.sqrt(shares[1])
    assert sigma_count == pytest.approx(count_std, rel=1e-6)
    assert sigma_gradient == pytest.approx(
        accounting.gradient_noise_multiplier(z, count_std), rel=1e-6
    )
    assert sigma_gradient**-2 + (0.5 / sigma_count) ** 2 == pytest.approx(z**-2, rel=1e-6)


OPTIMIZERS = {
    "sgd": optax.sgd(0.1, momentum=0.9), "adam": optax.adam(0.1), "adamw": optax.adamw(0.1), "rmsprop": optax.rmsprop(0.1),
    "paired": paired_adam(0.1, floor=1e-3),
}  # fmt: skip


@few(40)
@given(
    dtypes=st.lists(st.sampled_from(["float32", "bfloat16", "float16"]), min_size=1, max_size=3),
    name=st.sampled_from(sorted(OPTIMIZERS)), engine=st.sampled_from(["ghost", "vmap", "parts"]),
)  # fmt: skip
def test_a_step_maps_its_carry_to_its_own_dtypes(dtypes, name, engine):
    """R41, by tracing alone: shapes, dtypes and weak types of parameters and optimizer state are those that went in."""
    params = [jnp.zeros(3, dtype) for dtype in dtypes]
    second = 1.0 if name == "paired" else None
    tx = optax.chain(gaussian_noise(1.0, key=key(0)), OPTIMIZERS[name])
    grad_fn = clipping.clipped_grad(
        lambda p, x: sum(linear(w.astype(jnp.float32), x) for w in p),
        1.0,
        engine=ENGINES[engine],
        second_moment=second,
    )

    def step(carry):
        params, state = carry
        updates, state = tx.update(grad_fn(params, jnp.ones((2, 3)))[0], state, params)
        return optax.apply_updates(params, updates), state

    before = jax.eval_shape(lambda: (params, tx.init(params)))
    after = jax.eval_shape(step, before)
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)


@few(40)
@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=3),
    engine=st.sampled_from(sorted(ENGINES)),
)
def test_leaves_without_one_batch_axis_are_named_with_their_shapes(shapes, engine):
    """R42: any number of leaves of any shapes, before anything runs."""
    batch = {f"leaf{i}": np.ones(shape, np.float32) for i, shape in enumerate(shapes)}
    loss = lambda w, example: w * sum(jnp.sum(x) for x in example.values())  # noqa: E731
    grad_fn = clipping.clipped_grad(loss, 1.0, engine=ENGINES[engine])
    call = lambda: grad_fn(jnp.float32(1.0), batch)  # noqa: E731
    if all(shapes) and len({shape[0] for shape in shapes}) == 1:
        clipped = call()[0] if engine == "chunked" else jax.eval_shape(call)[0]
        assert isinstance(clipped, ClippedSum)
        return
    scalar = next((f"leaf{i}" for i, shape in enumerate(shapes) if not shape), None)
    with pytest.raises(ValueError, match=scalar or r"leaf0.*leaf1"):
        call()
