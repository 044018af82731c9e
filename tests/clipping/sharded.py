"""Run by test_sharded.py in a process of its own: python sharded.py DEVICES. Prints one line for each check that holds."""

import functools
import pathlib
import sys

import jax

jax.config.update("jax_num_cpu_devices", int(sys.argv[1]))
jax.config.update("jax_platforms", "cpu")
sys.path.append(str(pathlib.Path(__file__).parents[1]))

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from clipping_models import draw, normal, rnn, transformer  # noqa: E402
from fast_jit import fast_jit  # noqa: E402
from jax.sharding import AxisType, NamedSharding, PartitionSpec  # noqa: E402

from opake_jax import clipping  # noqa: E402
from opake_jax.clipping._ghost._cost import Machine  # noqa: E402
from opake_jax.random import key  # noqa: E402

DEVICES = int(sys.argv[1])
ROWS = 2 * DEVICES
SPLIT, SAME = PartitionSpec("d"), PartitionSpec()
MESH = jax.make_mesh((DEVICES,), ("d",), axis_types=(AxisType.Auto,))
GRAM = clipping.Ghost(machine=Machine(1e9, 1e9, 0))
ENGINES = {
    "vmap": clipping.Vmap(),
    "ghost": GRAM,
    "auto": clipping.Auto(),
    "microbatched": clipping.Microbatched(1, clipping.Ghost()),
}


def repeat(batch):
    """The model's few rows, over and over, each with tokens of its own."""
    return jax.tree.map(
        lambda x: (jnp.concatenate([x] * ROWS)[:ROWS] + jnp.arange(ROWS)[:, None]) % 7, batch
    )


def close(a, b, tolerance=1e-5):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * np.abs(y).max())


def in_shard_map(grad_fn, jit=fast_jit, check_vma=True):
    """Returns (params, batch, mask=all) -> sums and norms, the batch spread over the devices."""

    def local(params, batch, mask):
        clipped, aux = grad_fn(params, batch, mask=mask)
        return clipped.psum("d").tree, aux.grad_norm

    call = jax.shard_map(
        local,
        mesh=MESH,
        in_specs=(SAME, SPLIT, SPLIT),
        out_specs=(SAME, SPLIT),
        check_vma=check_vma,
    )
    program, everyone = jit(call), np.ones(ROWS, bool)
    return lambda params, batch, mask=everyone: program(params, batch, mask)


def check_r13():
    """jax#36886: plain vmap(grad) gives [1, 1] four times here."""
    x = jnp.array([[0.0, 1], [1, 1], [1, 0], [0, 0]])
    rows = jnp.concatenate([x] * ROWS)[:ROWS]
    for check_vma in (True, False):
        grad_fn = clipping.clipped_grad(lambda p, x: jnp.vdot(p, x), 10.0)
        total, norm = in_shard_map(grad_fn, check_vma=check_vma)(jnp.zeros(2), rows)
        np.testing.assert_allclose(total, rows.sum(0), rtol=1e-5)
        np.testing.assert_allclose(norm, np.linalg.norm(rows, axis=1), rtol=1e-5)


def check_shard_map():
    # A loop of recomputed layers on few devices, the same layers unrolled on many.
    layers = functools.partial(transformer, scan=DEVICES == 2, remat=DEVICES == 2)
    for make in (layers, rnn):
        loss_fn, params, batch = make()
        batch = repeat(batch)
        plain = clipping.clipped_grad(loss_fn, 0.3, engine=clipping.Vmap())
        one = fast_jit(plain)(params, batch)
        for name, engine in ENGINES.items():
            if make is rnn or name != "microbatched":
                grad_fn = clipping.clipped_grad(loss_fn, 0.3, engine=engine)
                # The loss's own scan starts from an array that is the same everywhere, which jax's types refuse.
                call = in_shard_map(grad_fn, check_vma=make is not rnn)
                total, norm = call(params, batch)
                close(total, one[0].tree)
                np.testing.assert_allclose(norm, one[1].grad_norm, rtol=1e-5)


