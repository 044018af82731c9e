"""What if there is so little noise that every output tells how often the unit took part?

One step: P = sum_j p_j N(j, sigma^2), j = 0, ..., J, against Q = N(0, sigma^2). With y_j = (2 j x - j^2)/(2 sigma^2) the loss is
l = log sum_j p_j e^(y_j). Draw x by first drawing its component m. Always

    l >= log p_m + y_m,        y_m ~ N(m^2/(2 sigma^2), m^2/sigma^2) given m.

For x = m + d the exponents differ by y_m - y_j = |m - j| (|m - j| +- 2 d)/(2 sigma^2), which is at least a if |d| <=
1/2 - a sigma^2; then l <= log p_m + y_m + e^-a/p_m. Let n_m be how many of T steps come from component m, and let the losses
log p_m + y_m take the place of l: given all n, their sum is that of a Gaussian release of

    mu^2 = sum_m n_m m^2/sigma^2,        moved by        c = sum_m n_m log p_m <= 0.

So with F(epsilon) = E_n delta_mu(epsilon - c), delta_mu the closed form of the Gaussian,

    F(epsilon) <= delta(epsilon) <= F(epsilon - T e^-a/min p) + 2 T Phi(-(1/2 - a sigma^2)/sigma).

Steps of several kinds add up, unmixed Gaussians (p_1 = 1) among them, whose loss is y_1 itself. Of (Q, P) the loss is at most
-log p_0 a step: with C their sum, delta is at most that of the unmixed Gaussians at epsilon - C.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from opake_jax._numerics import log_ndtr, logsumexp
from opake_jax.accounting import _mu_gdp
from opake_jax.accounting._binomial import log_binomial_pmf
from opake_jax.accounting._gaussian_pairs import GaussianMixturePair
from opake_jax.accounting._pairs import ULP

__all__ = ["Apart", "apart_of"]

_MOST = 4096  # combinations of how often each component occurs
_LEFT_OUT = -16.0  # log of the share of delta that may be left out, and is added
_MOVED = 1e-10  # of epsilon: by how much all losses together may be larger
_LEAST = 1e-3  # p_0, which is known by subtraction; 0 is known, too
_WIDEST = 0.1  # sigma: beyond, components overlap by more than any delta
_TINY = 1e-100  # of sigma: its inverse is squared
_BEYOND = 40.0  # of epsilon: what lies there is e^-40 of alpha


class _Kind(NamedTuple):
    """T steps of one pair: probabilities p_0, ..., p_J."""

    steps: float
    p: np.ndarray
    sigma: float


class Apart(NamedTuple):
    """How often which component occurs, and what it costs.

    Attributes:
      log_mass: [C], of each combination; to 1e-11 for each kind.
      mu, c: [C].
      rounding: bound on the error of log masses.
      log_left_out: log of the mass that is not among them.
      moved: how much larger the loss may be.
      slack: by how much c may be wrong.
      alone: mu of the unmixed Gaussians.
      reverse: C.
    """

    log_mass: np.ndarray
    mu: np.ndarray
    c: np.ndarray
    rounding: float
    log_left_out: float
    moved: float
    slack: float
    alone: float
    reverse: float

    def log_delta(self, epsilon: float) -> tuple[float, float]:
        """Returns (lower, upper) around log delta at epsilon >= 0."""
        return self._lower(epsilon), self._upper(epsilon)

    def _lower(self, epsilon: float) -> float:
        at = epsilon + self.slack + 8 * ULP * epsilon
        low = _mu_gdp.log_delta(self.mu, np.maximum(at - self.c, 0.0))[0]
        value = float(logsumexp(self.log_mass + low)) - self.rounding
        return value if value <= 0 else -math.inf  # a NaN is no bound

    def _upper(self, epsilon: float) -> float:
        at = epsilon - self.slack - 8 * ULP * epsilon - self.moved
        up = _mu_gdp.log_delta(self.mu, np.maximum(at - self.c, 0.0))[1]
        value = float(np.logaddexp(logsumexp(self.log_mass + up), self.log_left_out))
        value = max(value + self.rounding, self._reverse(at - self.reverse))
        return value if value <= 0 else 0.0

    def _reverse(self, epsilon: float) -> float:
        """Returns a bound on log delta of the unmixed Gaussians at any epsilon: delta(-x) = 1 - e^-x + e^-x delta(x)."""
        up = float(_mu_gdp.log_delta(np.float64(self.alone), np.float64(abs(epsilon)))[1])
        if epsilon >= 0:
            return up
        return math.log(-math.expm1(epsilon) + math.exp(epsilon + up)) + 8 * ULP

    def epsilon(self, log_delta: float) -> tuple[float, float]:
        """Returns (lower, upper) around epsilon at log delta, each end found by bisection on its own side."""
        far = math.sqrt(2 * (5 - log_delta))
        most = float(np.max(self.c + self.mu * (self.mu / 2 + far)))
        most = (most + self.reverse + self.alone * (self.alone / 2 + far)) * (1 + 1e-9) + 1
        upper = _crossing(self._upper, log_delta, most, most)[1]
        near = min(upper, most)
        return _crossing(self._lower, log_delta, near, 1e-9 * near)[0], upper

    def beta(self, alpha: float) -> tuple[float, float]:
        """Returns (lower, upper) around the trade-off function.

        It is the largest of the lines 1 - delta(epsilon) - e^epsilon alpha and e^-epsilon (1 - delta(epsilon) - alpha), of
        which those at 0 are the best where delta stands still.
        """
        far = _BEYOND - math.log(alpha)
        lower = -math.expm1(self.log_delta(0.0)[1]) - alpha
        upper = max(-math.expm1(self.log_delta(far)[0]) - alpha, math.exp(-far))
        return max(lower - 4 * ULP, 0.0), min(upper + 4 * ULP, 1.0)


def _crossing(
    falling: Callable[[float], float], level: float, high: float, step: float
) -> tuple[float, float]:
    """Returns where a falling function of epsilon is still above the level, and where it no longer is.

    The search goes down from `high`, by `step` at first.
    """
    if falling(0.0) <= level:
        return 0.0, 0.0
    if not falling(high) <= level:
        return 0.0, math.inf
    low = high
    while low > 0 and falling(low) <= level:
        low, high, step = max(low - step, 0.0), low, 16 * step
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        if falling(middle) <= level:
            high = middle
        else:
            low = middle
    return low, high


def apart_of(pairs: list[Any], counts: np.ndarray, log_delta: float) -> Apart | None:
    """Returns the composition of these pairs for answers about this delta, one pair (P, Q) for each kind of step.

    None where components are not far enough apart, or the pairs are others.
    """
    kinds = [_kind(pair, float(count)) for pair, count in zip(pairs, counts, strict=True)]
    if not all(kinds):
        return None
    mixed = [kind for kind in kinds if kind and kind.p[0] > 0]
    left_out = min(log_delta, -1.0) + _LEFT_OUT - math.log(4.0 * len(kinds))
    moved, out = 0.0, [-math.inf]
    for kind in mixed:
        a = math.log(kind.steps * len(mixed) / (_MOVED * kind.p.min()))
        z = (0.5 - a * kind.sigma**2) / kind.sigma
        out.append(math.log(2 * kind.steps) + float(log_ndtr(np.float64(-z))))
        moved += kind.steps * math.exp(-a) / kind.p.min()
        if not out[-1] <= left_out:
            return None
    alone = math.fsum(k.steps / k.sigma**2 for k in kinds if k and k.p[0] == 0)
    parts = [(np.zeros(1), np.full(1, alone), np.zeros(1))]
    for kind in mixed:
        found = _combinations(kind, left_out)
        if found is None:
            return None
        *part, tail = found
        parts.append(tuple(part))
        out.append(tail)
        if math.prod(len(some[0]) for some in parts) > _MOST:
            return None
    log_mass, square, c = (
        np.array([sum(each) for each in itertools.product(*columns)])
        for columns in zip(*parts, strict=True)
    )
    return Apart(
        log_mass=log_mass,
        mu=np.sqrt(square),
        c=c,
        rounding=1e-11 * len(parts),
        log_left_out=float(logsumexp(np.array(out))) + 1e-9,
        moved=moved,
        # 1 - sum_j p_j is off by an ulp of 1, all else by a few of itself.
        slack=8 * ULP * (sum(kind.steps / kind.p[0] for kind in mixed) + float(np.max(-c))),
        alone=math.sqrt(alone),
        reverse=sum(-kind.steps * math.log(kind.p[0]) for kind in mixed),
    )


def _kind(pair: Any, count: float) -> _Kind | None:
    if not (isinstance(pair, GaussianMixturePair) and float(pair.reverse) == 0):
        return None
    weights, means = np.asarray(pair.p_weights, np.float64), np.asarray(pair.p_means, np.float64)
    if np.size(pair.q_weights) or not (len(means) and np.all(means > 0)):
        return None
    if not np.array_equal(means, means[0] * np.arange(1, 1 + len(means))):
        return None
    sigma, rest = float(pair.sigma) / float(means[0]), 1.0 - float(weights.sum())
    alone = rest == 0 and len(weights) == 1
    if not (_TINY < sigma < (1 / _TINY if alone else _WIDEST) and (alone or rest >= _LEAST)):
        return None
    return _Kind(count, np.append(rest, weights), sigma) if weights.min() > 0 else None


def _combinations(kind: _Kind, log_left_out: float) -> Any:
    """Returns log masses, mu^2 and c of the counts (n_1, ..., n_J) that occur, and the log mass of the others; None if too many."""
    steps, p = kind.steps, kind.p
    # n_J is binomial, n_(J-1) among the rest is, and so on; each is cut where its own law, over all steps, is small.
    ends, out = [], [-math.inf]
    for probability in p[1:]:
        end, tail = _last(steps, probability, log_left_out - math.log(len(p)))
        if end > _MOST:
            return None
        ends.append(end)
        out.append(tail)
    if math.prod(end + 1 for end in ends) > _MOST:
        return None
    counts = np.array(list(itertools.product(*(range(end + 1) for end in ends))), np.float64)
    counts = counts[counts.sum(1) <= steps]
    log_mass, left, rest = np.zeros(len(counts)), np.full(len(counts), steps), 1.0
    for n, probability in zip(counts.T[::-1], p[:0:-1], strict=True):
        log_mass = log_mass + _log_pmf(n, left, probability / rest)
        left, rest = left - n, rest - probability
    square = counts @ np.arange(1.0, len(p)) ** 2 / kind.sigma**2
    c = counts @ np.log(p[1:]) + (steps - counts.sum(1)) * math.log(p[0])
    rare = log_mass < log_left_out - math.log(len(counts))
    log_left_out = float(logsumexp(np.append(log_mass[rare], out)))
    return log_mass[~rare], square[~rare], c[~rare], log_left_out


def _log_pmf(n: np.ndarray, steps: np.ndarray, p: float) -> np.ndarray:
    """Returns log Pr[Bin(steps, p) = n], 0 <= n <= steps."""
    inside = (n > 0) & (n < steps)
    value = log_binomial_pmf(np.where(inside, n, 1.0), np.where(inside, steps, 2.0), p)
    edge = np.where(n == 0, steps * math.log1p(-p), n * math.log(p))
    return np.where(inside, value, edge)


def _last(steps: float, p: float, log_level: float) -> tuple[int, float]:
    """Returns the last count n that matters, and the log of Pr[Bin(steps, p) > n], bounded by a geometric series."""
    n = min(math.ceil(steps * p), steps)
    while n < steps:
        ratio = (steps - n - 1) / (n + 2) * p / (1 - p)
        if ratio < 0.9:
            tail = float(_log_pmf(np.array([n + 1.0]), np.array([steps]), p)[0]) - math.log1p(
                -ratio
            )
            if tail <= log_level:
                return int(n), tail
        n += 1
        if n > _MOST:
            return int(n), 0.0
    return int(steps), -math.inf
