"""Canaries, and runs in one program: what is planted is what is read, and absent means absent."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from opake_jax import auditing
from opake_jax.random import key
from opake_jax.types import ClippedSum

PARAMS = {"a": jnp.zeros((2, 2)), "b": jnp.zeros(3)}


def plain_loss(params, example):
    return jnp.sum(params["a"]) * example + jnp.sum(params["b"])


def test_a_dirac_canary_has_one_axis_as_its_gradient_and_ordinary_rows_keep_theirs():
    canaries = auditing.DiracCanaries([1, 5], scale=7.0)
    gradient = jax.grad(canaries.loss(plain_loss))
    example = jnp.float32(2.0)
    ordinary = jax.tree.leaves(gradient(PARAMS, (example, jnp.int32(0))))
    assert [x.tolist() for x in ordinary] == [[[2.0, 2.0], [2.0, 2.0]], [1.0, 1.0, 1.0]]
    first = jax.tree.leaves(gradient(PARAMS, (example, jnp.int32(1))))
    assert [x.tolist() for x in first] == [[[0.0, 7.0], [0.0, 0.0]], [0.0, 0.0, 0.0]]
    opposite = jax.tree.leaves(gradient(PARAMS, (example, jnp.int32(-2))))
    assert [x.tolist() for x in opposite] == [[[0.0, 0.0], [0.0, 0.0]], [0.0, -7.0, 0.0]]


def test_read_gives_the_released_entries():
    canaries = auditing.DiracCanaries([6, 0])
    released = {"a": jnp.arange(4.0).reshape(2, 2), "b": jnp.array([4.0, 5.0, 6.0])}
    assert canaries.read(released).tolist() == [6.0, 0.0]
    with pytest.raises(ValueError, match="below 7"):
        auditing.DiracCanaries([7]).read(released)


@pytest.mark.parametrize("coordinates", [[1, 1], [-1]])
def test_coordinates_are_distinct_indices(coordinates):
    with pytest.raises(ValueError, match="coordinates"):
        auditing.DiracCanaries(coordinates)


def test_canaries_come_first():
    examples, marks = auditing.DiracCanaries([0, 3]).data(jnp.arange(5.0) + 1)
    assert examples.tolist() == [1.0, 1.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert marks.tolist() == [1, 2, 0, 0, 0, 0, 0]
    planted = auditing.plant({"x": np.zeros((3, 2))}, {"x": jnp.ones((1, 2))})
    assert planted["x"].tolist() == [[1.0, 1.0]] + [[0.0, 0.0]] * 3


def test_example_canaries_are_scored_by_minus_their_loss():
    read = auditing.canary_losses(plain_loss, jnp.array([1.0, 3.0]))
    assert read(None, jax.tree.map(jnp.ones_like, PARAMS)).tolist() == [-7.0, -15.0]


def summing(params, batch, *, mask):
    """A gradient function without clipping: the masked sum of the rows."""
    return ClippedSum(jnp.sum(jnp.where(mask, batch, 0.0)), 1.0, 1.0), None


def quiet(key):
    """A transform that adds nothing."""
    del key
    return optax.GradientTransformation(lambda p: (), lambda c, s, p: (c.tree, s))


def everything(key, step):
    """All four rows, and two padded ones."""
    del key, step
    return jnp.array([0, 1, 2, 3, 0, 0]), jnp.arange(6) < 4


def game(**changed):
    rows = jnp.array([1.0, 10.0, 100.0, 1000.0])
    parts = {
        "params": jnp.zeros(()),
        "data": rows,
        "num_steps": 3,
        "read": lambda released, params: jnp.stack([released, params]),
    }
    return auditing.run_of(everything, summing, quiet, **{**parts, **changed})


def test_an_absent_canary_is_masked_and_the_parameters_stay():
    run = game()
    seen = jax.jit(run)(key(0), jnp.array([True, False]))
    assert seen.tolist() == [[1101.0, 0.0]] * 3
    assert run(key(0), jnp.array([False, False])).tolist() == [[1100.0, 0.0]] * 3


def test_a_replaced_canary_is_replaced_and_the_update_is_seen():
    run = game(absent=-jnp.array([1.0, 10.0, 100.0, 1000.0]), update=lambda p, g: p + g)
    seen = run(key(0), jnp.array([True, False]))
    assert seen.tolist() == [[1091.0, 1091.0], [1091.0, 2182.0], [1091.0, 3273.0]]


def test_every_run_gets_a_key_of_its_own_whatever_the_chunk():
    def run(key, member):
        return jax.random.normal(key, (2, 1)) + 100.0 * member

    members = (np.arange(10) % 2 == 0)[:, None]
    whole = auditing.collect(run, members, key=key(3), statistic=auditing.total)
    parts = auditing.collect(run, members, key=key(3), statistic=auditing.total, chunk=4)
    assert whole.shape == (10, 1)
    assert np.array_equal(whole, parts)
    ins, outs = auditing.split(whole, members)
    assert ins.min() > 150 > outs.max()
    assert len(set(ins.tolist())) == len(set(outs.tolist())) == 5


def test_many_settings_share_one_compilation_under_an_outer_jit():
    members = np.array([[True], [False]])

    @jax.jit
    def scores(scale):
        run = lambda k, member: scale * jax.random.normal(k, (1, 1))  # noqa: E731
        return auditing.collect(run, members, key=key(3), statistic=auditing.total)

    assert np.allclose(scores(2.0), 2 * scores(1.0))
    assert scores._cache_size() == 1


def test_statistics():
    seen = jnp.array([[0.0, 3.0], [2.0, 1.0]])
    assert auditing.total(seen).tolist() == [2.0, 4.0]
    assert auditing.spread(seen).tolist() == [2.0, 2.0]
    # log(1 - q + q N(x; 1, s) / N(x; 0, s)), summed over steps, with x in units of the contribution
    x, q, s = np.asarray(seen) / 2.0, 0.25, 1.5
    ratio = np.exp(-((x - 1) ** 2) / (2 * s**2)) / np.exp(-(x**2) / (2 * s**2))
    expected = np.log(1 - q + q * ratio).sum(axis=0)
    got = auditing.likelihood_ratio(s, q, unit=2.0)(seen)
    assert np.allclose(got, expected, rtol=1e-5, atol=1e-6)
    certain = auditing.likelihood_ratio(s, 1.0, unit=2.0)(seen)
    assert np.allclose(certain, np.log(ratio).sum(axis=0), rtol=1e-5, atol=1e-6)
    law = np.array([0.5, 0.3, 0.2])
    mixed = sum(w * np.exp((2 * k * x - k**2) / (2 * s**2)) for k, w in enumerate(law))
    got = auditing.likelihood_ratio(s, law, unit=2.0)(seen)
    assert np.allclose(got, np.log(mixed).sum(axis=0), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="participation"):
        auditing.likelihood_ratio(s, [0.5, 0.6])


def test_normal_draws_pass_and_others_do_not():
    """p < 1e-6 on normal draws has probability at most 1e-6; the faults must be certain."""
    rng = np.random.default_rng(11)
    draws = rng.normal(size=200_000)
    assert auditing.normal_p_value(draws) > 1e-6
    assert auditing.normal_p_value(0.98 * draws) < 1e-6
    assert auditing.normal_p_value(draws + 0.03) < 1e-6
    assert auditing.normal_p_value(np.clip(draws, -3.5, 3.5)) < 1e-6
    half = jax.random.normal(key(0), (200_000,), jnp.bfloat16).astype(jnp.float32)
    assert auditing.normal_p_value(half) < 1e-100


@pytest.mark.parametrize(
    ("members", "words"), [(np.ones(4, bool), "members"), (np.ones((4, 1)), "members")]
)
def test_members_are_checked(members, words):
    with pytest.raises(ValueError, match=words):
        auditing.collect(lambda k, m: m, members, key=key(0), statistic=auditing.total)
