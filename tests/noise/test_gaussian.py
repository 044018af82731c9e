"""gaussian_noise: what is drawn, what it depends on, and what it refuses."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import special

from opake_jax.noise import GaussianNoiseState, gaussian_noise
from opake_jax.noise import _gaussian as implementation
from opake_jax.noise._normal import STD_INFLATION
from opake_jax.random import key, key_data, tag_words, tagged
from opake_jax.types import ClippedSum

ROOT = key(5)
TREE = {"w": jnp.zeros((6, 7)), "b": jnp.zeros(3)}


def release(clipped, noise_multiplier=1.0, *, root=ROOT, step=0, params=None):
    """Returns the update of one step."""
    tx = gaussian_noise(noise_multiplier, key=root)
    state = tx.init(params if params is not None else clipped.tree)._replace(count=jnp.int32(step))
    return tx.update(clipped, state, params)[0]


def zeros(tree=None, sensitivity=1.0, denominator=1.0, **options):
    return ClippedSum(TREE if tree is None else tree, sensitivity, denominator, **options)


def oracle(path, shape, *, root=ROOT, step=0):
    """The draw by public jax alone: keys by fold_in, words by split, quantiles by scipy in float64."""
    leaf = jax.random.fold_in(tagged(root, "noise"), step)
    for word in tag_words(path):
        leaf = jax.random.fold_in(leaf, word)
    words = np.asarray(key_data(jax.random.split(leaf, shape))).astype(np.uint64)
    W = (words[..., 0] >> np.uint64(1) << np.uint64(31)) + (words[..., 1] >> np.uint64(1))
    z = -special.ndtri((W.astype(np.longdouble) + 0.5).astype(float) * 2.0**-63)
    return np.where(words[..., 0] & np.uint64(1), -z, z)


# -- the draw


@pytest.mark.parametrize("step", [0, 7])
def test_draw_is_a_function_of_key_step_and_path(step):
    noise = release(zeros(), step=step)
    for name, leaf in TREE.items():
        expected = oracle(f"['{name}']", leaf.shape, step=step)
        np.testing.assert_allclose(noise[name], expected, rtol=3e-6)


def test_draw_does_not_depend_on_the_other_leaves():
    alone = release(zeros({"w": TREE["w"]}))
    among = release(zeros({"a": jnp.ones(2), **TREE, "z": [jnp.zeros(4), None]}))
    assert (alone["w"] == among["w"]).all()


def test_streams_of_steps_leaves_and_keys_are_unrelated():
    n = 2**16
    tree = {"w": jnp.zeros(n), "v": jnp.zeros(n)}
    draws = [release(zeros(tree), step=s)[leaf] for s in (0, 1) for leaf in tree]
    draws.append(release(zeros(tree), root=key(6))["w"])
    correlation = np.corrcoef(np.stack(draws)) - np.eye(5)
    # 10 pairs, each |r| sqrt(n) standard normal: false-alarm rate 10 * 6e-6. Equal streams give 256.
    assert np.abs(correlation).max() * n**0.5 < 4.5


def test_std_on_the_sum_is_noise_multiplier_times_sensitivity():
    n = 2**16
    noise = np.asarray(release(zeros({"w": jnp.zeros(n)}, 0.5, 16.0), 3.0)["w"], np.float64)
    # 3 * 0.5 / 16; the sample variance has relative std sqrt(2 / n): false-alarm rate 6e-5 at 4.
    assert abs((noise**2).mean() / (3 * 0.5 / 16) ** 2 - 1) < 4 * np.sqrt(2 / n)
    assert abs(noise.mean()) < 4 * 3 * 0.5 / 16 / np.sqrt(n)


@pytest.mark.parametrize("clipping_norm", [0.01, 0.1, 10.0])
def test_noise_is_linear_in_the_clipping_norm(clipping_norm):  # report R23
    one, other = release(zeros()), release(zeros(sensitivity=clipping_norm))
    chex.assert_trees_all_close(other, jax.tree.map(lambda x: clipping_norm * x, one), rtol=1e-6)


def test_update_is_sum_plus_noise_over_denominator():
    rng = np.random.default_rng(0)
    tree = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), TREE)
    with_sum, noise = release(zeros(tree, 2.0, 4.0)), release(zeros(None, 2.0, 4.0))
    expected = jax.tree.map(lambda s, n: s / 4.0 + n, tree, noise)
    chex.assert_trees_all_close(with_sum, expected, rtol=1e-5, atol=1e-6)


def test_no_noise_multiplier_gives_the_exact_mean():
    tree = {"w": jnp.arange(6.0)}
    assert (release(zeros(tree, 1.0, 4.0), 0.0)["w"] == jnp.arange(6.0) / 4).all()


# -- dtypes


def test_noise_is_drawn_in_float32_and_cast_last():
    params = {"w": jnp.zeros((6, 7), jnp.bfloat16), "b": jnp.zeros(3, jnp.float16)}
    plain, cast = release(zeros()), release(zeros(), params=params)
    assert cast["w"].dtype == jnp.bfloat16
    assert cast["b"].dtype == jnp.float16
    assert (cast["w"] == plain["w"].astype(jnp.bfloat16)).all()
    assert (cast["b"] == plain["b"].astype(jnp.float16)).all()


def test_noise_is_the_same_with_64_bit_types():
    narrow = release(zeros())
    with jax.enable_x64(True):
        again = release(zeros())
        wide = release(zeros({k: jnp.zeros(v.shape, jnp.float64) for k, v in TREE.items()}))
    chex.assert_trees_all_equal(narrow, again)
    assert wide["w"].dtype == np.float64
    chex.assert_trees_all_equal(narrow, jax.tree.map(lambda x: x.astype(np.float32), wide))


def test_float64_sums_keep_their_digits():
    with jax.enable_x64(True):
        noise = release(zeros({"w": jnp.zeros(3, jnp.float64)}))["w"]
        total = release(zeros({"w": jnp.full(3, 1e9 + 0.125, jnp.float64)}))["w"]
    np.testing.assert_allclose(total - noise, 1e9 + 0.125, rtol=1e-15)


# -- trees


def test_frozen_leaves_stay_none_and_untouched_leaves_get_full_noise():
    tree = {"frozen": None, "table": jnp.zeros((512, 64)), "empty": jnp.zeros((0, 3))}
    params = {"frozen": jnp.ones(4), "table": tree["table"], "empty": tree["empty"]}
    noise = release(zeros(tree), params=params)
    assert noise["frozen"] is None
    assert noise["empty"].shape == (0, 3)
    assert abs(float(jnp.std(noise["table"])) - 1) < 4 * np.sqrt(0.5 / 2**15)


def test_leaves_that_hash_alike_are_refused(monkeypatch):
    monkeypatch.setattr(implementation, "tag_words", lambda name: (np.uint32(1), np.uint32(2)))
    tx = gaussian_noise(1.0, key=ROOT)
    tree = {"p": jnp.zeros(2), "q": jnp.zeros(2)}
    with pytest.raises(ValueError, match=r"\['p'\] and \['q'\] would get the same noise"):
        tx.init(tree)
    with pytest.raises(ValueError, match="same noise"):
        tx.update(zeros(tree), GaussianNoiseState(jnp.zeros(2, jnp.uint32), jnp.int32(0)))


def test_groups_get_their_own_stds():
    shares = jnp.array([1.0, 3.0])
    plain = release(zeros())  # leaves in flattening order: b, w
    apart = release(zeros(sensitivity=jnp.array([2.0, 0.5]), groups=(0, 1)), 1.5)
    weighted = release(zeros(sensitivity=jnp.array([2.0, 0.5]), groups=(0, 1), shares=shares), 1.5)
    for name, norm, share in (("b", 2.0, 1 / 4), ("w", 0.5, 3 / 4)):
        np.testing.assert_allclose(apart[name], 1.5 * norm * 2**0.5 * plain[name], rtol=2e-6)
        np.testing.assert_allclose(weighted[name], 1.5 * norm / share**0.5 * plain[name], rtol=2e-6)


def test_groups_cost_what_one_gaussian_costs():
    # accounting.md, Groups: sum (B_i / sigma_i)^2 = 1 / nm^2, whatever the weights. Read off the real update.
    norms = jnp.array([2.0, 0.5])
    plain = release(zeros())
    for shares in (None, jnp.array([0.2, 0.8]), jnp.array([7.0, 1.0])):
        noise = release(zeros(sensitivity=norms, groups=(0, 1), shares=shares), 1.5)
        standard = {n: float(plain[n].ravel()[0]) / STD_INFLATION for n in plain}
        sigmas = [float(noise[n].ravel()[0]) / standard[n] for n in ("b", "w")]
        cost = sum((float(b) / s) ** 2 for b, s in zip(norms, sigmas, strict=True))
        assert cost == pytest.approx(1 / 1.5**2, rel=3e-6)
        assert cost < 1 / 1.5**2  # the inflation of the std is larger than the rounding


def test_lift_sees_the_noisy_mean():
    seen = {}

    def lift(tree):
        seen["w"] = tree["w"]
        return {"full": jnp.concatenate([tree["w"], tree["w"]])}

    plain = release(zeros(denominator=4.0))
    lifted = release(
        zeros(denominator=4.0, lift=lift), params={"full": jnp.zeros((12, 7), jnp.bfloat16)}
    )
    assert (seen["w"] == plain["w"]).all()
    assert lifted["full"].dtype == jnp.bfloat16


# -- transformations of jax


def test_jit_vmap_and_scan_give_what_the_loop_gives():
    tx = gaussian_noise(1.0, key=ROOT)
    state, loop = tx.init(TREE), []
    for _ in range(3):
        update, state = tx.update(zeros(), state)
        loop.append(update)
    loop = jax.tree.map(lambda *x: jnp.stack(x), *loop)

    def step(state, _):
        update, state = tx.update(zeros(), state)
        return state, update

    end, scanned = jax.jit(lambda s: jax.lax.scan(step, s, length=3))(tx.init(TREE))
    chex.assert_trees_all_equal(loop, scanned)
    chex.assert_trees_all_equal(state, end)
    assert int(end.count) == 3

    def at(count):
        return tx.update(zeros(), tx.init(TREE)._replace(count=count))[0]

    chex.assert_trees_all_equal(loop, jax.jit(jax.vmap(at))(jnp.arange(3)))


def test_one_trace_serves_every_step_and_every_noise_multiplier():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(noise_multiplier, sensitivity, state):
        return gaussian_noise(noise_multiplier, key=ROOT).update(zeros(None, sensitivity), state)

    state = gaussian_noise(1.0, key=ROOT).init(TREE)
    for noise_multiplier, sensitivity in ((1.0, 1.0), (0.5, 2.0), (0.0, 1.0)):
        update, state = step(noise_multiplier, sensitivity, state)
    assert (update["w"] == 0).all()
    assert int(state.count) == 3


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_traced_bad_noise_multipliers_give_nan(bad):
    update = jax.jit(lambda nm: release(zeros(), nm))(bad)
    assert all(jnp.isnan(leaf).all() for leaf in jax.tree.leaves(update))


def test_noise_of_ten_steps_is_distinct_and_a_state_kept_repeats_it():  # report R24
    tx = gaussian_noise(1.0, key=ROOT)
    step = jax.jit(lambda state: tx.update(zeros(), state))
    state, seen, states = tx.init(TREE), [], []
    for _ in range(10):
        states.append(state)
        update, state = step(state)
        seen.append(np.asarray(update["w"]).tobytes())
    assert len(set(seen)) == 10
    again, _ = step(jax.tree.map(jnp.asarray, jax.tree.map(np.asarray, states[5])))
    assert np.asarray(again["w"]).tobytes() == seen[5]


def test_donating_the_state_keeps_the_callers_key():
    root = key(8)
    tx = gaussian_noise(1.0, key=root)
    step = jax.jit(lambda state: tx.update(zeros(), state), donate_argnums=0)
    state = tx.init(TREE)
    for _ in range(3):
        update, state = step(state)
    fresh = tx.init(TREE)  # and the factory still works after its first state is gone
    assert (step(fresh)[0]["w"] != update["w"]).any()
    assert key_data(root).tolist() == [0, 8]


def test_state_is_plain_arrays_of_constant_type():
    tx = gaussian_noise(1.0, key=ROOT)
    state = tx.init(TREE)
    _, after = tx.update(zeros(), state)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    assert (state.key_data.dtype, state.key_data.shape) == (np.uint32, (2,))
    assert (state.count.dtype, state.count.shape) == (np.int32, ())
    # The words are those of the purpose's child key: a leaked noise state tells nothing of the sampler.
    assert (state.key_data == key_data(tagged(ROOT, "noise"))).all()


def test_steps_past_the_largest_int32_are_new_steps():
    tx = gaussian_noise(1.0, key=ROOT)
    state = tx.init(TREE)._replace(count=jnp.int32(2**31 - 1))
    last, state = tx.update(zeros(), state)
    following, _ = tx.update(zeros(), state)
    first = release(zeros())
    assert len({float(u["b"][0]) for u in (first, last, following)}) == 3


def test_it_stands_first_in_a_chain():
    tx = optax.chain(gaussian_noise(1.0, key=ROOT), optax.sgd(0.5))
    update, _ = tx.update(zeros(), tx.init(TREE), TREE)
    chex.assert_trees_all_close(update, jax.tree.map(lambda x: -0.5 * x, release(zeros())))


# -- bad input


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), -float("inf"), 10**400])
def test_bad_noise_multipliers_are_refused(bad):
    with pytest.raises(ValueError, match=r"noise_multiplier must be in \[0, inf\)"):
        gaussian_noise(bad, key=ROOT)


@pytest.mark.parametrize("bad", [True, "1.0", None, 1j, np.ones(2), jnp.ones(2)])
def test_noise_multipliers_that_are_no_numbers_are_refused(bad):
    with pytest.raises(TypeError, match="noise_multiplier"):
        gaussian_noise(bad, key=ROOT)


@pytest.mark.parametrize("bad", [0, None, np.zeros(2, np.uint32), jax.random.key(0, impl="rbg")])
def test_what_is_no_key_is_refused(bad):
    with pytest.raises(
        TypeError, match=r"key must be a typed threefry key.*opake_jax\.random\.key\(\)"
    ):
        gaussian_noise(1.0, key=bad)


@pytest.mark.parametrize("bad", [TREE, jnp.zeros(3), (TREE, 1.0)])
def test_a_plain_tree_is_refused_with_the_remedy(bad):
    tx = gaussian_noise(1.0, key=ROOT)
    with pytest.raises(
        TypeError, match=r"takes a ClippedSum, got .*ClippedSum\(tree, sensitivity, denominator\)"
    ):
        tx.update(bad, tx.init(TREE))


@functools.lru_cache(None)
def tiny_denominator():
    return jax.jit(lambda d: release(ClippedSum(TREE, 1.0, d)))


@pytest.mark.parametrize("bad", [0.0, -4.0, float("nan")])
def test_traced_bad_denominators_give_nan(bad):
    assert jnp.isnan(tiny_denominator()(bad)["w"]).all()


# -- lanes of a vmap: sums of several runs


def lanes(count, keys):
    """Returns (sums, states) of `count` runs: the same sum, and a state for each of the keys."""
    sums = jax.vmap(lambda x: zeros({"w": jnp.full(4, x)}, 1.0, 1.0))(jnp.arange(float(count)))
    states = jax.vmap(lambda k: gaussian_noise(1.0, key=k).init({"w": jnp.zeros(4)}))(keys)
    return sums, states


def test_lanes_with_keys_of_their_own_draw_as_they_would_alone():
    keys = jax.random.split(ROOT, 3)
    tx = gaussian_noise(1.0, key=ROOT)
    sums, states = lanes(3, keys)
    found, _ = jax.jit(jax.vmap(tx.update))(sums, states)
    for i in range(3):
        alone, _ = tx.update(*jax.tree.map(lambda x, i=i: x[i], (sums, states)))
        np.testing.assert_array_equal(found["w"][i], alone["w"])


def test_lanes_that_share_a_key_are_refused_and_equal_ones_are_not_released():
    """An ensemble trained under vmap: the difference of two members would hold no noise."""
    tx = gaussian_noise(1.0, key=ROOT)
    sums, states = lanes(3, jax.random.split(ROOT, 3))
    one = jax.tree.map(lambda x: x[0], states)
    with pytest.raises(ValueError, match="state of its own"):
        jax.vmap(tx.update, (0, None))(sums, one)
    for keys in (jnp.stack([ROOT] * 3), jax.random.split(ROOT, 3)[jnp.array([0, 1, 0])]):
        update, _ = jax.vmap(tx.update)(*lanes(3, keys))
        assert jnp.isnan(update["w"]).all()
    # The same key at different steps is another draw.
    later = lanes(3, jnp.stack([ROOT] * 3))[1]._replace(count=jnp.arange(3, dtype=jnp.int32))
    assert jnp.isfinite(jax.vmap(tx.update)(sums, later)[0]["w"]).all()


def test_many_draws_of_one_sum_are_as_many_draws():
    tx = gaussian_noise(1.0, key=ROOT)
    _, states = lanes(3, jax.random.split(ROOT, 3))
    update, _ = jax.vmap(tx.update, (None, 0))(zeros({"w": jnp.zeros(4)}), states)
    assert len(np.unique(np.asarray(update["w"]))) == 12
