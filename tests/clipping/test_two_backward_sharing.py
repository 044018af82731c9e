"""Two backward passes: a loop reduces a leaf's gradient only where nothing else adds to it.

A leaf used in a loop and beside it, in two loops, sliced, scaled or closed over, against `Vmap`, with and without recomputation.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clipping_models import normal
from fast_jit import fast_jit
from jax import lax

from opake_jax.clipping import Ghost, Vmap, clipped_grad

LAYERS, X = 0.5 * normal(3, 4, 4), normal(6, 4, seed=1)


def layers(weights, h):
    return lax.scan(lambda h, w: (jnp.tanh(w @ h), None), h, weights)[0]


def twice(h, w):
    return jnp.tanh(w @ jnp.tanh(w.T @ h)), None


LOSSES = {
    "one loop": lambda p, x: jnp.sum(layers(p, x) ** 2),
    "a slice beside it": lambda p, x: jnp.sum(layers(p, p[0] @ x) ** 2),
    "all beside it": lambda p, x: jnp.sum(layers(p, x)) + jnp.sum(jnp.tanh(p @ x) ** 2),
    "two loops": lambda p, x: jnp.sum(layers(p, layers(p, x)) ** 2),
    "overlapping loops": lambda p, x: jnp.sum(layers(p[:2], layers(p[1:], x)) ** 2),
    "forwards and backwards": lambda p, x: jnp.sum(layers(p, x) ** 2 + layers(p[::-1], x)),
    "weight decay": lambda p, x: jnp.sum(layers(p, x) ** 2) + 0.1 * jnp.sum(p**2),
    "twice in the body": lambda p, x: jnp.sum(lax.scan(twice, x, p)[0] ** 2),
    "closed over": lambda p, x: jnp.sum(layers(jnp.stack([p[0]] * 3), x) ** 2),
    "scaled": lambda p, x: jnp.sum(layers((1 + p[2, 0, 0]) * p, x) ** 2),
    "either loop or none": lambda p, x: jnp.sum(
        lax.cond(x[0] > 0, lambda: layers(p, x), lambda: p[0] @ x) ** 2
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_a_leaf_in_a_loop_and_beside_it_is_counted_whole(name, recomputed):
    loss = jax.checkpoint(LOSSES[name]) if recomputed else LOSSES[name]
    want, _ = fast_jit(clipped_grad(LOSSES[name], 0.3, engine=Vmap()))(LAYERS, X)
    got, _ = fast_jit(clipped_grad(loss, 0.3, engine=Ghost(second_backward=True)))(LAYERS, X)
    assert np.abs(want.tree).max() > 1e-3
    np.testing.assert_allclose(got.tree, want.tree, rtol=1e-5, atol=1e-6)
