"""The exact gap digits: the law of one gap, and the arithmetic that joins gaps to positions."""

import decimal
import functools
from fractions import Fraction

import jax
import numpy as np
import pytest
from scipy import stats

from opake_jax.random import key, key_data
from opake_jax.sampling import _gaps

decimal.getcontext().prec = 60
RATES = [
    (60_000, 512 / 60_000),
    (10**8, 5.12e-6),
    (2**31, 1e-9),
    (1000, 0.3),
    (6, 0.999),
    (50, 1e-18),
]


def digit_probabilities(size, rate):
    """What the thresholds really give each digit, exactly."""
    high, low = _gaps.gap_thresholds(size, rate).astype(object)
    return [
        decimal.Decimal(int(h) * 2**32 + int(l)) / 2**64 for h, l in zip(high, low, strict=True)
    ]


@pytest.mark.parametrize(("size", "rate"), RATES)
def test_law_of_one_gap(size, rate):
    # Independent source: P(G = g) = q r^g with 60-digit decimals.
    *digits, beyond = digit_probabilities(size, rate)
    q = decimal.Decimal(rate)
    for gap in {
        0,
        1,
        2,
        3,
        size // 1000,
        size // 512,
        size // 100,
        size // 40,
        size // 3,
        size - 1,
    }:
        found = 1 - beyond
        for j, p in enumerate(digits):
            found *= p if gap >> j & 1 else 1 - p
        exact = q * (1 - q) ** gap
        assert abs(found - exact) < decimal.Decimal("1e-18")
        if exact > decimal.Decimal("1e-6"):
            assert abs(found / exact - 1) < decimal.Decimal("1e-17") * (1 + gap)
    assert abs(beyond - (1 - q) ** (2 ** len(digits))) < decimal.Decimal("1e-18")
    assert 2 ** len(digits) >= size


def test_law_of_one_gap_in_rationals():
    # All gaps of a small dataset by fractions, without decimals.
    *digits, beyond = [Fraction(p) for p in digit_probabilities(6, 0.3)]
    q = Fraction(0.3)
    for gap in range(8):
        found = 1 - beyond
        for j, p in enumerate(digits):
            found *= p if gap >> j & 1 else 1 - p
        assert abs(found - q * (1 - q) ** gap) < Fraction(1, 10**18)


@pytest.mark.parametrize(("size", "rate"), RATES)
@pytest.mark.parametrize("bits", [64, 128])
def test_the_buffer_suffices(size, rate, bits):
    # Independent source: scipy's binomial tail.
    bound = _gaps.binomial_bound(size, rate, bits)
    assert bound <= size
    if bound < size:
        assert stats.binom.logsf(bound, size, rate) < -bits * np.log(2)
        assert bound < size * rate + 4 * bits + 4 * np.sqrt(bits * size * rate)  # and is not absurd


def positions_by_hand(words, size, rate, rows):
    """The same positions with Python's integers, from jax's own random words."""
    thresholds = [int(p * 2**64) for p in digit_probabilities(size, rate)]
    count = len(thresholds)
    split = jax.random.split(
        jax.random.wrap_key_data(words, impl="threefry2x32"), (rows, count + 1)
    )
    data = np.asarray(key_data(split)).astype(object)
    place, out = -1, []
    for row in data:
        bits = [
            int(h) * 2**32 + int(l) < t for (h, l), t in zip(row[:count], thresholds, strict=True)
        ]
        gap = size if bits[-1] else sum(1 << j for j, bit in enumerate(bits[:-1]) if bit)
        place = min(place + gap + 1, size)
        out.append(place)
    return out, [int(h) * 2**32 + int(l) for h, l in data[:, -1]]


@functools.partial(jax.jit, static_argnames=("size", "rows"))
def positions(words, thresholds, *, size, rows):
    return _gaps.chosen_positions(words, thresholds, size=size, rows=rows)


@pytest.mark.parametrize(("size", "rate"), [(1000, 0.03), (2**31, 1e-8), (2**31, 3e-10), (1, 0.5)])
@pytest.mark.parametrize("seed", [1, 2])
def test_positions_are_joined_from_the_digits(size, rate, seed):
    words = key_data(key(seed))
    found, (high, low) = positions(words, _gaps.gap_thresholds(size, rate), size=size, rows=48)
    expected, priorities = positions_by_hand(words, size, rate, 48)
    assert found.tolist() == expected
    assert [int(h) * 2**32 + int(l) for h, l in zip(high, low, strict=True)] == priorities
    assert expected[-1] == size or size == 1000  # the others run past the end


def test_running_total_saturates():
    # Independent source: Python's integers.
    rng = np.random.default_rng(0)
    total = jax.jit(_gaps._running_total)
    for scale, limit in ((10**6, 2**31 + 1), (2**31, 2**31 + 1), (2**31, 2**32 - 1), (300, 5000)):
        numbers = rng.integers(0, scale, 64).astype(np.uint32)
        expected = np.minimum(np.cumsum(numbers.astype(object)), limit)
        assert total(numbers, np.uint32(limit)).tolist() == expected.tolist()
