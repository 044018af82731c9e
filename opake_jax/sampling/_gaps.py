"""Bernoulli(q) trials on 0..N-1, exactly, in time that does not depend on N.

The gaps between chosen positions are geometric, and the binary digits of a geometric variable G
(P(G = g) = q r^g, r = 1 - q) are independent: digit j is 1 with probability r^(2^j) / (1 + r^(2^j)),
and G >= 2^J has probability r^(2^J). So J + 1 comparisons of 64 random bits with constants make one
gap. The constants are computed on the host with 60-digit decimals and rounded to 2^-64, so that the
rate at which a record is chosen, given everything before it, is q (1 + O(J 2^-64)).

Float32 exponentials in place of the digits give gap probabilities that are wrong by up to 6.7 %.
"""

import decimal
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from opake_jax import _threefry

__all__ = [
    "MAX_ROWS",
    "binomial_bound",
    "chosen_positions",
    "gap_thresholds",
    "keep_uniform_subset",
]

_U = np.uint32
_WORD = 2**32
# Sums of that many bytes, with their carries, stay below 2^32.
MAX_ROWS = 2**24 - 2**17


def gap_thresholds(size: int, rate: float) -> np.ndarray:
    """Returns 2^64 times each digit's probability as uint32 pairs: shape (2, J + 1), 2^J >= size.

    The last column is for G >= 2^J: the position lies beyond the end.
    """
    digits = max(1, (size - 1).bit_length())
    exact = Fraction(rate)
    with decimal.localcontext(prec=60):
        power = 1 - decimal.Decimal(exact.numerator) / decimal.Decimal(exact.denominator)
        probabilities = []
        for _ in range(digits):
            probabilities.append(power / (1 + power))
            power = power * power
        probabilities.append(power)
        # 2^64 itself does not fit into 64 bits; it is wanted for a rate below 2^-64 / size only.
        whole = [min(int((p * 2**64).to_integral_value()), 2**64 - 1) for p in probabilities]
    return np.array([[t // _WORD for t in whole], [t % _WORD for t in whole]], np.uint32)


def binomial_bound(trials: int, rate: float, bits: int) -> int:
    """Returns an m, at most `trials`, with P(Binomial(trials, rate) > m) < 2^-bits.

    Bernstein's inequality: P(X >= mean + t) <= exp(-t^2 / (2 (variance + t / 3))).
    """
    log_bound = bits * math.log(2)
    mean = trials * float(rate)
    third = log_bound / 3
    excess = third + math.sqrt(third**2 + 2 * log_bound * mean * (1 - float(rate)))
    return min(trials, math.ceil(mean + excess))


def chosen_positions(
    words: jax.Array, thresholds: jax.Array, *, size: int, rows: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Returns the first `rows` chosen positions, ascending, and a 64-bit priority for each.

    Args:
      words: uint32 key words, shape (2,); used for nothing else.
      thresholds: of `gap_thresholds(size, rate)`.
      size: number of trials N, at most 2^31.
      rows: static length.

    Returns:
      uint32 positions, shape (rows,), N where no trial is left; and a pair of uint32 (rows,).
    """
    digits = thresholds.shape[1] - 1
    w0, w1 = _threefry.words(words, (rows, digits + 2))
    high, low = thresholds[0], thresholds[1]
    bits = (w0[:, :-1] < high) | ((w0[:, :-1] == high) & (w1[:, :-1] < low))
    gaps = jnp.sum(
        bits[:, :digits].astype(jnp.uint32) << lax.iota(jnp.uint32, digits),
        axis=1,
        dtype=jnp.uint32,
    )
    end = _U(size)
    gaps = jnp.minimum(jnp.where(bits[:, digits], end, gaps), end)

    positions = _running_total(gaps + _U(1), end + _U(1)) - _U(1)
    return positions, (w0[:, -1], w1[:, -1])


def _running_total(numbers: jax.Array, limit: np.uint32) -> jax.Array:
    """Returns min(running sum, limit) of at most MAX_ROWS uint32 numbers, without 64-bit integers.

    The four bytes are summed apart and joined with carries. (An `associative_scan` of a saturating sum
    does the same and takes three times as long to compile.)
    """
    byte = _U(255)
    bytes_ = jnp.stack([(numbers >> _U(8 * i)) & byte for i in range(4)])
    sums = jnp.cumsum(bytes_, axis=1, dtype=jnp.uint32)
    carry = total = jnp.zeros_like(numbers)
    for i in range(4):
        digit = sums[i] + carry
        total = total | ((digit & byte) << _U(8 * i))
        carry = digit >> _U(8)
    return jnp.where(carry > 0, limit, jnp.minimum(total, limit))


def keep_uniform_subset(
    positions: jax.Array, priorities: tuple[jax.Array, jax.Array], *, size: int, capacity: int
) -> tuple[jax.Array, jax.Array]:
    """Returns (indices, mask): the positions below `size`; of too many, a uniformly random subset.

    Args:
      positions: uint32, shape (rows,), ascending, `size` where there is none.
      priorities: two uint32 words for each; the `capacity` smallest are kept.
      size: number of records.
      capacity: static length of the result; padding has index 0 and mask False.
    """
    absent = positions >= _U(size)
    count = positions.shape[0] - jnp.sum(absent)
    if positions.shape[0] > capacity:
        by_priority = lax.sort((absent.astype(jnp.uint32), *priorities, positions), num_keys=3)
        positions = lax.sort(by_priority[3][:capacity])
    else:
        filler = jnp.full(capacity - positions.shape[0], size, jnp.uint32)
        positions = jnp.concatenate([positions, filler])
    mask = jnp.arange(capacity) < count
    return jnp.where(mask, positions, _U(0)).astype(jnp.int32), mask
