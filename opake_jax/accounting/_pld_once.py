"""What does a single step cost? The sum over its atoms, without any inversion.

With nothing to compose, delta(eps) = m_inf + sum over atoms of m (1 - e^(eps - l))_+ for either row: row 0 lies above
the truth, row 1 below. The numbers are known here, so that this is NumPy, with nothing to compile.

Rounding (in ulp, 2^-52). l - eps is off by an ulp of itself and is first moved by 2 ulp of |l| + |eps| to the row's
side. g = log(1 - e^(eps - l)) is off by an ulp of |g| and by 4 (relative error of its argument), the term's log t =
log m + g by one of its size: each is moved by 8 + 4 (|log m| + |g|). In the sum of e^(t - top), an exponential is off by
|t - top| + 2, which these and 4 |top| cover, and the summation by the number of terms.
"""

import math
from typing import Any

import numpy as np

from opake_jax.accounting._pairs import ULP
from opake_jax.accounting._pld_bounds import Bounds
from opake_jax.accounting._pld_fourier import SIDE
from opake_jax.accounting._pld_tilt import Query, Steps

__all__ = ["answer_once"]

_CLOSE = 1e-12  # of epsilon: where bisection ends, its error being added outward by its choice of the end
_HALVINGS = 1100  # enough to pass the smallest number


def answer_once(steps: Steps, query: Query) -> Bounds:
    """Returns the bounds that one direction of a single step gives; `size` says nothing."""
    rows = [(steps.log_mass[0, r], steps.loss[0, r]) for r in (0, 1)]
    log_infinity = float(steps.log_infinity[0])

    def above(epsilon: float) -> float:
        finite = _log_delta(*rows[0], epsilon, SIDE[0])
        total = float(np.logaddexp(finite, log_infinity))
        total += 8 * ULP * (1 + abs(total)) if total > -math.inf else 0.0
        return 0.0 if math.isnan(total) else min(total, 0.0)

    def below(epsilon: float) -> float:
        total = _log_delta(*rows[1], epsilon, SIDE[1])
        return -math.inf if math.isnan(total) else total

    if query.solve:
        largest = max(float(np.max(values, initial=0.0)) for _, values in rows) * (1 + 16 * ULP)
        lower, _ = _bracket(below, query.log_delta, largest)
        _, upper = _bracket(above, query.log_delta, largest)
    else:
        lower, upper = below(query.epsilon), above(query.epsilon)
    return Bounds(np.float64(lower), np.float64(upper), np.float64(1.0))


def _log_delta(log_mass: Any, loss: Any, epsilon: float, side: float) -> float:
    """Returns log of the sum of m (1 - e^(epsilon - l))_+, rounded to one side; NaN if an atom is."""
    gap = loss - epsilon + side * 2 * ULP * (np.abs(loss) + abs(epsilon))
    kept = ~((gap <= 0) | (log_mass == -math.inf))  # a NaN stays
    if not kept.any():
        return -math.inf
    mass, gap = log_mass[kept], gap[kept]
    part = np.log(-np.expm1(-gap))
    terms = mass + part + side * ULP * (8 + 4 * (np.abs(mass) + np.abs(part)))
    top = float(terms.max())
    total = top + math.log(np.sum(np.exp(terms - top)))
    return total + side * ULP * (16 + terms.size + 4 * abs(top) + abs(total))


def _bracket(log_delta: Any, goal: float, largest: float) -> tuple[float, float]:
    """Returns (low, high): log_delta(low) > goal or low = 0, log_delta(high) <= goal or high = inf.

    Args:
      log_delta: a function that falls but for its rounding; whatever it does, both ends have been looked at.
      largest: no finite loss lies above.
    """
    if log_delta(0.0) <= goal:
        return 0.0, 0.0
    low, high = 0.0, largest
    if not log_delta(high) <= goal:
        return high, math.inf
    for _ in range(_HALVINGS):
        if high - low <= _CLOSE * high:
            break
        middle = (low + high) / 2
        if log_delta(middle) <= goal:
            high = middle
        else:
            low = middle
    return low, high
