"""Binomial tails against exact sums in 60-digit mpmath."""

import jax
import pytest
from mpmath import binomial, log, mp, mpf

from opake_jax.accounting._binomial import log_binomial_tails


@pytest.mark.parametrize(
    ("n", "p", "ks"),
    [
        (50_000, 256 / 50_000, [1, 150, 256, 257, 320, 800]),
        (10, 0.3, [1, 3, 4, 10]),
        (100, 0.99, [1, 50, 99, 100]),
        (5_000, 0.5, [2_400, 2_500, 2_501, 2_700]),
        (10**6, 1e-9, [1, 2]),
    ],
)
def test_both_tails_keep_their_digits(n, p, ks):
    with mp.workdps(60), jax.enable_x64(True):
        tails = jax.jit(log_binomial_tails)
        for k in ks:
            upper, lower = (float(v) for v in tails(k, n, p))
            truth = [
                _sum(range(k, min(n + 1, k + 6000)), n, p),
                _sum(range(k - 1, max(k - 6001, -1), -1), n, p),
            ]
            for value, exact in zip((upper, lower), truth, strict=True):
                assert abs(value - log(exact)) < 1e-11


def _sum(ks, n, p):
    """Returns the sum of the masses at ks, which run away from the mean or start on its far side."""
    total, p = mpf(0), mpf(p)
    for k in ks:
        term = binomial(n, k) * p**k * (1 - p) ** (n - k)
        total += term
        if term < total * mpf(10) ** -45 and abs(k - n * p) > 40:
            break
    return total


def test_the_ends():
    with jax.enable_x64(True):
        assert [float(v) for v in log_binomial_tails(3, 10, 0.0)] == [-float("inf"), 0.0]
        assert [float(v) for v in log_binomial_tails(3, 10, 1.0)] == [0.0, -float("inf")]
