"""The normal sampler against mpmath and scipy, and the tests' power against worse samplers.

Statistical tests have fixed keys; the false-alarm rate stated is that of a correct sampler under a random key.
"""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import special, stats

from opake_jax import _threefry
from opake_jax.noise._normal import STD_INFLATION, from_words, normal
from opake_jax.random import key, key_data

DRAWS = 2**20
quantiles = jax.jit(from_words)
draw = jax.jit(normal, static_argnums=1)


def pair(W, sign=0):
    """Returns the words whose 62-bit magnitude integer is W (the layout that `from_words` states)."""
    W = np.asarray(W, np.uint64)
    w0 = (W >> np.uint64(31)).astype(np.uint32) << np.uint32(1) | np.uint32(sign)
    w1 = (W & np.uint64(2**31 - 1)).astype(np.uint32) << np.uint32(1)
    return w0, w1


@functools.cache
def ours():
    return np.asarray(draw(key_data(key(11)), (DRAWS,))).astype(np.float64)


@functools.cache
def bfloat16():
    """jax's bfloat16 normal: 128 distinct values, none beyond 2.89."""
    z = jax.jit(lambda k: jax.random.normal(k, (DRAWS,), jnp.bfloat16))(key(11))
    return np.asarray(z.astype(jnp.float32)).astype(np.float64)


def truncated():
    """A normal with its tails beyond 4 cut off (mass 6.3e-5)."""
    return np.where(np.abs(ours()) > 4.0, 0.0, ours())


def test_words_are_those_of_jax():
    # Independent source: jax's own threefry, through the public split and fold_in.
    root = key(3)
    data = np.asarray(key_data(jax.random.split(root, (5, 7))))
    w0, w1 = _threefry.words(key_data(root), (5, 7))
    assert (w0 == data[..., 0]).all()
    assert (w1 == data[..., 1]).all()
    children = [key_data(jax.random.fold_in(root, i)) for i in (0, 1, 2**32 - 1)]
    folded = _threefry.fold(key_data(root), np.array([0, 1, 2**32 - 1], np.uint32))
    assert (np.stack(children, axis=1) == folded).all()


@pytest.mark.parametrize("shape", [(7,), (4, 4), (3, 2, 7), (16, 16)])
def test_counters_are_distinct_also_beyond_one_word(shape):
    # With 16 in place of 2^32, so that the high word comes into play.
    high, low = _threefry._counters(shape, limit=16)
    assert high.shape == low.shape == shape
    both = {(int(a), int(b)) for a, b in zip(high.ravel(), low.ravel(), strict=True)}
    assert len(both) == np.prod(shape, dtype=int)
    assert all(b < 16 for _, b in both)


@pytest.mark.parametrize("shape", [(1, 17, 1), (3, 6, 7)])
def test_more_elements_than_counters_are_refused(shape):
    with pytest.raises(ValueError, match="more elements"):
        _threefry._counters(shape, limit=16)


def test_counters_of_a_usual_array_are_its_row_major_index():
    high, low = _threefry._counters((3, 4, 5))
    assert not high.any()
    assert (low.ravel() == np.arange(60)).all()


EXTREMES = [0, 1, 2, 3, 7, 100, 2**20, 2**31 - 1, 2**31, 2**31 + 1, 2**32, 2**40, 2**45, 2**50, 2**55, 2**58,
            2**60, 2**61, 2**62 - 2**55, 2**62 - 2**40, 2**62 - 2**31, 2**62 - 2**20, 2**62 - 2, 2**62 - 1]  # fmt: skip


def exact_quantile(W):
    """The quantile of p = (W + 1/2) 2^-63 by mpmath, from whichever end does not cancel."""
    with mp.workdps(40):
        p = (mp.mpf(W) + mp.mpf(1) / 2) * mp.mpf(2) ** -63
        if W >= 2**61:
            x = (mp.mpf(2**62 - 1 - W) + mp.mpf(1) / 2) * mp.mpf(2) ** -62
            return mp.sqrt(2) * mp.erfinv(x)
        start = -special.ndtri(float(p))
        log_p = mp.log(p)
        return mp.findroot(lambda z: mp.log(mp.erfc(z / mp.sqrt(2)) / 2) - log_p, start)


def test_extreme_bit_patterns():
    z = np.asarray(quantiles(*pair(EXTREMES)))
    # 3.5e-7 is 3 ulp: polynomial, log and three products in float32.
    for W, got in zip(EXTREMES, z, strict=True):
        exact = exact_quantile(W)
        assert abs(float((mp.mpf(float(got)) - exact) / exact)) < 3.5e-7, W
    assert np.isfinite(z).all()
    assert (z > 0).all()
    assert (quantiles(*pair(EXTREMES, sign=1)) == -z).all()
    assert 9.07 < z[0] < 9.09  # the missing mass is 2^-63


