"""Clipping under odd arguments and odd numbers: refused by name, or a sum in which no row counts for more than the norm.

The oracle is numpy in float64: for the loss <w, x> the gradient of a row is the row itself.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz_tools import ODD, answer, arguments, fuzz
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from opake_jax import clipping
from opake_jax.random import key
from opake_jax.types import ClippedSum

ROWS, SIZE = 6, 4
LIKE = {"w": np.zeros(SIZE, np.float32)}


def linear(w, x):
    return jnp.vdot(w, x)


OPTIONS = {
    "clipping_norm": (1.0, 1e-3), "engine": (clipping.Auto(), clipping.Ghost(), clipping.Vmap(), clipping.Microbatched(2)),
    "has_aux": (False,), "denominator": (1.0, 64), "trainable": (None, True, {"w": True}), "needs_key": (None, False),
    "unit_axis": (None, 1), "pre_clipping": (None, lambda g: g), "projection": (None,), "second_moment": (None, 1.0),
}  # fmt: skip
MORE = {
    clipping.clipped_grad: {},
    clipping.auto_clipped_grad: {"stability": (0.01, 1.0)},
    clipping.adaptive_clipped_grad: {"quantile": (0.5,), "learning_rate": (0.2,), "bounds": ((1e-6, 1e6),)},
}  # fmt: skip


@pytest.mark.parametrize("factory", MORE, ids=lambda f: f.__name__)
@fuzz(80)
@given(data=st.data())
def test_a_factory_refuses_by_name_or_its_sum_carries_the_bound(factory, data):
    chosen = data.draw(arguments({**OPTIONS, **MORE[factory]}))
    norm = chosen.pop("clipping_norm")
    made, _ = answer(lambda: factory(linear, norm, **chosen))
    if made is None:
        return
    rest = (made.init(),) if factory is clipping.adaptive_clipped_grad else ()
    found, error = answer(
        lambda: jax.eval_shape(lambda: made(np.zeros(SIZE), np.zeros((ROWS, SIZE)), *rest)[0])
    )
    if error is None:
        assert isinstance(found, ClippedSum)
        assert found.denominator.shape == ()
        assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(found.tree))


@fuzz(150)
@given(
    engine=st.sampled_from([clipping.Microbatched, clipping.Chunked, clipping.Auto]), size=ODD,
    inner=st.one_of(st.just(clipping.Ghost()), ODD), norms=st.one_of(st.dictionaries(st.text(max_size=3), ODD, max_size=2), ODD),
)  # fmt: skip
def test_engines_and_groups_are_refused_by_name(engine, size, inner, norms):
    if engine is clipping.Auto:
        made, _ = answer(lambda: clipping.Auto(memory_limit=size))
    else:
        made, _ = answer(lambda: engine(size, inner))
    if made is not None and engine is not clipping.Auto:
        assert made.size >= 1
    groups, _ = answer(lambda: clipping.per_group(norms))
    if groups is not None:
        assert all(0 < float(norm) < np.inf for norm in groups.norms)


@fuzz(100)
@given(basis=ODD, dimension=ODD, root=st.one_of(st.just(key(0)), ODD))
def test_projections_are_refused_by_name(basis, dimension, root):
    answer(lambda: clipping.projection(basis))
    if not (isinstance(dimension, (int, float)) and dimension > 1000):  # legal and large
        answer(lambda: clipping.random_projection(LIKE, dimension, key=root))


def anything(params, example):
    """A loss that takes whatever it gets: what is refused is refused by the library."""
    both = [jnp.sum(jnp.asarray(x)).astype(jnp.float32) for x in jax.tree.leaves((params, example))]
    return functools.reduce(jnp.multiply, both, jnp.float32(1))


ARRAYS = [
    np.zeros((ROWS, SIZE), np.float32),
    np.zeros((0, 3), np.float32),
    np.zeros((ROWS, 2), np.int8),
]
TREES = st.one_of(
    st.sampled_from([*ARRAYS, LIKE, {"a": ARRAYS[0], "b": ARRAYS[2]}, {"a": ARRAYS[0], "b": ARRAYS[1]}, {}, None, (), [None]]), ODD
)  # fmt: skip


@fuzz(200)
@given(
    params=st.one_of(st.just(LIKE), TREES), batch=st.one_of(st.just(ARRAYS[0]), TREES),
    mask=st.one_of(st.none(), st.just(np.arange(ROWS) < 2), ODD), root=st.one_of(st.none(), ODD),
)  # fmt: skip
def test_a_call_is_refused_by_name_or_traces(params, batch, mask, root):
    leaves = jax.tree.leaves((params, batch))
    if not all(
        isinstance(x, float) or getattr(x, "dtype", np.dtype(object)).kind in "fiubcV"
        for x in leaves
    ):
        return  # no arrays at all: jax's own message
    grad_fn = clipping.clipped_grad(anything, 1.0)
    answer(lambda: jax.eval_shape(lambda: grad_fn(params, batch, mask=mask, key=root)))


ENGINES = {
    "vmap": clipping.Vmap(), "ghost": clipping.Ghost(), "auto": clipping.Auto(), "parts": clipping.Microbatched(4, clipping.Vmap()),
    "chunked": clipping.Chunked(4),
}  # fmt: skip
NORM = 0.75
# Mostly numbers of the size of the norm, and among them whatever float32 holds.
NUMBER = st.one_of(*[st.floats(-2, 2, width=32)] * 4, st.floats(width=32))
ROW = functools.partial(arrays.arrays, np.float32, elements=NUMBER, fill=st.nothing())


@functools.cache
def program(engine, dtype):
    return clipping.clipped_grad(linear, NORM, engine=ENGINES[engine]), jnp.zeros(SIZE, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("engine", ENGINES)
@fuzz(30)
@given(
    data=ROW((ROWS, SIZE)),
    mask=arrays.arrays(bool, ROWS),
    scale=st.sampled_from([1.0, 1e4, 1e-30, 1e18]),  # 1e4: squares beyond float16
)
def test_whatever_the_rows_hold_each_counts_for_at_most_the_norm(engine, dtype, data, mask, scale):
    grad_fn, weights = program(engine, dtype)
    with np.errstate(all="ignore"):
        batch = jnp.asarray(data * np.float32(scale), dtype)
    clipped, aux = grad_fn(weights, batch, mask=jnp.asarray(mask))
    rows = np.asarray(batch, np.float64)
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(rows, axis=1)
        # A squared norm beyond float32 counts as not finite.
        sure = np.isfinite(norms) & (norms < 1.8e19)
        unsure = np.isfinite(norms) & (norms >= 1.8e19) & (norms < 1.9e19)
        kept = np.where(sure, np.minimum(1, NORM / norms), 0)
    expected = np.where((mask & sure)[:, None], np.nan_to_num(rows) * kept[:, None], 0).sum(0)
    assert np.isfinite(clipped.tree).all()
    if not unsure.any():
        tolerance = (
            1e-5 * NORM * max(1, mask.sum()) if (norms[mask & sure] > 1e-15).any() else 1e-15
        )
        np.testing.assert_allclose(clipped.tree, expected, rtol=1e-5, atol=tolerance)
    assert np.linalg.norm(np.asarray(clipped.tree, np.float64)) <= NORM * mask.sum()
    assert (np.isnan(aux.grad_norm) == ~mask).all()
    assert float(clipped.sensitivity) == np.float32(NORM)


@fuzz(30)
@given(
    data=ROW((ROWS, SIZE)),
    row=st.integers(0, ROWS - 1),
    other=ROW(SIZE),
)
def test_one_row_moves_the_sum_by_at_most_twice_the_norm_and_by_once_if_it_leaves(data, row, other):
    """ClippedSum's promise itself: whatever stands in a row, and in all others (half an ulp of each entry allowed)."""
    grad_fn, weights = program("auto", "float32")
    everyone = jnp.ones(ROWS, bool)
    changed = data.copy()
    changed[row] = other
    one = np.asarray(grad_fn(weights, data, mask=everyone)[0].tree, np.float64)
    two = np.asarray(grad_fn(weights, changed, mask=everyone)[0].tree, np.float64)
    without = np.asarray(
        grad_fn(weights, data, mask=everyone.at[row].set(False))[0].tree, np.float64
    )
    rounding = ROWS * NORM * 2.0**-22
    assert np.linalg.norm(one - two) <= 2 * NORM + rounding
    assert np.linalg.norm(one - without) <= NORM + rounding


@fuzz(30)
@given(
    norms=arrays.arrays(
        np.float32,
        3,
        elements=st.one_of(st.floats(0.0625, 8, width=32), st.floats(width=32)),
        fill=st.nothing(),
    )
)
def test_traced_norms_under_vmap_are_the_loop_and_bad_ones_are_no_release(norms):
    data = np.linspace(-2, 2, ROWS * SIZE, dtype=np.float32).reshape(ROWS, SIZE)
    lengths = np.linalg.norm(data.astype(np.float64), axis=1, keepdims=True)
    intact, sums = MAPPED(norms, data)
    for norm, ok, total in zip(norms, intact, np.asarray(sums, np.float64), strict=True):
        assert ok or not 1e-8 <= norm < 1e15
        if ok:
            assert 0 < norm < np.inf
            expected = (data * np.minimum(1, float(norm) / lengths)).sum(axis=0)
            np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-5 * min(float(norm), 10))


@jax.jit
def MAPPED(norms, data):  # noqa: N802
    def one(norm):
        clipped, _ = clipping.clipped_grad(linear, norm)(jnp.zeros(SIZE), data)
        return clipped.is_intact(), clipped.tree

    return jax.vmap(one)(norms)
