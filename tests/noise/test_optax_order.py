"""No optax transform before the noise goes unseen, and those behind it work."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax_transforms import TRANSFORMS, listed

from opake_jax.noise import gaussian_noise
from opake_jax.random import key
from opake_jax.types import ClippedSum

PARAMS = {"w": jnp.linspace(-1, 1, 12).reshape(3, 4), "b": jnp.ones(2)}
# These change nothing in the first steps, or at all; seen below to return the sum bit for bit.
HARMLESS = {"identity", "zero_nans", "snapshot", "apply_every", "contrib.reduce_on_plateau"}
# Behind the noise: take per-example gradients, slow-and-fast parameters, or a matrix per leaf.
ELSEWHERE = {"contrib.differentially_private_aggregate", "contrib.dpsgd", "lookahead", "measure_with_ema",
             "contrib.galore", "contrib.scale_by_galore", "contrib.scale_by_muon", "sm3", "scale_by_sm3",
             "contrib.sophia", "contrib.sam", "lbfgs", "scale_by_zoom_linesearch", "scale_by_backtracking_linesearch"}  # fmt: skip
QUICK = ["clip", "clip_by_global_norm", "centralize", "ema", "trace", "scale", "scale_by_sign", "scale_by_learning_rate",
         "add_noise", "set_to_zero", "adam", "flatten", "MultiSteps"]  # fmt: skip


@functools.cache
def sums():
    rng = np.random.default_rng(0)

    def one():
        tree = jax.tree.map(
            lambda p: jnp.asarray(3 * rng.normal(size=p.shape) + 1, jnp.float32), PARAMS
        )
        return ClippedSum(tree, 1.0, 4.0)

    return [one() for _ in range(4)]


ASK_FOR_MORE = ("polyak", "momo", "plateau", "lbfgs", "linesearch", "sophia")


def extras(name, step, gradient):
    """What transforms that ask for more than the gradient want."""
    if not any(word in name for word in ASK_FOR_MORE):
        return {}
    value = jnp.float32(2.0 - step)
    return {
        "value": value,
        "grad": gradient,
        "value_fn": lambda *_, **__: value,
        "obj_fn": lambda *_: value,
    }


def outcome(name, start):
    """Returns 'raises', 'nan', 'unchanged' or 'unseen' for the transform in front of the noise."""
    noise = gaussian_noise(1.0, key=key(0))
    noise_state, unchanged = noise.init(PARAMS), True
    try:
        tx = optax.with_extra_args_support(TRANSFORMS[name]())
        state = tx.init(start)
        for step, clipped in enumerate(sums()):
            changed, state = tx.update(clipped, state, start, **extras(name, step, clipped))
            unchanged &= jax.tree.structure(changed) == jax.tree.structure(clipped) and all(
                np.array_equal(a, b)
                for a, b in zip(jax.tree.leaves(changed), jax.tree.leaves(clipped), strict=True)
            )
            update, noise_state = noise.update(changed, noise_state)
            if all(jnp.isnan(leaf).all() for leaf in jax.tree.leaves(update)):
                return "nan"
    except Exception:
        return "raises"
    return "unchanged" if unchanged else "unseen"


def check_before(name):
    # Initialised with the parameters, as optax is used, and with a ClippedSum, so that the structures fit.
    for start in (PARAMS, ClippedSum(PARAMS, 1.0, 4.0)):
        found = outcome(name, start)
        assert found in ("nan", "raises") or (found == "unchanged" and name in HARMLESS), (
            name,
            found,
        )


@pytest.mark.parametrize("name", QUICK)
def test_common_transforms_before_the_noise_are_caught(name):
    check_before(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(set(TRANSFORMS) - set(QUICK)))
def test_every_transform_before_the_noise_is_caught(name):
    check_before(name)


def test_the_table_names_every_transform_of_this_optax():
    assert listed() - set(TRANSFORMS) == set()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(set(TRANSFORMS) - ELSEWHERE))
def test_every_transform_behind_the_noise_works(name):
    noise = gaussian_noise(1.0, key=key(0))
    inner = optax.with_extra_args_support(TRANSFORMS[name]())
    tx = optax.chain(noise, inner)
    state, alone, noise_state = tx.init(PARAMS), inner.init(PARAMS), noise.init(PARAMS)
    for step, clipped in enumerate(sums()[:2]):
        update, state = tx.update(clipped, state, PARAMS, **extras(name, step, PARAMS))
        noisy, noise_state = noise.update(clipped, noise_state, PARAMS)
        expected, alone = inner.update(noisy, alone, PARAMS, **extras(name, step, PARAMS))
        assert jax.tree.structure(update) == jax.tree.structure(PARAMS)
        for got, want in zip(jax.tree.leaves(update), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(got, want)
            assert jnp.isfinite(got).all()
