"""Is a claim false? The accountant's curve against what the attacks achieved."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax import accounting
from opake_jax._checks import check_real, require
from opake_jax.auditing._binomial import check_confidence, cpu_float64
from opake_jax.auditing._one_run import check_game, least_mass
from opake_jax.auditing._points import OperatingPoints, epsilon_lower_bound

__all__ = [
    "Verdict",
    "contradicts",
    "gdp_epsilon",
    "judge",
    "noise_multiplier_bound",
    "one_run_contradicts",
]

# Neighbouring nodes of the tabulated trade-off curve differ by 3 % in 1 - alpha, and so by some 3 % of
# the probability that the bound gives away; each node costs one question to the accountant.
_NODES_PER_E_FOLD = 32
# How far from its start a noise multiplier is searched for: a factor of 1024.
_DOUBLINGS = 10


def contradicts(points: OperatingPoints, process: accounting.Process) -> np.ndarray:
    """Returns True where attacks did better than the process allows: the claim is false.

    An attack of false positive rate a misses at least `process.beta_at(a)` of the canaries. If the
    claim holds, True has probability at most 1 - confidence of `points`. It needs no epsilon, uses
    the whole curve, and so finds smaller faults than any comparison of two epsilons.

    Args:
      points: from `points_from_scores` or `points_from_counts`, shape (..., K).
      process: the claim, for all that a run releases.

    Returns:
      Boolean, shape (...).

    Raises:
      TypeError: `process` is none.
    """
    if not isinstance(process, accounting.Process):
        raise TypeError(f"process must be a process of opake_jax.accounting, got {process!r}")
    a, b = (np.reshape(x, (-1, np.shape(x)[-1])) for x in points)
    found = [
        any(_lies_below(corner, process) for corner in _corners(*row))
        for row in zip(a, b, strict=True)
    ]
    return np.reshape(found, np.shape(points[0])[:-1])


def _lies_below(corner: tuple[float, float], process: accounting.Process) -> bool:
    return bool(corner[1] < process.beta_at(corner[0]))


def _corners(a: np.ndarray, b: np.ndarray) -> list[tuple[float, float]]:
    """Returns the points that are corners of the convex hull with (0, 1) and (1, 0), the most telling first.

    A trade-off curve is convex and starts and ends at or below these two: if it lies below every corner, it
    lies below every other point as well. The order is that of the Gaussian curves through them: a guess, which
    saves questions.
    """
    hull: list[tuple[float, float]] = [(0.0, 1.0)]
    for x, y in sorted((float(x), float(y)) for x, y in zip(a, b, strict=True) if x + y < 1):
        _turn(hull, x, y)
        hull.append((x, y))
    _turn(hull, 1.0, 0.0)
    return sorted(hull[1:], key=lambda corner: sum(_quantile(rate) for rate in corner))


def _quantile(rate: float) -> float:
    return NormalDist().inv_cdf(max(rate, 1e-300))


def _turn(hull: list[tuple[float, float]], x: float, y: float) -> None:
    """Takes back the last corners that lie on or above the line to (x, y)."""
    while len(hull) > 1:
        (x0, y0), (x1, y1) = hull[-2:]
        if (x1 - x0) * (y - y0) > (x - x0) * (y1 - y0):
            return
        hull.pop()


def one_run_contradicts(
    num_canaries: int,
    num_guesses: int,
    num_correct: int,
    *,
    process: accounting.Process,
    confidence: float = 0.95,
) -> bool:
    """Returns True if so many right guesses in one run refute the process.

    The test of `one_run_gdp` with the process's own trade-off curve in place of a Gaussian one. If
    the claim holds, True has probability at most 1 - confidence.

    Args:
      num_canaries: m, each in or out by its own fair coin.
      num_guesses: r <= m, fixed before the scores are seen.
      num_correct: v <= r.
      process: the claim, for all that the run releases, for adding or removing one unit.
      confidence: in (0, 1).

    Reference: Mahloujifar, Melis and Chaudhuri, 2024, 2410.22235, algorithm 3.
    """
    level = check_confidence(confidence)
    counts = check_game(num_canaries, num_guesses, num_correct)
    require(counts[0].ndim == 0, "one_run_contradicts takes one game at a time")
    m, _, v = (int(c) for c in counts)
    if v == 0:
        return False
    # The inverse of 1 - f at x is f(1 - x), as f is its own inverse. It grows with x: read at the node
    # below, it is a lower bound.
    low = level * v / m
    number = 2 + math.ceil(_NODES_PER_E_FOLD * -math.log(low))
    nodes = np.geomspace(low, 1.0, number)
    table = np.maximum.accumulate(np.asarray(process.beta_at(1.0 - nodes)))
    # 1 - 1e-9: so that the first node is found below its own rounding.
    mass = cpu_float64(_least_mass, nodes * (1 - 1e-9), table, *counts, level)
    return bool(mass > 1.0 + 1e-9)


def noise_multiplier_bound(
    points: OperatingPoints,
    make_process: Callable[[float], accounting.Process],
    start: float,
    *,
    tolerance: float = 0.01,
) -> float:
    """Returns an upper bound on the noise multiplier that a mechanism in truth has.

    Among the processes that `make_process` makes, those claimed with more noise are contradicted.
    What `make_process(bound).epsilon_at(delta)` says is then a lower bound on epsilon at any delta, for
    a mechanism that is of this family with whatever noise: the Gaussian fit of Nasr et al. 2023
    (2302.07956) with the mechanism's own curves in place of Gaussian ones.

    Args:
      points: from `points_from_scores` or `points_from_counts`, shape (K,).
      make_process: noise multiplier -> the process that would be claimed.
      start: where the search begins, usually the claimed noise multiplier; it goes on to 1024 times
        more and less.
      tolerance: relative; the bound is at most so much larger than it could be.

    Returns:
      A positive number; inf if no claim is contradicted.
    """
    check_real("start", start, low_open=True)
    check_real("tolerance", tolerance, low_open=True)

    low, high = float(start), math.inf  # no corner so far refutes `low`; one refutes `high`
    least, most = low / 2**_DOUBLINGS, low * 2**_DOUBLINGS
    step = 1.0 + max(float(tolerance), 1e-12)  # no middle lies between neighbouring floats
    for corner in _corners(*(np.reshape(x, -1) for x in points)):

        def stands(noise_multiplier: float, corner: tuple[float, float] = corner) -> bool:
            return not _lies_below(corner, make_process(noise_multiplier))

        # A corner that does not refute `low` refutes no claim with less noise: that was all it could say.
        if stands(low):
            while high == math.inf and low < most:
                low, high = (2 * low, high) if stands(2 * low) else (low, 2 * low)
        else:
            low, high = low / 2, low
            while low >= least and not stands(low):
                low, high = low / 2, low
            if low < least:
                return high
        while low * step < high < math.inf:
            # The start itself is asked, where it is in doubt: `judge` says what holds of it.
            middle = float(start) if low < start < high else math.sqrt(low * high)
            low, high = (middle, high) if stands(middle) else (low, middle)
    return high


class Verdict(NamedTuple):
    """What an audit says of a claim, at one delta and the confidence of its points.

    Attributes:
      claimed: the accountant's epsilon, an upper bound.
      lower: a lower bound on epsilon that assumes nothing (`epsilon_lower_bound`).
      lower_in_family: a lower bound for a mechanism that differs from the claim in its noise alone
        (`noise_multiplier_bound`): much closer, with the same runs.
      contradicted: True if the claim is false (`contradicts`).
    """

    claimed: float
    lower: float
    lower_in_family: float
    contradicted: bool


def judge(
    points: OperatingPoints,
    make_process: Callable[[float], accounting.Process],
    noise_multiplier: float,
    *,
    delta: float,
) -> Verdict:
    """Returns the verdict on the claim `make_process(noise_multiplier)`.

    Args:
      points: from `points_from_scores`, `points_from_counts` or `points_from_runs`, shape (K,).
      make_process: noise multiplier -> the process of a whole run.
      noise_multiplier: the claimed one.
      delta: in (0, 1).
    """
    check_real("noise_multiplier", noise_multiplier, low_open=True)
    claim = make_process(noise_multiplier)
    # 2 % of the noise multiplier: less than the width of the intervals of some 10^5 runs.
    bound = noise_multiplier_bound(points, make_process, noise_multiplier, tolerance=0.02)
    in_family = 0.0 if bound == math.inf else make_process(bound).epsilon_bounds(delta)[0]
    return Verdict(
        claimed=claim.epsilon_at(delta),
        lower=float(epsilon_lower_bound(points, delta)),
        lower_in_family=in_family,
        contradicted=bound <= noise_multiplier,  # the search asked at it
    )


def gdp_epsilon(mu: Any, delta: float) -> float:
    """Returns the epsilon at `delta` of a mu-GDP mechanism, rounded down: for lower bounds on mu.

    >>> round(gdp_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    check_real("mu", mu)
    check_real("delta", delta, high=1.0)
    mu = float(mu)
    if mu < 1e-300:  # 1 / mu would overflow, and no delta above mu has an epsilon
        return 0.0
    return float(accounting.gaussian(1.0 / mu).epsilon_bounds(delta)[0])


@jax.jit
def _least_mass(nodes: Any, table: Any, m: Any, r: Any, v: Any, level: Any) -> jax.Array:
    def inverse(x: jax.Array) -> jax.Array:
        below = jnp.searchsorted(nodes, x, side="right") - 1
        return jnp.where(below < 0, 0.0, table[jnp.maximum(below, 0)])

    return least_mass(inverse, (m, r, v), level)
