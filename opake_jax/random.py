"""Where does randomness come from?

Every random draw of this package starts at a typed threefry key that the caller made with `key` and
passed on by hand. There is no default key and no hidden generator. Streams for different purposes,
steps and leaves are told apart by `tagged`, which folds 64 bits of a hash into the key.
"""

import hashlib
import operator
import secrets
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["is_key", "key", "key_data", "key_from_data", "tagged"]

_IMPL = "threefry2x32"


def key(seed: int | None = None) -> jax.Array:
    """Returns a typed threefry key: fresh from the operating system, or made from a seed.

    Args:
      seed: None draws 64 bits from the operating system's secure source. An integer in
        [0, 2^32) gives the same key each time: for tests only, since whoever knows the seed can
        subtract the noise. (jax itself maps the seed 2^40 to the key of 0; here that is an error.)

    Returns:
      A scalar key array of dtype `key<fry>`.

    Raises:
      TypeError: `seed` is no integer (a boolean is none).
      ValueError: `seed` lies outside [0, 2^32).

    >>> key(7) == key(7)
    Array(True, dtype=bool)
    """
    if seed is None:
        words = np.frombuffer(secrets.token_bytes(8), np.uint32)
        return key_from_data(words)
    if isinstance(seed, (bool, np.bool_)):
        raise TypeError(f"seed must be an integer in [0, 2**32) or None, got {seed!r}")
    try:
        number = operator.index(seed)
    except TypeError:
        raise TypeError(f"seed must be an integer in [0, 2**32) or None, got {seed!r}") from None
    if not 0 <= number < 2**32:
        raise ValueError(
            f"seed must be in [0, 2**32), got {number}: jax would map it to the key of another seed"
        )
    return jax.random.key(np.uint32(number), impl=_IMPL)


def is_key(value: Any) -> bool:
    """Returns True if `value` is a scalar typed threefry key, the only kind that this package takes."""
    return (
        isinstance(value, jax.Array)
        and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        and value.shape == ()
        and str(jax.random.key_impl(value)) == _IMPL
    )


def key_data(value: jax.Array) -> jax.Array:
    """Returns the two uint32 words of a key, for states that are saved: shape (2,)."""
    return jax.random.key_data(value)


def key_from_data(words: Any) -> jax.Array:
    """Returns the typed key that has these two uint32 words: the inverse of `key_data`.

    Raises:
      TypeError: `words` are no two whole numbers in [0, 2^32), shape (2,).
    """
    if not isinstance(words, jax.Array):
        words = _as_words(words)
    if words.dtype != jnp.uint32 or words.shape != (2,):
        raise TypeError(
            f"words must be the uint32 words of a key, shape (2,), got {words.dtype} {words.shape}: "
            "see key_data"
        )
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl=_IMPL)


def _as_words(words: Any) -> np.ndarray:
    """Returns whole numbers in [0, 2^32) as uint32, anything else as it is."""
    array = np.asarray(words)
    whole = array.dtype.kind in "iu" and bool(np.all((array >= 0) & (array < 2**32)))
    return array.astype(np.uint32) if whole else array


def tagged(parent: jax.Array, tag: str | bytes) -> jax.Array:
    """Returns the child key of `parent` for a named purpose (or a leaf's path).

    The tag enters as two `fold_in`s of its 64-bit blake2b hash. Two tags collide with probability
    2^-64; whoever derives many at once checks that the hashes differ (`tag_words`).

    >>> root = key(0)
    >>> bool(tagged(root, "noise") == tagged(root, "sampling"))
    False
    """
    for word in tag_words(tag):
        parent = jax.random.fold_in(parent, word)
    return parent


def tag_words(tag: str | bytes) -> tuple[np.uint32, np.uint32]:
    """Returns the two 32-bit words of the tag's blake2b hash."""
    raw = tag.encode() if isinstance(tag, str) else tag
    digest = hashlib.blake2b(raw, digest_size=8).digest()
    return np.uint32(int.from_bytes(digest[:4], "big")), np.uint32(
        int.from_bytes(digest[4:], "big")
    )
