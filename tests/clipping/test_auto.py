"""Auto's choices: the whole batch, or parts, by what the loss, the batch and the limit say. The sums are in test_engines.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clipping_models import PLAIN
from jax import lax

from opake_jax import clipping
from opake_jax.clipping import _auto
from opake_jax.clipping._jaxpr import inner_programs, name_of, trace


def loops(loss_fn, params, batch, engine=None, **options):
    """Returns the lengths of the scans in the program of a clipped gradient."""
    engine = clipping.Auto() if engine is None else engine
    grad_fn = clipping.clipped_grad(loss_fn, 1.0, engine=engine, **options)

    def lengths(program):
        for equation in program.equations:
            if name_of(equation) == "scan":
                yield equation.params["length"]
            for inner in inner_programs(equation):
                yield from lengths(inner)

    return list(lengths(trace(lambda p, b: grad_fn(p, b)[0].tree, params, batch)))


def wide(w, x):
    return jnp.sum(jnp.tanh(x @ w))


W = jax.ShapeDtypeStruct((64, 64), jnp.float32)


@pytest.mark.parametrize(
    ("rows", "positions", "parts"),
    [
        (64, 1, []),  # one position: parts would read the weights again and again
        (16, 128, []),  # in the cache as it is
        (
            1024,
            128,
            [256],
        ),  # 32 MiB of values, and 4 rows have work enough: 500 products for each weight, 128 a row
        (4096, 32, [256]),  # 16 rows have, 32 a row
    ],
)
def test_parts_only_where_they_pay(rows, positions, parts):
    x = jax.ShapeDtypeStruct((rows, positions, 64), jnp.float32)
    assert loops(wide, W, x) == parts


def test_a_batch_with_convolutions_is_never_scanned_on_a_cpu():
    loss_fn, params, batch = PLAIN["cnn"]()
    many = jax.tree.map(lambda x: jax.ShapeDtypeStruct((4096, *x.shape[1:]), x.dtype), batch)
    assert loops(loss_fn, params, many) == []


def test_a_memory_limit_makes_parts():
    """32 rows of about 256 KiB of values each (x @ w and its tanh, and two sums) at 1 MiB: parts of 3 rows or so."""
    x = jax.ShapeDtypeStruct((32, 512, 64), jnp.float32)
    (parts,) = loops(wide, W, x, clipping.Auto(memory_limit=2**20))
    assert 8 <= parts <= 16


def recomputed(params, x):
    """Four layers of two products; the inner values are recomputed."""

    @jax.checkpoint
    def layer(x, w):
        return jnp.tanh(jnp.tanh(x @ w) @ w.T), None

    return jnp.sum(lax.scan(layer, x, params)[0])


@pytest.mark.parametrize(
    ("positions", "limit", "second"),
    [
        (32, None, False),  # parts of book-keeping do all that memory asks for
        (1, None, True),  # at one position they would have too little work for the weights
        (1, 2**30, False),  # memory for all
    ],
)
def test_a_second_backward_pass_only_where_parts_would_be_too_small(
    monkeypatch, positions, limit, second
):
    """16 rows of four recomputed layers: book-keeping holds twenty values of a row, two passes nine of them."""
    chosen = []

    def in_parts(engine, size, *args):
        chosen.append((engine.second_backward, size))
        return original(engine, size, *args)

    original = _auto.in_parts
    monkeypatch.setattr(_auto, "in_parts", in_parts)
    w, x = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 64, 64), (16, positions, 64)))
    grad_fn = clipping.clipped_grad(recomputed, 1.0, engine=clipping.Auto(limit))
    jax.eval_shape(lambda w, x: grad_fn(w, x)[0].tree, w, x)
    assert [way for way, _ in chosen] == [second]
    assert (chosen[0][1] < 16) == (limit is None and not second)


def test_every_gradient_is_computed_in_parts_that_fit():
    """512 x 512 gradients of 1 MiB: 16 fit in 16 MiB; 64 rows take 4 parts."""
    w, x = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((512, 512), (64, 512)))
    assert loops(wide, w, x, second_moment=1.0) == [4]


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "1", np.nan])
def test_bad_limits_are_refused(bad):
    with pytest.raises((TypeError, ValueError), match="memory_limit"):
        clipping.Auto(memory_limit=bad)
