"""Operating points, Clopper-Pearson bounds and what follows from them, against scipy and simulation."""

import mpmath
import numpy as np
import pytest
from scipy import stats

from opake_jax.auditing import (
    OperatingPoints,
    epsilon_lower_bound,
    gdp_lower_bound,
    points_from_counts,
    points_from_scores,
)
from opake_jax.auditing._binomial import upper_bound


def test_upper_bound_is_scipys_rounded_up():
    """Oracle: quantiles of the beta law, scipy.stats.beta.ppf."""
    n = np.array([1, 2, 7, 100, 1000, 10**5, 10**7])[:, None, None]
    k = np.floor(n * np.array([0.0, 1e-4, 0.03, 0.5, 0.97, 0.9999]))[..., None]
    level = np.array([0.3, 0.025, 1e-4, 1e-10])
    n, k, level = np.broadcast_arrays(n, np.swapaxes(k, 1, 2)[:, 0, :, None], level)
    inside = k < n
    truth = stats.beta.isf(level[inside], k[inside] + 1, n[inside] - k[inside])
    got = upper_bound(k, n, level)[inside]
    assert np.all(got >= truth * (1 - 1e-14))
    assert np.all(got <= truth * (1 + 2e-7))  # 1e7 trials: 1.2e-7 is allowed for in the tail


def test_upper_bound_is_one_where_all_succeed_and_closed_form_where_none_does():
    assert np.all(upper_bound([3, 1000], [3, 1000], 0.01) == 1.0)
    closed = -np.expm1(np.log(0.01) / np.array([1, 50, 10**6]))  # (1 - p)^n = level
    got = upper_bound(0, [1, 50, 10**6], 0.01)
    assert np.all((got >= closed) & (got <= closed * (1 + 1e-7)))


@pytest.mark.parametrize(("k", "n", "level"), [(3, 40, 1e-3), (120, 1000, 1e-9), (999, 1000, 0.05)])
def test_the_tail_at_the_bound_is_at_most_the_level(k, n, level):
    """Oracle: the exact binomial sum with 50 digits."""
    with mpmath.workdps(50):
        p = mpmath.mpf(float(upper_bound(k, n, level)))
        tail = mpmath.fsum(mpmath.binomial(n, j) * p**j * (1 - p) ** (n - j) for j in range(k + 1))
        assert level * (1 - 1e-9) <= tail <= level


def test_counts_share_the_confidence_among_thresholds():
    points = points_from_counts(
        true_positives=[80, 50], num_in=100, false_positives=[5, 1], num_out=200, confidence=0.9
    )
    expected = stats.beta.isf(0.1 / 4, np.array([6, 2]), np.array([195, 199]))
    assert points.false_positive_rate == pytest.approx(expected, rel=1e-9)
    expected = stats.beta.isf(0.1 / 4, np.array([21, 51]), np.array([80, 50]))
    assert points.false_negative_rate == pytest.approx(expected, rel=1e-9)


def test_epsilon_is_the_logarithm_of_the_worse_ratio():
    points = OperatingPoints(np.array([[0.01, 0.5]]), np.array([[0.4, 0.002]]))
    expected = max(np.log((0.6 - 1e-3) / 0.01), np.log((0.5 - 1e-3) / 0.002))
    got = epsilon_lower_bound(points, 1e-3)
    assert got.shape == (1,)
    assert expected - 1e-9 <= got[0] <= expected
    assert epsilon_lower_bound(points, 1.0)[0] == 0.0
    useless = OperatingPoints(np.array([1.0, 0.5]), np.array([1.0, 0.5]))
    assert epsilon_lower_bound(useless, 0.0) == gdp_lower_bound(useless) == 0.0


def test_gdp_is_the_shift_of_two_normals():
    points = OperatingPoints(np.array([0.01, 0.5, 1.0]), np.array([0.4, 0.002, 1.0]))
    expected = np.max(-stats.norm.ppf([0.01, 0.5]) - stats.norm.ppf([0.4, 0.002]))
    assert expected - 1e-9 <= gdp_lower_bound(points) <= expected


def gaussian_epsilon(mu, delta):
    """The epsilon of mu-GDP (Balle and Wang 2018, theorem 8), by scipy's normal tails."""
    low, high = 0.0, 100.0
    for _ in range(100):
        eps = 0.5 * (low + high)
        excess = stats.norm.cdf(mu / 2 - eps / mu) - np.exp(eps) * stats.norm.cdf(
            -mu / 2 - eps / mu
        )
        low, high = (eps, high) if excess > delta else (low, eps)
    return high


