"""Compositions of mechanisms with finitely many losses: exact sums, where a Fourier inversion has no use.

A law is the losses of one pair that is its own reverse, with their P-masses (the mass of an infinite loss is
kept apart). With x = e^epsilon, delta is piecewise linear and convex in x, its kinks are the losses:

    delta = leak + sum over losses l > epsilon of p_l (1 - x e^-l).
"""

import math
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Law", "beta_of", "delta_of", "epsilon_of", "law_of", "repeated_response"]

# Above this many losses the law is smooth enough for the engine, and sums cost more than it does.
_MOST_LOSSES = 200_000
# Logs of binomial coefficients by cumulative sums err by 1e-12 at 2e5 terms (2e5 steps of 1e-16, of random sign,
# at sizes up to 1e5); a hundred times that is added.
_OUTWARD = 1e-10


class Law(NamedTuple):
    """Losses in rising order, logs of their masses."""

    losses: np.ndarray
    log_masses: np.ndarray


def repeated_response(epsilon: float, count: float) -> Law | None:
    """Returns the law of `count` randomised responses of odds e^epsilon; None if it is too long.

    (2 K - count) epsilon with K ~ Bin(count, 1/(1 + e^-epsilon)).
    """
    if count > _MOST_LOSSES:
        return None
    k = np.arange(count + 1)
    choose = np.concatenate([[0.0], np.cumsum(np.log(count + 1 - k[1:]) - np.log(k[1:]))])
    log_q = -np.logaddexp(0.0, epsilon)
    return Law((2 * k - count) * epsilon, choose + count * log_q + k * epsilon)


def law_of(parts: Any) -> Law | None:
    """Returns the law of a composition; None if a part has no finite law, or the sum is too long."""
    total = Law(np.zeros(1), np.zeros(1))
    for mechanism, count in parts:
        law = mechanism.law(count)
        if law is None or total.losses.size * law.losses.size > _MOST_LOSSES:
            return None
        losses = np.add.outer(total.losses, law.losses).ravel()
        masses = np.add.outer(total.log_masses, law.log_masses).ravel()
        order = np.argsort(losses, kind="stable")
        total = Law(losses[order], masses[order])
    return total


def _delta(law: Law, epsilon: float) -> float:
    """Returns the sum over losses l > epsilon of p_l (1 - e^(epsilon - l)): positive terms only."""
    above = law.losses > epsilon
    return float(np.sum(np.exp(law.log_masses[above]) * -np.expm1(epsilon - law.losses[above])))


def delta_of(law: Law, leak: float, epsilon: float) -> tuple[float, float]:
    """Returns (lower, upper) around delta at epsilon."""
    value = (1 - leak) * _delta(law, epsilon)
    return leak + value * (1 - _OUTWARD), leak + value * (1 + _OUTWARD)


def epsilon_of(law: Law, leak: float, delta: float) -> tuple[float, float]:
    """Returns (lower, upper) around epsilon at delta > leak."""
    sides = []
    for scale in (1 - _OUTWARD, 1 + _OUTWARD):
        target = (delta - leak) / ((1 - leak) * scale)
        kinks = np.concatenate([[0.0], law.losses[law.losses > 0]])
        low, high = 0, kinks.size - 1  # delta at the last kink is the leak
        if _delta(law, 0.0) <= target:
            sides.append(0.0)
            continue
        while high - low > 1:
            middle = (low + high) // 2
            above = _delta(law, float(kinks[middle])) > target
            low, high = (middle, high) if above else (low, middle)
        # Between two kinks: sum p - x sum p e^-l = target, taken from the upper kink, where nothing cancels.
        i = int(np.searchsorted(law.losses, kinks[low], side="right"))
        masses, ends = np.exp(law.log_masses[i:]), law.losses[i:]
        at_high = float(np.sum(masses * -np.expm1(kinks[high] - ends)))
        density = float(np.sum(masses * np.exp(kinks[high] - ends)))  # x Q-mass at the upper kink
        # delta(epsilon) - delta(high) = density (1 - e^(epsilon - high))
        share = min(max((target - at_high) / density, 0.0), 1.0)
        step = math.log1p(-share) if share < 1 else -math.inf
        sides.append(max(kinks[high] + step, float(kinks[low])))
    lower, upper = sides
    return lower * (1 - 1e-15), upper * (1 + 1e-15)


def beta_of(law: Law, leak: float, alpha: float) -> tuple[float, float]:
    """Returns (lower, upper) around the trade-off function at alpha: the best of the lines at the kinks.

    max over epsilon of 1 - delta(epsilon) - e^epsilon alpha: concave in x = e^epsilon, with the slope Q(L > epsilon) - alpha
    between kinks, so that the best kink is the first whose tail under Q is at most alpha (Neyman and Pearson). Its
    neighbours are asked too: the tail is rounded.
    """
    kinks = law.losses

    def line(i: int) -> float:
        e = float(kinks[i])
        if e > 700:
            return -math.inf
        value = (1 - leak) * _delta(law, e)
        return 1 - leak - value - math.exp(e) * alpha

    with np.errstate(under="ignore"):
        masses = (1 - leak) * np.exp(law.log_masses - kinks)
    tails = np.append(np.cumsum(masses[::-1])[::-1][1:], 0.0)  # of the losses above each kink
    first = int(np.searchsorted(-tails, -alpha, side="left"))
    low, high = max(first - 2, 0), min(first + 2, kinks.size - 1)
    best = max(max(line(i) for i in range(low, high + 1)), 0.0)
    slack = _OUTWARD * (1 - leak)
    most = best + slack if kinks[high] <= 700 else 1.0  # beyond, a line was not computed
    return max(best - slack, 0.0), min(most, 1 - leak)
