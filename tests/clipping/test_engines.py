"""One contract for every engine, on every kind of loss: the sums and norms of plain per-example gradients.

The oracle is four lines of numpy in float64 on `jax.grad`, one example at a time.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clipping_models import PLAIN, cancelling, normal
from fast_jit import fast_jit
from jax import lax

from opake_jax import clipping
from opake_jax.clipping._ghost._cost import Machine

# Prices that force each way of computing a norm wherever it can be used.
ENGINES = {
    "ghost": clipping.Ghost(),
    "ghost gram": clipping.Ghost(machine=Machine(1e9, 1e9, 0)),
    "ghost keep": clipping.Ghost(machine=Machine(0.0, 0.0, 0)),
    "ghost drop": clipping.Ghost(memory_limit=0, machine=Machine(0.0, 0.0, 0)),
    "two backward": clipping.Ghost(machine=Machine(1e9, 1e9, 0), second_backward=True),
    "vmap": clipping.Vmap(),
    "auto": clipping.Auto(),
    "microbatched": clipping.Microbatched(2, clipping.Vmap()),
    "microbatched ghost": clipping.Microbatched(2, clipping.Ghost(machine=Machine(1e9, 1e9, 0))),
    "microbatched 1": clipping.Microbatched(1, clipping.Ghost()),
    "chunked": clipping.Chunked(2, clipping.Ghost()),
}
# The covering subset: each rewriting rule once with the way that has most to get wrong, each engine on a weight used thrice.
RULES = (
    "mlp",
    "cnn strided dilated",
    "rnn",
    "decay on table",
    "views",
    "heads",
    "cropped",
)
LOOPS = ("transformer scan remat", "nested loops")
QUICK = {("ghost gram", name) for name in RULES} | {(name, "twice") for name in ENGINES}
QUICK |= {("two backward", name) for name in LOOPS}
# Slow: all models with each engine that rewrites the model in a way of its own. What cuts the batch, or maps the plain
# gradient over it, does not look into the model.
PRODUCT = ("ghost", "ghost gram", "ghost drop", "two backward")
QUICK |= {(e, m) for e in ("microbatched ghost", "vmap") for m in ("mlp", "nested loops")}
# Each engine once as it ships as well: on one weight used thrice.
MARKS = {"twice": pytest.mark.as_shipped}
ALL = [
    pytest.param(
        e, m, marks=MARKS.get(m, ()) if (e, m) in QUICK else pytest.mark.slow, id=f"{e}-{m}"
    )
    for e in ENGINES
    for m in PLAIN
    if e in PRODUCT or (e, m) in QUICK
]


@functools.cache
def oracle(name):
    """Returns (loss_fn, params, batch, clipping norm, sum in float64, norms, losses)."""
    make = PLAIN[name] if name in PLAIN else frameworks()[name]
    loss_fn, params, batch = make()
    return (loss_fn, params, batch, *reference(loss_fn, params, batch))


def frameworks():
    from clipping_frameworks import FRAMEWORKS

    return FRAMEWORKS


def reference(loss_fn, params, batch):
    """Clips at the median norm, so that some gradients are clipped and some are not."""
    one = fast_jit(jax.value_and_grad(loss_fn))
    batch = jax.tree.map(np.asarray, batch)
    found = [one(params, jax.tree.map(lambda x, i=i: x[i], batch)) for i in range(count(batch))]
    rows = [[np.asarray(g, np.float64) for g in jax.tree.leaves(grad)] for _, grad in found]
    norms = np.array([np.sqrt(sum((g**2).sum() for g in row)) for row in rows])
    clipping_norm = float(np.float32(np.median(norms)))
    factors = np.minimum(1.0, clipping_norm / norms)
    sums = [
        sum(c * g for c, g in zip(factors, leaf, strict=True)) for leaf in zip(*rows, strict=True)
    ]
    return clipping_norm, sums, norms, [float(value) for value, _ in found]


def count(batch):
    return len(jax.tree.leaves(batch)[0])


def assert_same(clipped, aux, sums, norms, tolerance=1e-5):
    np.testing.assert_allclose(aux.grad_norm, norms, rtol=tolerance)
    largest = max(np.abs(s).max() for s in sums)
    for got, expected in zip(jax.tree.leaves(clipped.tree), sums, strict=True):
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize(("engine", "model"), ALL)
def test_every_engine_computes_the_sum_of_clipped_gradients(engine, model):
    loss_fn, params, batch, clipping_norm, sums, norms, losses = oracle(model)
    grad_fn = clipping.clipped_grad(loss_fn, clipping_norm, engine=ENGINES[engine])
    call = grad_fn if model == "twice" else fast_jit(grad_fn)
    clipped, aux = call(params, batch)
    assert_same(clipped, aux, sums, norms)
    np.testing.assert_allclose(aux.loss, losses, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ghost", "ghost gram", "ghost drop", "microbatched"])
@pytest.mark.parametrize(
    "model",
    ["linen attention", "linen convolutions", "linen lstm", "nnx lora", "equinox mlp"],
)
def test_every_framework(engine, model):
    loss_fn, params, batch, clipping_norm, sums, norms, _ = oracle(model)
    grad_fn = clipping.clipped_grad(loss_fn, clipping_norm, engine=ENGINES[engine])
    clipped, aux = fast_jit(grad_fn)(params, batch)
    assert_same(clipped, aux, sums, norms)


@pytest.mark.parametrize(
    "engine", ["ghost gram", "ghost drop", "two backward", "vmap", "microbatched ghost", "chunked"]
)
def test_padding_and_nonfinite_rows_are_exact_zeros_in_every_engine(engine):
    """Also when pad rows hold NaN or 1e6, and when a real row is not finite: the sum is the oracle's of three rows, and the same to the bit."""
    loss_fn, params, batch, clipping_norm, sums, norms, _ = oracle("twice")
    grad_fn = clipping.clipped_grad(loss_fn, clipping_norm, engine=ENGINES[engine])
    found = []
    for fill, real in ((0.0, 3), (1e6, 3), (np.nan, 3), (np.inf, 3), (np.nan, 6)):
        more = np.concatenate([batch, np.full((3, *batch.shape[1:]), fill, np.float32)])
        clipped, aux = grad_fn(params, jnp.asarray(more), mask=jnp.arange(6) < real)
        assert_same(clipped, aux._replace(grad_norm=aux.grad_norm[:3]), sums, norms)
        assert np.isnan(aux.grad_norm[3:]).all() or real == 6
        assert np.isinf(aux.grad_norm[3:]).all() or real == 3
        found.append([np.asarray(x) for x in jax.tree.leaves(clipped.tree)])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("engine", ["ghost gram", "ghost drop", "two backward", "vmap"])
