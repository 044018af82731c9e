"""Keys: validated seeds, streams told apart by purpose."""

import hashlib

import jax
import numpy as np
import pytest

from opake_jax.random import is_key, key, key_data, key_from_data, tag_words, tagged


def words(value):
    return np.asarray(key_data(value)).tolist()


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1])
def test_a_seed_gives_jaxs_threefry_key(seed):
    # Independent source: jax's threefry key of a 32-bit seed has the words (0, seed).
    assert words(key(seed)) == [0, seed]
    assert key(seed).dtype == jax.random.key(0, impl="threefry2x32").dtype


@pytest.mark.parametrize("seed", [-1, 2**32, 2**40, 2**63])
def test_seeds_that_jax_would_fold_onto_others_are_refused(seed):
    with pytest.raises(ValueError, match=r"seed must be in \[0, 2\*\*32\)"):
        key(seed)


@pytest.mark.parametrize(
    "seed", [True, np.bool_(False), 1.5, 1.0, "7", float("nan"), np.array([1, 2])]
)
def test_seeds_that_are_no_integers_are_refused(seed):
    with pytest.raises(TypeError, match="seed must be an integer"):
        key(seed)


def test_numpy_integers_are_seeds():
    assert words(key(np.int64(5))) == [0, 5]


def test_no_seed_draws_64_bits_from_the_system():
    drawn = {tuple(words(key())) for _ in range(64)}
    assert len(drawn) == 64  # a repeat has probability 1e-16
    # Each of the 64 bits is seen as 0 and as 1: a bit that never varies escapes with probability 2^-58.
    bits = np.array([np.unpackbits(np.array(w, np.uint32).view(np.uint8)) for w in drawn])
    assert (bits.min(axis=0) == 0).all()
    assert (bits.max(axis=0) == 1).all()


def test_tags_are_two_folds_of_the_hash():
    # Independent source: hashlib and jax.random.fold_in.
    digest = hashlib.blake2b(b"noise", digest_size=8).digest()
    high, low = int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big")
    assert [int(w) for w in tag_words("noise")] == [high, low]
    expected = jax.random.fold_in(jax.random.fold_in(key(3), np.uint32(high)), np.uint32(low))
    assert words(tagged(key(3), "noise")) == words(expected)
    assert words(tagged(key(3), b"noise")) == words(expected)


def test_tags_tell_streams_apart():
    root = key(0)
    children = {tuple(words(tagged(root, t))) for t in ("noise", "sampling", "dropout", "")}
    assert len(children | {tuple(words(root))}) == 5


def test_key_data_round_trip():
    assert words(key_from_data(key_data(key(9)))) == [0, 9]
    assert words(key_from_data(np.array([1, 2], np.uint32))) == [1, 2]


def test_what_is_a_key():
    assert is_key(key(0))
    assert jax.jit(lambda k: is_key(k) and k)(key(0)).dtype == key(0).dtype
    for other in (
        key_data(key(0)),
        jax.random.split(key(0)),
        jax.random.key(0, impl="rbg"),
        0,
        None,
    ):
        assert not is_key(other)