@pytest.mark.parametrize("decimals", [None, 1])
def test_gaussian_scores_rarely_exceed_the_truth_and_come_close(decimals):
    """1000 audits of N(1.5, 1) against N(0, 1), exact and rounded to a grid (ties).

    Each bound may exceed the truth in at most a tenth; 160 or more of 1000 such errors have
    probability below 1e-8 (asserted below). Power: the mean must reach
    the stated share.
    """
    assert stats.binom.sf(159, 1000, 0.1) < 1e-8
    rng = np.random.default_rng(20240801)
    ins, outs = rng.normal(size=(1000, 300)) + 1.5, rng.normal(size=(1000, 200))
    if decimals is not None:
        ins, outs = np.round(ins, decimals), np.round(outs, decimals)
    points = points_from_scores(ins, outs, confidence=0.9, num_thresholds=12)
    mu, epsilon = gdp_lower_bound(points), epsilon_lower_bound(points, 1e-2)
    assert np.sum(mu > 1.5) < 160
    assert np.sum(epsilon > gaussian_epsilon(1.5, 1e-2)) < 160
    assert np.mean(mu) > 1.0
    assert np.mean(epsilon) > 1.0


def test_the_correction_for_thresholds_is_needed_and_paid():
    """Without any correction the same audit errs far too often: the coverage test above can fail."""
    rng = np.random.default_rng(3)
    ins, outs = rng.normal(size=(500, 100)), rng.normal(size=(500, 100))
    thresholds = np.linspace(-2, 2, 24)
    counts = [(scores[..., None] > thresholds).sum(axis=1) for scores in (ins, outs)]
    naive = gdp_lower_bound(
        OperatingPoints(upper_bound(counts[1], 100, 0.05), upper_bound(100 - counts[0], 100, 0.05))
    )
    assert np.mean(naive > 0.0) > 0.05
    corrected = points_from_counts(
        true_positives=counts[0], num_in=100, false_positives=counts[1], num_out=100
    )
    # binom.sf(50, 500, 0.05) = 2e-6
    assert np.sum(gdp_lower_bound(corrected) > 0.0) <= 50


def test_perfect_separation_is_bounded_by_the_number_of_runs():
    points = points_from_scores(np.ones(1000), np.zeros(1000), num_thresholds=1)
    # Two thresholds (rank 1 on each side), two bounds each: 0 of 1000 at level 0.05 / 4.
    worst = -np.expm1(np.log(0.05 / 4) / 1000)
    assert epsilon_lower_bound(points, 0.0) == pytest.approx(np.log((1 - worst) / worst), rel=1e-9)


def test_infinite_scores_are_scores():
    points = points_from_scores([np.inf] * 50, [-np.inf] * 50)
    assert epsilon_lower_bound(points, 0.0) > 1.0


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: points_from_scores([np.nan], [1.0]), ValueError, "NaN"),
        (lambda: points_from_scores([], [1.0]), ValueError, "in_scores"),
        (lambda: points_from_scores([True], [1.0]), TypeError, "bool"),
        (lambda: points_from_scores([[1.0]], [1.0]), ValueError, "agree"),
        (lambda: points_from_scores([1.0], [1.0], confidence=1.0), ValueError, "confidence"),
        (lambda: points_from_scores([1.0], [1.0], confidence=True), TypeError, "confidence"),
        (lambda: points_from_scores([1.0], [1.0], num_thresholds=0), ValueError, "num_thresholds"),
        (lambda: epsilon_lower_bound(points_from_scores([1.0], [1.0]), -1.0), ValueError, "delta"),
        (lambda: _counts(true_positives=3), ValueError, "true_positives"),
        (lambda: _counts(false_positives=3), ValueError, "false_positives"),
        (lambda: _counts(num_out=0, false_positives=0), ValueError, "num_out"),
        (lambda: _counts(true_positives=0.5), ValueError, "whole"),
        (lambda: _counts(true_positives=-1), ValueError, "whole"),
        (lambda: _counts(true_positives=np.nan), ValueError, "whole"),
        (lambda: _counts(true_positives="1"), TypeError, "true_positives"),
    ],
)
def test_bad_input_raises_by_name(call, error, words):
    with pytest.raises(error, match=words):
        call()


def _counts(**changed):
    good = {"true_positives": 1, "num_in": 2, "false_positives": 1, "num_out": 2}
    return points_from_counts(**{**good, **changed})