def test_a_gradient_that_nearly_cancels_keeps_the_bound(engine):
    """The clipped gradient of one row, its norm in float64; a Gram norm without its error bound fails this."""
    loss_fn, params, batch = cancelling()
    grad_fn = jax.jit(clipping.clipped_grad(loss_fn, 1e-3, engine=ENGINES[engine]))
    for i in range(len(batch)):
        clipped, _ = grad_fn(params, batch[i : i + 1])
        assert np.linalg.norm(np.asarray(clipped.tree, np.float64)) <= np.float32(1e-3)


@pytest.mark.as_shipped
@pytest.mark.parametrize(
    "engine",
    [
        "ghost gram",
        pytest.param("two backward", marks=pytest.mark.slow),
        pytest.param("microbatched ghost", marks=pytest.mark.slow),
    ],
)
def test_examples_are_independent(engine):
    """Changing row 2 changes the sum by the change of row 2's own contribution and nothing else."""
    loss_fn, params, batch = PLAIN["rnn"]()
    grad_fn = clipping.clipped_grad(loss_fn, 0.1, engine=ENGINES[engine])
    other = jax.tree.map(lambda x: x.at[2].set(x[0]), batch)
    first = jnp.arange(3) < 2
    a, _ = grad_fn(params, batch, mask=first)
    b, _ = grad_fn(params, other, mask=first)
    for x, y in zip(jax.tree.leaves(a.tree), jax.tree.leaves(b.tree), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("engine", ["ghost gram", "ghost drop", "two backward"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_operands_have_float32_norms_and_sums(engine, dtype):
    """Against float64 on the same half-precision operands: an exact product of a row and a column."""
    rng = np.random.default_rng(0)
    w = jnp.zeros((6, 4), dtype)
    x = jnp.asarray(rng.normal(size=(3, 5, 6)) * 300, dtype)  # fp16 squares overflow
    g = jnp.asarray(rng.normal(size=(5, 4)), dtype)
    loss_fn = lambda w, x: jnp.sum((x @ w) * g, dtype=jnp.float32)  # noqa: E731
    clipped, aux = clipping.clipped_grad(loss_fn, 2.0, engine=ENGINES[engine])(w, x)
    exact = np.einsum("bkm,kn->bmn", np.asarray(x, np.float64), np.asarray(g, np.float64))
    norms = np.sqrt((exact**2).sum((1, 2)))
    np.testing.assert_allclose(aux.grad_norm, norms, rtol=1e-5)
    expected = np.einsum("b,bmn->mn", np.minimum(1, 2 / norms), exact)
    assert clipped.tree.dtype == jnp.float32
    np.testing.assert_allclose(clipped.tree, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "size"), [(10, 4), (28, 16), (1, 16)])
@pytest.mark.parametrize("make", [clipping.Microbatched, clipping.Chunked])
def test_r11_a_part_need_not_divide_the_batch(rows, size, make):
    x = normal(rows, 3) * 2
    loss_fn = lambda w, x: jnp.vdot(w, x)  # noqa: E731
    whole, _ = clipping.clipped_grad(loss_fn, 1.0, engine=clipping.Vmap())(jnp.ones(3), x)
    parts, aux = clipping.clipped_grad(loss_fn, 1.0, engine=make(size))(jnp.ones(3), x)
    np.testing.assert_allclose(parts.tree, whole.tree, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(aux.grad_norm, np.linalg.norm(x, axis=1), rtol=1e-5)


@pytest.mark.parametrize("engine", ["vmap", "ghost", "microbatched 1", "microbatched", "chunked"])
def test_r17_keys_do_not_depend_on_the_engine(engine):
    def loss_fn(w, x, key):
        return jnp.vdot(w, jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.0))

    key, mask = jax.random.key(5, impl="threefry2x32"), jnp.array([True, False, True, True, True])
    clipped, _ = clipping.clipped_grad(loss_fn, 100.0, engine=ENGINES[engine])(
        jnp.zeros(16), jnp.ones((5, 16)), mask=mask, key=key
    )
    kept = [
        jax.random.bernoulli(jax.random.fold_in(key, i), 0.5, (16,)) for i in range(5) if mask[i]
    ]
    assert clipped.tree.tolist() == sum(k.astype(float) for k in kept).tolist()


def test_chunked_refuses_to_run_inside_jit_and_compiles_once():
    loss_fn, params, batch = PLAIN["mlp"]()
    grad_fn = clipping.clipped_grad(loss_fn, 1.0, engine=clipping.Chunked(2))
    with pytest.raises(ValueError, match="host loop"):
        jax.jit(grad_fn)(params, batch)
    traces = []
    counted = clipping.clipped_grad(
        lambda p, x: (traces.append(None), loss_fn(p, x))[1], 1.0, engine=clipping.Chunked(2)
    )
    counted(params, np.asarray(batch))
    seen = len(traces)
    for rows in (1, 2, 3):
        counted(params, np.asarray(batch)[:rows])
    assert len(traces) == seen


@pytest.mark.parametrize("make", [clipping.Microbatched, clipping.Chunked])
def test_bad_sizes_are_refused(make):
    for size in (0, -1, 1.5, True, "4", None, float("nan")):
        with pytest.raises((TypeError, ValueError), match="size"):
            make(size)
    with pytest.raises(TypeError, match="engine"):
        make(4, clipping.Chunked(2))


@pytest.mark.slow
@pytest.mark.as_shipped
def test_r15_memory_scales_with_the_microbatch():
    """MLP of 0.27 M parameters, 64 rows: all copies take 69 MB; ghost takes none of them."""
    params = {"a": jnp.zeros((256, 512)), "b": jnp.zeros((512, 256))}
    loss_fn = lambda p, x: jnp.sum(jnp.square(jnp.tanh(x @ p["a"]) @ p["b"]))  # noqa: E731
    x = jnp.ones((64, 256))
    size = 4 * 2 * 256 * 512

    def temp(engine):
        grad_fn = clipping.clipped_grad(loss_fn, 1.0, engine=engine)
        call = jax.jit(lambda p, x: grad_fn(p, x)[0].tree).lower(params, x).compile()
        return call.memory_analysis().temp_size_in_bytes

    assert temp(clipping.Vmap()) >= 64 * size
    assert temp(clipping.Microbatched(4, clipping.Vmap())) <= 4 * size * 3
    assert temp(clipping.Ghost()) <= 3 * size


@pytest.mark.slow
@pytest.mark.as_shipped
def test_two_backward_passes_have_the_memory_of_the_plain_step():
    """Eight recomputed layers, 16 rows: one layer's values are there at a time; book-keeping holds those of all."""
    params = jnp.zeros((8, 64, 64))
    layer = jax.checkpoint(lambda x, w: (jnp.tanh(jnp.tanh(x @ w) @ w.T), None))
    loss_fn = lambda p, x: jnp.sum(lax.scan(layer, x, p)[0])  # noqa: E731
    x = jnp.ones((16, 64, 64))

    def temp(function):
        return jax.jit(function).lower(params, x).compile().memory_analysis().temp_size_in_bytes

    def of(engine):
        grad_fn = clipping.clipped_grad(loss_fn, 1.0, engine=engine)
        return temp(lambda p, x: grad_fn(p, x)[0].tree)

    plain = temp(jax.grad(lambda p, x: jnp.sum(jax.vmap(loss_fn, (None, 0))(p, x))))
    assert of(clipping.Ghost(second_backward=True)) <= 1.5 * plain
    assert of(clipping.Ghost()) >= 2 * plain


@pytest.mark.parametrize("engine", ["vmap", "ghost gram", "auto"])
def test_a_loop_of_no_steps_adds_nothing(engine):
    w = jax.random.normal(jax.random.key(0), (4, 4))

    def loss_fn(w, x):
        end, _ = jax.lax.scan(lambda c, _: (w @ c, None), x, None, length=0)
        return jnp.sum(end) + jnp.sum(jnp.sin(w @ x))

    x = jax.random.normal(jax.random.key(1), (3, 4))
    chosen = ENGINES.get(engine, clipping.Auto())
    clipped, _ = clipping.clipped_grad(loss_fn, 1.0, engine=chosen)(w, x)
    expected, _ = clipping.clipped_grad(loss_fn, 1.0, engine=clipping.Vmap())(w, x)
    np.testing.assert_allclose(clipped.tree, expected.tree, rtol=1e-5, atol=1e-6)
