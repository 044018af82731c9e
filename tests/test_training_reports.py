"""Reports of users of other tools about a whole training step (tests/README.md maps every report)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from opake_jax import dpsgd
from opake_jax.clipping import Auto, Chunked, Ghost, Microbatched, Vmap, clipped_grad
from opake_jax.noise import gaussian_noise
from opake_jax.random import key
from opake_jax.types import ClippedSum


def linear(params, example):
    return jnp.vdot(params["w"], example)


@pytest.mark.parametrize(("rows", "size"), [(10, 4), (28, 16), (1, 16), (5, 5)])
@pytest.mark.parametrize("engine", [Microbatched, Chunked])
def test_no_example_is_lost_when_the_microbatch_does_not_divide_the_batch(rows, size, engine):
    """R11: batch 10 in pieces of 4 sums as a batch of 10 does."""
    batch = jnp.asarray(np.random.default_rng(0).normal(size=(rows, 7)), jnp.float32)
    params = {"w": jnp.zeros(7)}
    whole, _ = clipped_grad(linear, 1.0, engine=Vmap())(params, batch)
    parts, aux = clipped_grad(linear, 1.0, engine=engine(size))(params, batch)
    np.testing.assert_allclose(parts.tree["w"], whole.tree["w"], rtol=1e-6, atol=1e-6)
    assert aux.grad_norm.shape == (rows,)


def mlp(params, example):
    x, y = example
    return jnp.sum((jnp.tanh(x @ params["a"]) @ params["b"] - y) ** 2)


def temporary_bytes(engine, params, batch):
    grad_fn = clipped_grad(mlp, 1.0, engine=engine)
    compiled = jax.jit(lambda p, b: grad_fn(p, b)[0]).lower(params, batch).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.as_shipped
def test_memory_follows_the_microbatch_and_ghost_needs_no_copies():
    """R15: 256 copies of 1e6 float32 parameters are 1 GiB; eight are 32 MB; ghost holds none."""
    params = {"a": jnp.zeros((500, 1000)), "b": jnp.zeros((1000, 500))}
    batch = (jnp.ones((256, 500)), jnp.ones((256, 500)))
    copies = 256 * 4e6
    assert temporary_bytes(Vmap(), params, batch) > 0.9 * copies  # the fault, seen
    assert temporary_bytes(Microbatched(8, engine=Vmap()), params, batch) < 0.15 * copies
    assert temporary_bytes(Ghost(), params, batch) < 0.05 * copies
    assert temporary_bytes(Auto(), params, batch) < 0.05 * copies


@pytest.mark.slow
@pytest.mark.as_shipped
def test_a_dense_layer_on_many_positions_stays_within_its_gradients():
    """R15: 3072 -> 768 on 128 positions, eight rows: 75 MB of gradients; a bad contraction takes 9.7 GB."""

    def loss(params, x):
        return jnp.sum(jnp.tanh(x @ params["w"]))

    params, batch = {"w": jnp.zeros((3072, 768))}, jnp.ones((8, 128, 3072))
    for engine in (Vmap(), Ghost(), Auto()):
        grad_fn = clipped_grad(loss, 1.0, engine=engine)
        compiled = jax.jit(lambda p, b, f=grad_fn: f(p, b)[0]).lower(params, batch).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < 2e8, engine


def test_rows_of_an_embedding_that_no_example_used_get_full_noise():
    """R16: V = 50,000, d = 64, B = 32; std sigma C / B_exp on 3.2 M entries (5 standard errors)."""

    def loss(params, tokens):
        return jnp.sum(params["table"][tokens] ** 2)

    params = {"table": jnp.full((50_000, 64), 0.01)}
    tokens = jnp.arange(32 * 4).reshape(32, 4)
    clipped, _ = clipped_grad(loss, 1.0, denominator=32.0, engine=Ghost())(params, tokens)
    tx = gaussian_noise(1.0, key=key(0))
    updates, _ = tx.update(clipped, tx.init(params))
    untouched = updates["table"][128:]
    expected = 1 / 32
    tolerance = 5 / np.sqrt(2 * untouched.size)
    assert float(jnp.std(untouched)) == pytest.approx(expected, rel=tolerance)
    assert not np.any(np.asarray(jnp.all(untouched == 0, axis=1)))


def test_microbatch_sums_of_one_draw_take_one_noise():
    """R22: four parts of 16: one draw, std 1/64 = 0.015625; noise before accumulating gives twice that."""
    size = 200_000
    params = {"w": jnp.zeros(size)}
    grad_fn = clipped_grad(linear, 1.0, denominator=64.0)
    tx = gaussian_noise(1.0, key=key(0))
    state = tx.init(params)
    zeros = jnp.zeros((4, size))
    total = grad_fn(params, zeros)[0]
    for _ in range(3):
        total = total + grad_fn(params, zeros)[0]
    updates, state = tx.update(total, state, params)
    tolerance = 5 / np.sqrt(2 * size)
    assert float(jnp.std(updates["w"])) == pytest.approx(1 / 64, rel=tolerance)
    assert int(state.count) == 1


def test_parts_of_a_batch_add_up_to_the_batch():
    """R22: accumulating clipped sums over k calls, then one noise, is one batch."""
    batch = jnp.asarray(np.random.default_rng(1).normal(size=(64, 5)), jnp.float32)
    params = {"w": jnp.zeros(5)}
    grad_fn = clipped_grad(linear, 1.0, denominator=64.0)
    whole = grad_fn(params, batch)[0]
    parts = [grad_fn(params, batch[i : i + 16])[0] for i in range(0, 64, 16)]
    total = parts[0] + parts[1] + parts[2] + parts[3]
    tx = gaussian_noise(1.0, key=key(2))
    a, _ = tx.update(whole, tx.init(params), params)
    b, _ = tx.update(total, tx.init(params), params)
    np.testing.assert_allclose(a["w"], b["w"], atol=1e-6)


def test_accumulating_after_the_noise_is_refused_where_it_can_be_seen():
    """R22: `optax.MultiSteps` around the noise would add noise for each part: its inner sums are no ClippedSum."""
    params = {"w": jnp.zeros(3)}
    tx = optax.MultiSteps(gaussian_noise(1.0, key=key(0)), every_k_schedule=2)
    clipped = ClippedSum({"w": jnp.ones(3)}, 1.0, 4.0)
    with pytest.raises((TypeError, ValueError, AttributeError)):
        tx.update(clipped, tx.init(params), params)


@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), ("float16", "float32")])
def test_dtypes_stay_fixed_through_a_scan_with_donation(dtypes):
    """R41: five DP steps with adam under lax.scan; the carry keeps its dtypes, and one compile serves."""
    params = {"a": jnp.ones(4, dtypes[0]), "b": jnp.ones(4, dtypes[1])}
    plan = dpsgd.plan(
        dataset_size=100,
        expected_batch_size=10,
        num_steps=10,
        clipping_norm=1.0,
        noise_multiplier=1.0,
        delta=1e-5,
        capacity=100,
    )

    def loss(params, x):
        return jnp.sum(params["a"] * x.astype(params["a"].dtype)).astype(jnp.float32) + jnp.sum(
            params["b"] * x.astype(params["b"].dtype)
        ).astype(jnp.float32)

    grad_fn = plan.clipped_grad(loss)
    tx = plan.optimizer(optax.adam(1e-2), key(0))
    data = jnp.asarray(np.random.default_rng(1).normal(size=(100, 4)), jnp.float32)
    traces = []

    def run(carry):
        traces.append(1)

        def step(carry, number):
            params, state = carry
            indices, mask = plan.sampler.sample(jax.random.wrap_key_data(words), number)
            clipped, _ = grad_fn(params, data[indices], mask=mask)
            updates, state = tx.update(clipped, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, carry, jnp.arange(5, dtype=jnp.uint32))[0]

    words = jnp.zeros(2, jnp.uint32)
    jitted = jax.jit(run, donate_argnums=0)
    carry = jitted((params, tx.init(params)))
    again = jitted(carry)
    assert len(traces) == 1
    assert [str(again[0][n].dtype) for n in "ab"] == list(dtypes)
    assert all(bool(jnp.all(jnp.isfinite(again[0][n].astype(jnp.float32)))) for n in "ab")