@pytest.mark.parametrize("end", ["tail", "centre"])
def test_relative_error_everywhere(end):
    # Independent source: scipy's float64 ndtri (tail) and erfinv (centre), relative error < 1e-14.
    distance = np.floor(2.0 ** np.random.default_rng(0).uniform(0, 61, 200_000)).astype(np.uint64)
    if end == "tail":
        W, exact = (
            distance,
            -special.ndtri((distance.astype(np.longdouble) + 0.5).astype(float) * 2.0**-63),
        )
    else:
        W = np.uint64(2**62 - 1) - distance
        exact = np.sqrt(2) * special.erfinv((distance + 0.5) * 2.0**-62)
    error = np.asarray(quantiles(*pair(W))).astype(np.float64) / exact - 1
    assert np.abs(error).max() < 3.5e-7
    assert np.sqrt((error**2).mean()) < 1.2e-7


def test_second_moment_is_never_below_one():
    # One random point in each of 2^18 strata of p; the exact squares come from scipy's float64 quantiles. What
    # evaluation does to E z^2: +1.9e-8 on one CPU, -4.8e-8 on another (their logarithms differ).
    strata = np.arange(2**18, dtype=np.uint64) << np.uint64(44)
    W = strata + np.random.default_rng(0).integers(0, 2**44, 2**18).astype(np.uint64)
    got = np.asarray(quantiles(*pair(W))).astype(np.float64)
    exact = -special.ndtri((W.astype(np.longdouble) + 0.5).astype(float) * 2.0**-63)
    shift = (got**2 - exact**2).mean()
    assert abs(shift) < 2e-7
    # The float32 std is noise_multiplier * sensitivity * inflation: four roundings of 2^-24 at most.
    assert (1 - 2e-7) * (STD_INFLATION * (1 - 4 * 2.0**-24)) ** 2 > 1
    assert STD_INFLATION**2 < 1 + 2e-6


def ks(z):
    z = np.sort(z)
    cdf, i = special.ndtr(z), np.arange(1, len(z) + 1)
    return max((i / len(z) - cdf).max(), (cdf - (i - 1) / len(z)).max()) * np.sqrt(len(z))


def test_kolmogorov_smirnov():
    limit = stats.kstwobign.isf(1e-4)  # false-alarm rate
    assert ks(ours()) < limit
    assert ks(bfloat16()) > limit


def test_moments():
    # Normal moments: E z^k = (k-1)!!, Var z^k = (2k-1)!! - ((k-1)!!)^2. False-alarm rate 5 * 1e-5.
    limit = stats.norm.isf(0.5e-5)

    def alarms(z):
        table = ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170))
        return [
            p for p, mean, var in table if abs((z**p).mean() - mean) > limit * np.sqrt(var / DRAWS)
        ]

    assert alarms(ours()) == []
    assert set(alarms(bfloat16())) >= {1, 4, 6}


def test_tail_counts():
    # Counts beyond t are binomial with twice the normal tail. False-alarm rate 5 * 2e-5 at most.
    def alarm(z):
        tails = {t: 2 * special.ndtr(-t) for t in (2.0, 3.0, 3.5, 4.0, 4.5)}
        count = {t: int((np.abs(z) > t).sum()) for t in tails}
        return any(
            stats.binom.cdf(count[t], DRAWS, p) < 1e-5
            or stats.binom.sf(count[t] - 1, DRAWS, p) < 1e-5
            for t, p in tails.items()
        )

    assert not alarm(ours())
    assert alarm(bfloat16())
    assert alarm(truncated())


def test_fine_grain():
    # Birthday counts: 2^20 draws of a 24-bit-mantissa normal repeat rarely. jax's float32 normal, which
    # uses 23 bits of the word, has 6 % repeats here; its bfloat16 normal has 128 distinct values.
    assert len(np.unique(ours())) > 0.985 * DRAWS
    assert len(np.unique(bfloat16())) < 200


def test_draws_depend_on_the_index_and_not_on_the_shape():
    words = key_data(key(5))
    flat = np.asarray(draw(words, (36 * 28,)))
    assert (np.asarray(draw(words, (36, 28))).ravel() == flat).all()
    assert (np.asarray(draw(words, (4, 9, 28))).ravel() == flat).all()
    for size in (1, 3, 17, 1003):
        assert (draw(words, (size,)) == flat[:size]).all()
