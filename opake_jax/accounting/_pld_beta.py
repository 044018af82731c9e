"""The trade-off function of known laws: `_pld_trade_off`, with Python's floats for the search.

One law serves both rows, so that its mass is 1 but for what it leaves out.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from opake_jax._numerics import log1mexp
from opake_jax.accounting._pairs import ULP
from opake_jax.accounting._pld_bounds import look
from opake_jax.accounting._pld_fourier import SIDE, alias_of, chernoff_tails, curves_of
from opake_jax.accounting._pld_smooth import Smooth
from opake_jax.accounting._pld_trade_off import (
    APART,
    BISECTIONS,
    combine,
    complement_alias,
    line_of,
)

__all__ = ["beta_of_laws"]


class _Direction(NamedTuple):
    """Bounds on log(1 - delta) of one direction at three points t, [3] each."""

    points: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def beta_of_laws(laws: list[Smooth], first: int, alpha: float) -> tuple[float, float] | None:
    """Returns (lower, upper) for beta(alpha) from the law of each direction; None where one says nothing."""
    one = _direction(laws[first], alpha, None)
    other = None if one is None else _direction(laws[-1 - first], alpha, one.points)
    if one is None or other is None:
        return None
    lower, upper = np.minimum(one.lower, other.lower), np.minimum(one.upper, other.upper)
    low, up = combine(alpha, one.points, lower, upper)
    # One direction alone is no smaller than the minimum of both.
    _, alone = combine(alpha, one.points, one.lower, one.upper)
    return float(low), float(min(up, alone, 1 - alpha))


def _direction(law: Smooth, alpha: float, points: np.ndarray | None) -> _Direction | None:
    """Returns the bounds at the points, or at three about the maximum of this direction's G (None)."""
    search = points is None
    contour, sign = line_of(law, math.log(alpha), np.zeros(3) if points is None else points, search)
    spectrum = law.spectrum_on(contour, sign)
    if spectrum is None:
        return None
    curves = curves_of(spectrum)
    tilt, centre = float(contour.tilt), float(contour.centre)
    tails = chernoff_tails(law.law(), 1, contour, spectrum.smoothing)
    wrapped = complement_alias if sign < 0 else alias_of
    infinite = float(law.log_infinity)
    _, missing = law.mass_errors()

    def profile(epsilon: float) -> tuple[float, float]:
        """Q(L > epsilon) and P(L <= epsilon), roughly."""
        value, slope = curves[0].integral(epsilon - centre)
        front = math.exp(min(curves[0].log_front - tilt * epsilon, 700.0))
        amount, change = front * value, front * (slope - tilt * value)
        rest = amount if sign < 0 else 1 - amount
        return -sign * change * math.exp(-epsilon), rest + sign * change

    def bound(epsilon: float, row: int) -> float:
        """Returns log(1 - delta) from below (row 0) or above."""
        side = float(sign) * SIDE[row]
        alias = float(wrapped(np.float64(epsilon), contour, tails)) if side < 0 else 0.0
        offset = epsilon - centre - SIDE[row] * curves[row].shift
        value = look(curves[row], contour, offset, side, alias).value
        trivial = 0.0 if row else -math.inf
        if math.isnan(value):
            return trivial
        if sign < 0:  # 1 - delta itself: of all the mass, the missing included
            return (
                min(math.log(math.exp(value) + missing) + 16 * ULP, 0.0)
                if row
                else value - 16 * ULP
            )
        if row == 0:
            value = float(np.logaddexp(value, infinite)) + 4 * ULP
        return float(log1mexp(value)) if value < 0 else trivial

    if points is None:
        best = _maximum(profile, alpha, max(centre, 0.0) + 6 * float(contour.spread))
        points = best + APART * float(contour.spread) * np.array([-1.0, 0.0, 1.0])
    ends = [[bound(abs(float(t)), row) for t in points] for row in (0, 1)]
    return _Direction(points, np.array(ends[0]), np.array(ends[1]))


def _maximum(profile: Any, alpha: float, far: float) -> float:
    """Returns about the t at which G is largest, no further off than `far`."""
    q, p = profile(0.0)
    forwards = alpha < q
    if not forwards and not alpha > p:
        return 0.0
    low, high = 0.0, far
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        q, p = profile(middle)
        if q > alpha if forwards else p < alpha:
            low = middle
        else:
            high = middle
    return (low + high) / 2 if forwards else -(low + high) / 2
