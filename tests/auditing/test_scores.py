"""AUROC and TPR at FPR: estimates against their definitions, intervals by coverage."""

import numpy as np
import pytest
from scipy import stats

from opake_jax.auditing import auroc, tpr_at_fpr


def test_auroc_is_the_mann_whitney_statistic():
    """Oracle: scipy.stats.mannwhitneyu, ties included."""
    rng = np.random.default_rng(0)
    ins, outs = rng.integers(0, 9, 70) + 1.0, rng.integers(0, 9, 110) + 0.0
    expected = stats.mannwhitneyu(ins, outs).statistic / (70 * 110)
    got = auroc(ins, outs)
    assert got.estimate == pytest.approx(expected, rel=1e-14)
    assert 0.0 < got.lower < got.estimate < got.upper < 1.0


def test_auroc_ends_are_chernoff_bounds():
    """Oracle: scipy's Kullback-Leibler sum at the ends, min(n_in, n_out) independent pairs."""
    rng = np.random.default_rng(1)
    got = auroc(rng.normal(size=80) + 1, rng.normal(size=50), confidence=0.9)
    for end in (got.lower, got.upper):
        kl = stats.entropy([got.estimate, 1 - got.estimate], [end, 1 - end])
        assert kl == pytest.approx(np.log(2 / 0.1) / 50, rel=1e-9)


def test_perfect_separation_keeps_an_honest_interval():
    got = auroc(np.ones(50), np.zeros(50))
    assert got.estimate == got.upper == 1.0
    assert got.lower == pytest.approx(np.exp(-np.log(2 / 0.05) / 50), rel=1e-9)  # kl(1, t) = -log t


def test_tpr_at_fpr_reads_the_empirical_curve():
    got = tpr_at_fpr(np.arange(100) + 50.0, np.arange(100), 0.1)
    assert got.estimate == 0.6  # the threshold is 89: ten of the others lie above, and 90 ... 149
    assert got.lower < 0.6 < got.upper


@pytest.mark.parametrize("decimals", [None, 1])
def test_intervals_cover_the_truth(decimals):
    """60 audits at 80 %: misses of either interval at most 12 expected; 30 have probability 3e-7.

    Scores N(1, 1) against N(0, 1): AUROC Phi(1 / sqrt 2), TPR at FPR f Phi(Phi^-1(f) + 1). Rounding
    makes ties: the curve at f is then below the chord of the exact one, within a cell.
    """
    assert stats.binom.sf(29, 60, 0.2) < 1e-6
    rng = np.random.default_rng(2)
    truth, misses = stats.norm.cdf(1 / np.sqrt(2)), np.zeros(2)
    widths = []
    for _ in range(60):
        ins, outs = rng.normal(size=250) + 1, rng.normal(size=400)
        if decimals is not None:
            ins, outs = np.round(ins, decimals), np.round(outs, decimals)
        area = auroc(ins, outs, confidence=0.8)
        rate = tpr_at_fpr(ins, outs, 0.1, confidence=0.8)
        power = stats.norm.cdf(stats.norm.ppf(0.1) + 1)
        misses += [not area.lower <= truth <= area.upper, not rate.lower <= power <= rate.upper]
        widths.append((area.upper - area.lower, rate.upper - rate.lower))
    assert np.all(misses < 30)
    assert np.all(np.mean(widths, axis=0) < [0.15, 0.3])  # and they are not trivially wide


def test_too_few_scores_give_the_trivial_ends():
    got = tpr_at_fpr(np.ones(10), np.zeros(10), 1e-4)
    assert got.lower == 0.0
    got = tpr_at_fpr(np.ones(10), np.zeros(10), 0.9999)
    assert got.upper == 1.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: auroc([[1.0]], [1.0]), "one-dimensional"),
        (lambda: auroc([1.0], [np.nan]), "out_scores"),
        (lambda: tpr_at_fpr([1.0], [1.0], 0.0), "fpr"),
        (lambda: tpr_at_fpr([1.0], [1.0], 1.0), "fpr"),
        (lambda: tpr_at_fpr([1.0], [1.0], 0.1, confidence=1.5), "confidence"),
    ],
)
def test_bad_input_raises_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()
