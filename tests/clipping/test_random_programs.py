"""Random losses, composed of layers that share weights: the ghost engine against plain gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fast_jit import fast_jit
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from test_engines import ENGINES, assert_same, reference

from opake_jax import clipping

# Each layer maps (positions, 4) to (positions, 4) and draws from one pool of weights, so that uses of a weight meet in every way.
LAYERS = {
    "dense": lambda p, x: x @ p["w"],
    "transposed": lambda p, x: x @ p["w"].T,
    "scaled": lambda p, x: x @ (0.5 * -p["w"]),
    "flipped": lambda p, x: x @ jnp.flip(p["w"], 1),
    "heads": lambda p, x: jnp.einsum("td,dhk->thk", x, p["h"]).reshape(x.shape),
    "merged": lambda p, x: x @ (p["w"] + p["a"] @ p["b"]),
    "low rank": lambda p, x: (x @ p["a"]) @ p["b"],
    "bias": lambda p, x: x + p["bias"],
    "gain": lambda p, x: x * (1 + p["bias"]),
    "masked": lambda p, x: x @ (p["w"] * jnp.tril(jnp.ones((4, 4)))),
    "tanh": lambda p, x: jnp.tanh(x),
    "mean": lambda p, x: x - x.mean(0),
    "mix": lambda p, x: jax.nn.softmax(x @ x.T, -1) @ x,
    "row": lambda p, x: x[:1] @ p["w"] + x,
    "lookup": lambda p, x: x + p["w"][jnp.arange(len(x)) % 4],
    "remat": lambda p, x: jax.checkpoint(lambda w, x: jnp.tanh(x @ w))(p["w"], x),
    "loop": lambda p, x: lax.fori_loop(0, 2, lambda _, x: jnp.tanh(x @ p["w"]), x),
    "scan": lambda p, x: lax.scan(lambda h, r: (jnp.tanh(h @ p["w"] + r),) * 2, x[0], x)[1],
    "layers": lambda p, x: lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p["s"])[0],
    "jit": lambda p, x: jax.jit(lambda w, x: jnp.sin(x @ w))(p["w"], x),
    "decay": lambda p, x: x + 0.1 * jnp.sum(jnp.square(p["w"])),
    "conv": lambda p, x: lax.conv_general_dilated(x.T[None], p["c"], (1,), "SAME")[0].T,
}


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(
    layers=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=5),
    positions=st.integers(1, 5),
    way=st.sampled_from(["ghost gram", "ghost drop", "ghost keep"]),
)
def test_any_composition_of_layers(layers, positions, way):
    rng = np.random.default_rng(0)
    shapes = {
        "w": (4, 4),
        "h": (4, 2, 2),
        "a": (4, 2),
        "b": (2, 4),
        "bias": (4,),
        "s": (2, 4, 4),
        "c": (4, 4, 3),
    }
    params = {n: jnp.asarray(rng.normal(size=s) * 0.6, jnp.float32) for n, s in shapes.items()}
    batch = jnp.asarray(rng.normal(size=(3, positions, 4)), jnp.float32)

    def loss_fn(p, x):
        for name in layers:
            x = LAYERS[name](p, x)
        # Every weight is used, so that no gradient is zero as a whole.
        return jnp.sum(jnp.sin(x)) + 0.1 * sum(jnp.sum(w) for w in p.values()) * (1 + jnp.sum(x))

    clipping_norm, sums, norms, _ = reference(loss_fn, params, batch)
    grad_fn = clipping.clipped_grad(loss_fn, clipping_norm, engine=ENGINES[way])
    clipped, aux = fast_jit(grad_fn)(params, batch)
    assert_same(clipped, aux, sums, norms, tolerance=3e-5)  # sums of up to 2,000 float32 products
