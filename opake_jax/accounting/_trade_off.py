"""Summaries of the whole curve: the trade-off function, and the Gaussian that covers it."""

from typing import Any, NamedTuple

import numpy as np

from opake_jax.accounting import _mu_gdp
from opake_jax.accounting._evaluate import quietly

__all__ = ["LINES", "GaussianSummary", "TradeOff", "covering_mu", "default_alphas"]

#: Supporting lines of the curve; twice as many move mu by less than 1e-4 (tests/accounting/test_trade_off.py).
LINES = 64


class TradeOff(NamedTuple):
    """The trade-off function at some false positive rates.

    Attributes:
      alpha: false positive rates of the attack.
      beta: lower bounds on its false negative rates.
    """

    alpha: Any
    beta: Any


class GaussianSummary(NamedTuple):
    """A Gaussian mechanism that is no more private than the process, where it matters.

    Attributes:
      mu: delta of mu-Gaussian DP is at least that of the process, wherever the latter is at least min_delta.
      min_delta: below it nothing is claimed (most processes are mu-Gaussian DP for no finite mu without it).
    """

    mu: float
    min_delta: float


def default_alphas() -> np.ndarray:
    """Returns false positive rates from 0 to 1, dense near 0."""
    return np.concatenate([[0.0], np.geomspace(1e-6, 0.1, 21), np.linspace(0.1, 1.0, 37)[1:]])


def covering_mu(epsilons: np.ndarray, deltas: np.ndarray) -> float:
    """Returns the smallest mu whose delta lies above the chords of a profile, rounded up.

    Between two points delta, convex in x = e^epsilon, lies below its chord c - s x. delta of mu lies above
    that line for all x exactly if 1 - beta_mu(s) >= c, that is mu >= Phi^-1(1 - s) - Phi^-1(1 - c). (Dong, Roth,
    Su 2019, Prop. 2.12: delta and beta are conjugate.) Negative epsilons follow by symmetry.

    Args:
      epsilons: rising, from 0; [N].
      deltas: upper bounds there, [N].
    """
    x = np.expm1(epsilons)  # of x - 1: the intercept below is taken there
    falls = deltas[:-1] - deltas[1:]
    slopes = falls / (x[1:] - x[:-1])
    heights = deltas[:-1] + slopes * (x[:-1] + 1)
    used = (slopes > 0) & (heights > slopes)
    if not np.any(used):
        return 0.0 if np.all(deltas <= 0) else np.inf
    if np.any(heights[used] >= 1):
        return np.inf
    with quietly():
        sides = [_mu_gdp.upper_quantile(values[used]) for values in (slopes, heights)]
    return max(float(np.max(sides[0] - sides[1])), 0.0) * (1 + 1e-9) + 1e-12
