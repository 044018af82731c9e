"""Noise, sums and keys under odd arguments: refused by name, NaN, or noise of at least the stated size."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fuzz_tools import ODD, answer, arguments, fuzz
from hypothesis import given
from hypothesis import strategies as st

from opake_jax.noise import gaussian_noise, paired_adam, paired_adamw, paired_rmsprop
from opake_jax.random import key, key_from_data, tagged
from opake_jax.types import ClippedSum, Moments

ROOT = key(2)
TREE = {"w": np.zeros((2, 3), np.float32), "b": np.ones(4, np.float32)}


@fuzz(150)
@given(seed=ODD)
def test_a_key_is_made_from_a_small_whole_number_or_from_nothing(seed):
    made, _ = answer(lambda: key(seed))
    if made is not None:
        assert made.shape == ()
        assert seed is None or 0 <= int(seed) < 2**32


@fuzz(40)
@given(words=ODD, tag=st.one_of(st.text(), st.binary()))
def test_words_and_tags_give_keys(words, tag):
    assert tagged(ROOT, tag).shape == ()
    made, _ = answer(lambda: key_from_data(words))
    assert made is None or made.shape == ()


SUMS = {
    "tree": (TREE, {"w": None}, {}),
    "sensitivity": (1.0, 0.5, np.array([1.0, 2.0]), 1e-18, 1e17),
    "denominator": (1.0, 64, 1e-18),
    "shares": (None, np.array([1.0, 3.0])),
    "groups": (None, (0, 1), (0, 0), (0, -1)),
    "lift": (None,),
}


@fuzz(300)
@given(chosen=arguments(SUMS))
def test_a_sum_is_refused_or_carries_a_bound(chosen):
    tree, sensitivity, denominator = (chosen.pop(n) for n in ("tree", "sensitivity", "denominator"))
    made, _ = answer(lambda: ClippedSum(tree, sensitivity, denominator, **chosen))
    if made is not None:
        assert np.all(np.asarray(made.sensitivity) > 0)
        assert np.all(np.isfinite(np.asarray(made.sensitivity)))
        assert 0 < float(made.denominator) < np.inf
        assert made.is_intact()


@fuzz(150)
@given(scale=ODD)
def test_a_scaled_sum_scales_its_bound_or_is_refused(scale):
    whole = ClippedSum(TREE, 2.0, 4.0)
    scaled, _ = answer(lambda: whole.__mul__(scale))
    if scaled is not None:
        c = abs(float(np.float32(float(scale))))
        assert float(scaled.sensitivity) == pytest.approx(2.0 * c, rel=1e-6)


UPDATE = jax.jit(
    lambda multiplier, sensitivity, state: gaussian_noise(multiplier, key=ROOT).update(
        ClippedSum(TREE, sensitivity, 1.0), state
    )[0]
)


@fuzz(150)
@given(multiplier=ODD, root=st.one_of(st.just(ROOT), st.just(ROOT), ODD))
def test_a_noise_multiplier_is_refused_or_finite(multiplier, root):
    tx, _ = answer(lambda: gaussian_noise(multiplier, key=root))
    if tx is not None:
        assert 0 <= float(multiplier) < np.inf
        assert not isinstance(multiplier, (bool, str))


@fuzz(200)
@given(
    multiplier=st.floats(width=32),
    sensitivity=st.floats(width=32),
    count=st.integers(-(2**31), 2**31 - 1),
)
def test_traced_numbers_give_full_noise_or_nan(multiplier, sensitivity, count):
    """Whatever is passed, the update is never the bare sum, and its noise is linear in the product."""
    state = gaussian_noise(1.0, key=ROOT).init(TREE)._replace(count=jnp.int32(count))
    unit = UPDATE(1.0, 1.0, state)
    update = UPDATE(multiplier, sensitivity, state)
    std = float(multiplier) * float(sensitivity)
    for name, leaf in TREE.items():
        noise = np.asarray(update[name], np.float64) - leaf
        if np.isnan(update[name]).any():
            assert np.isnan(update[name]).all()
            # A sound pair is never refused.
            assert not (multiplier >= 0 and 1e-15 < sensitivity < 1e15 and 0 <= std < 1e30)
        else:
            assert multiplier > -1e-37  # a subnormal number counts as 0
            assert sensitivity > 0
            expected = (np.asarray(unit[name], np.float64) - leaf) * std
            rounding = 1e-5 * np.abs(expected) + 1e-6 + 1e-6 * std
            np.testing.assert_array_less(np.abs(noise - expected), rounding + 1e-38)


NO_SUMS = (None, 1.0, jnp.ones(3), TREE, (TREE, 1.0, 1.0), Moments(TREE, TREE), "x", object())


@pytest.mark.parametrize("other", NO_SUMS, ids=lambda x: type(x).__name__)
def test_only_a_clipped_sum_is_released(other):
    tx = gaussian_noise(1.0, key=ROOT)
    _, error = answer(lambda: tx.update(other, tx.init(TREE), TREE))
    assert "ClippedSum" in str(error)


OPTIONS = {"floor": (0.0, 0.1), "eps": (0.0, 1e-8)}


@pytest.mark.parametrize(
    ("make", "decays"), [(paired_adam, ("b1", "b2")), (paired_adamw, ("b1", "b2", "weight_decay")), (paired_rmsprop, ("decay",))],
    ids=["adam", "adamw", "rmsprop"],
)  # fmt: skip
@fuzz(60)
@given(data=st.data())
def test_an_optimizer_of_moments_is_refused_or_steps_finitely(make, decays, data):
    chosen = data.draw(arguments({**OPTIONS, **dict.fromkeys(decays, (0.0, 0.9))}))
    tx, _ = answer(lambda: make(0.1, **chosen))
    if tx is not None:
        assert isinstance(tx, optax.GradientTransformation)
        assert all(0 <= float(value) < np.inf for value in chosen.values())
