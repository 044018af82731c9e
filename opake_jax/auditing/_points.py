"""From the scores or counts of many runs to points that no claimed trade-off curve may lie above."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.scipy.special import ndtri

from opake_jax._checks import check_count, check_real, require
from opake_jax.auditing._binomial import (
    as_numbers,
    check_confidence,
    check_counts,
    elementwise,
    upper_bound,
)

__all__ = [
    "OperatingPoints",
    "epsilon_lower_bound",
    "gdp_lower_bound",
    "points_from_counts",
    "points_from_scores",
]


# Each halves the level of all; a million have long lost what they could find.
_MOST_THRESHOLDS = 10**6


class OperatingPoints(NamedTuple):
    """Upper bounds on the error rates of K attacks, all true at once with the stated confidence.

    Attributes:
      false_positive_rate: shape (..., K), in (0, 1]: P[guess "in" | canary out] is at most this.
      false_negative_rate: shape (..., K), in (0, 1]: P[guess "out" | canary in] is at most this.

    A mechanism with trade-off function f has, for each attack, f(false positive rate) <= false
    negative rate; f falls, so f(bound) <= bound, or the claim is false.
    """

    false_positive_rate: np.ndarray
    false_negative_rate: np.ndarray


def points_from_counts(
    *,
    true_positives: Any,
    num_in: Any,
    false_positives: Any,
    num_out: Any,
    confidence: float = 0.95,
) -> OperatingPoints:
    """Returns the operating points of K attacks that were fixed before the runs.

    Args:
      true_positives: shape (..., K): of `num_in` runs with the canary, how often "in" was guessed.
      num_in: number of independent runs with the canary.
      false_positives: shape (..., K): of `num_out` runs without it, how often "in" was guessed.
      num_out: number of independent runs without the canary.
      confidence: in (0, 1), for all 2 K bounds of the last axis together (Bonferroni).

    Raises:
      ValueError: counts above their totals, fractions, an empty side, a confidence outside (0, 1).

    >>> points = points_from_counts(true_positives=80, num_in=100, false_positives=5, num_out=100)
    >>> round(float(points.false_positive_rate[0]), 4)
    0.1128
    """
    level = check_confidence(confidence)
    tp, n_in, fp, n_out = (
        np.atleast_1d(a)
        for a in check_counts(
            true_positives=true_positives,
            num_in=num_in,
            false_positives=false_positives,
            num_out=num_out,
        )
    )
    require(bool(np.all((n_in > 0) & (n_out > 0))), "num_in and num_out must be at least 1")
    require(bool(np.all(tp <= n_in)), "true_positives must be at most num_in")
    require(bool(np.all(fp <= n_out)), "false_positives must be at most num_out")
    each = level / (2 * tp.shape[-1])
    return OperatingPoints(upper_bound(fp, n_out, each), upper_bound(n_in - tp, n_in, each))


def points_from_scores(
    in_scores: Any, out_scores: Any, *, confidence: float = 0.95, num_thresholds: int = 24
) -> OperatingPoints:
    """Returns operating points at thresholds that the scores themselves supply.

    Half the thresholds are the k-th largest score without the canary, the other half the k-th
    smallest with it, for ranks k in a geometric grid that depends on the numbers of scores alone.
    The rate of one side at its own order statistic is bounded as if k - 1 scores had passed (the law
    of an order statistic is a beta law, whatever that of the scores; ties only help), and the other
    side's count is binomial given the threshold. So nothing is lost by having looked, and the
    correction is for the 2 `num_thresholds` chosen thresholds, not for every possible one.

    Args:
      in_scores: one score for each independent run with the canary, (..., n_in); high means "in".
      out_scores: one score for each independent run without it, (..., n_out).
      confidence: in (0, 1), for all bounds of the last axis together.
      num_thresholds: thresholds taken from each side; more cost little (each doubling widens the
        intervals by some 4 %).

    Raises:
      ValueError: an empty side, NaN among the scores, numbers out of range.

    >>> points = points_from_scores(np.arange(100) + 60.0, np.arange(100))
    >>> float(epsilon_lower_bound(points, 1e-5)) > 1.0
    True
    """
    level = check_confidence(confidence)
    check_count("num_thresholds", num_thresholds, minimum=1, maximum=_MOST_THRESHOLDS)
    ins, outs = check_scores(in_scores=in_scores, out_scores=out_scores)
    require(
        ins.shape[:-1] == outs.shape[:-1],
        f"in_scores and out_scores must agree in all axes but the last, got {ins.shape} and {outs.shape}",
    )
    ins, outs = np.sort(ins, axis=-1), np.sort(outs, axis=-1)
    n_in, n_out = ins.shape[-1], outs.shape[-1]
    by_out, by_in = _ranks(n_out, num_thresholds), _ranks(n_in, num_thresholds)
    each = level / (2 * (len(by_out) + len(by_in)))
    high = outs[..., n_out - by_out]  # "in" is guessed above this
    low = ins[..., by_in - 1]  # "in" is guessed from this on
    passed = [np.broadcast_to(by_out - 1, high.shape), n_out - _count_below(outs, low, "left")]
    missed = [_count_below(ins, high, "right"), np.broadcast_to(by_in - 1, low.shape)]
    return OperatingPoints(
        upper_bound(np.concatenate(passed, axis=-1), n_out, each),
        upper_bound(np.concatenate(missed, axis=-1), n_in, each),
    )


def epsilon_lower_bound(points: OperatingPoints, delta: float) -> np.ndarray:
    """Returns a lower bound on epsilon at `delta` that assumes nothing about the mechanism.

    (epsilon, delta) differential privacy asks 1 - b <= e^epsilon a + delta of the error rates (a, b)
    of any attack, and the same with a and b exchanged (Kairouz et al. 2015, 1311.0776).

    Args:
      points: from `points_from_scores` or `points_from_counts`.
      delta: in [0, 1].

    Returns:
      Float64, shape (...): the largest bound over the last axis, at least 0, rounded down. True with
      the confidence of `points`.
    """
    check_real("delta", delta, high=1.0, high_open=False)
    a, b = points
    with np.errstate(divide="ignore"):
        power = np.concatenate([1.0 - b, 1.0 - a], axis=-1) - float(delta) - 4e-16  # its rounding
        ratio = np.log(np.maximum(power, 0.0)) - np.log(np.concatenate([a, b], axis=-1))
    # 1e-12: hundreds of times the rounding of the two logarithms, far below any interval's width.
    return np.maximum(np.max(ratio, axis=-1) - 1e-12, 0.0)


def gdp_lower_bound(points: OperatingPoints) -> np.ndarray:
    """Returns a lower bound on mu for a mechanism that is mu-GDP.

    mu >= Phi^-1(1 - b) - Phi^-1(a) for the error rates (a, b) of any attack. Tight for the Gaussian
    mechanism (then `gdp_epsilon` turns it into an epsilon that CP alone reaches only with far more
    runs). For a mechanism that is not Gaussian it bounds the smallest mu that covers it, and an
    epsilon made from it is an extrapolation, not a bound (Nasr et al. 2023, 2302.07956, section 4).

    Returns:
      Float64, shape (...), at least 0, rounded down.
    """
    a, b = points
    mu = np.max(elementwise(_shift, a, b), axis=-1)
    return np.maximum(mu - 1e-12, 0.0)  # 1e-12: as in `epsilon_lower_bound`


@jax.jit
def _shift(a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns Phi^-1(1 - b) - Phi^-1(a), -inf where either error rate may be 1."""
    return -ndtri(a) - ndtri(b)


def check_scores(**scores: Any) -> list[np.ndarray]:
    """Returns the scores as float64 arrays, after looking for empty sides and NaN."""
    arrays = []
    for name, value in scores.items():
        array = np.atleast_1d(as_numbers(name, value).astype(np.float64))
        require(array.shape[-1] > 0, f"{name} must hold at least one score")
        require(
            not bool(np.any(np.isnan(array))),
            f"{name} must hold no NaN: score a failed run -inf or inf, by a rule fixed beforehand",
        )
        arrays.append(array)
    return arrays


def _ranks(count: int, number: int) -> np.ndarray:
    """Returns at most `number` distinct ranks from 1 to `count`, evenly spaced in the logarithm."""
    return np.unique(np.rint(np.geomspace(1, count, number)).astype(np.int64))


def _count_below(ordered: np.ndarray, thresholds: np.ndarray, side: Any) -> np.ndarray:
    """Returns how many of each row's sorted values lie below (or, side "right", at) a threshold."""
    rows = ordered.reshape(-1, ordered.shape[-1]), thresholds.reshape(-1, thresholds.shape[-1])
    counts = [np.searchsorted(x, t, side=side) for x, t in zip(*rows, strict=True)]
    return np.reshape(counts, thresholds.shape)