def check_independence():
    """Rows on another device change, are padded or hold NaN; these rows' contribution stays, bit for bit."""
    loss_fn, params, batch = transformer()
    batch = repeat(batch)
    mine = jnp.arange(ROWS) < 2  # the first device's
    grad_fn = clipping.clipped_grad(loss_fn, 0.3, engine=GRAM)
    call = in_shard_map(grad_fn, jit=jax.jit)  # as it ships
    total, _ = call(params, batch, mine)
    other = jax.tree.map(lambda x: jnp.where(mine[:, None], x, 3), batch)
    changed, _ = call(params, other, mine)
    for a, b in zip(jax.tree.leaves(total), jax.tree.leaves(changed), strict=True):
        np.testing.assert_array_equal(a, b)


def check_nonfinite_on_one_device():
    x = normal(ROWS, 4).at[-1, 0].set(jnp.nan)
    w = draw(4, 4)
    grad_fn = clipping.clipped_grad(lambda w, x: jnp.sum(jnp.sin(x @ w)), 0.5, engine=GRAM)
    total, norm = in_shard_map(grad_fn)(w, x)
    close(total, grad_fn(w, x[:-1])[0].tree)
    assert np.isinf(norm).tolist() == [False] * (ROWS - 1) + [True]


def check_keys():
    """Each row's key depends on its place in the whole batch."""

    def loss_fn(w, x, key):
        return jnp.vdot(w, x * jax.random.normal(key, x.shape))

    grad_fn = clipping.clipped_grad(loss_fn, 1e3)
    x = jnp.ones((ROWS, 5))
    local = lambda w, x: grad_fn(w, x, key=key(1))[0].psum("d").tree  # noqa: E731
    call = jax.jit(jax.shard_map(local, mesh=MESH, in_specs=(SAME, SPLIT), out_specs=SAME))
    close(call(jnp.zeros(5), x), grad_fn(jnp.zeros(5), x, key=key(1))[0].tree)


def check_jit_with_sharded_batch():
    """R14: only all-reduces of parameter size, no gather, no shuffle of examples."""
    params = {"a": draw(16, 32), "b": draw(32, 8, seed=1)}
    loss_fn = lambda p, x: jnp.sum(jnp.square(jnp.tanh(x @ p["a"]) @ p["b"]))  # noqa: E731
    x = normal(8 * DEVICES, 16)
    expected = clipping.clipped_grad(loss_fn, 0.5, engine=clipping.Vmap())(params, x)[0].tree
    spread = jax.device_put(x, NamedSharding(MESH, SPLIT))
    for name, engine in {**ENGINES, "microbatched": clipping.Microbatched(DEVICES, GRAM)}.items():
        grad_fn = clipping.clipped_grad(loss_fn, 0.5, engine=engine)
        call = jax.jit(lambda p, x, f=grad_fn: f(p, x)[0].tree).lower(params, spread).compile()
        close(call(params, spread), expected)
        text = call.as_text()
        for word in ("all-gather", "all-to-all", "collective-permute"):
            assert word not in text, (name, word)


def check_explicit_mesh():
    mesh = jax.make_mesh((DEVICES,), ("d",), axis_types=(AxisType.Explicit,))
    w = draw(4, DEVICES)
    x = normal(ROWS, 3, 4)
    grad_fn = clipping.clipped_grad(lambda w, x: jnp.sum(jnp.sin(x @ w)), 0.5, engine=GRAM)
    expected = grad_fn(w, x)[0].tree
    with jax.set_mesh(mesh):
        put = lambda value, *spec: jax.device_put(value, NamedSharding(mesh, PartitionSpec(*spec)))  # noqa: E731
        for columns in (None, "d"):  # replicated, and the parameter spread too
            clipped, aux = jax.jit(grad_fn)(put(w, None, columns), put(x, "d"))
            close(clipped.tree, expected)
            assert jax.typeof(clipped.tree).sharding.spec == PartitionSpec(None, columns)
            assert jax.typeof(aux.loss).sharding.spec == PartitionSpec("d")


CHECKS = [
    check_r13,
    check_shard_map,
    check_independence,
    check_nonfinite_on_one_device,
    check_keys,
    check_jit_with_sharded_batch,
    check_explicit_mesh,
]
for check in CHECKS:
    check()
    print(check.__name__)
