"""The trade-off function of known laws: `_pld_trade_off`, with Python's floats for the search.

One law serves both rows, so that its mass is 1 but for what it leaves out. It serves both directions as well where the
second is the first exchanged and nothing is left out: since E_P e^-L = 1,

    H_(e^t)(Q || P) = E_P (e^-L - e^t)_+ = e^t delta(-t) + 1 - e^t,   1 - delta_reverse(t) = e^t (1 - delta(-t)).
"""

import math
from collections.abc import Callable
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

_CLOSE = 1e-6  # of 1 - delta: wider bounds far from the contour's centre are not worth it


class _Direction(NamedTuple):
    """Bounds on log(1 - delta) of one direction at three points t, [3] each."""

    points: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    bound: Callable[[float, int], float]  # (epsilon, row): from below (row 0) or above

    def reverse(self) -> "_Direction":
        """Returns the same of the reverse."""

        def bound(epsilon: float, row: int) -> float:
            found = self.bound(-epsilon, row)
            slack = SIDE[row] * 8 * ULP * (1 + abs(epsilon) + abs(found))
            return min(epsilon + found - slack, 0.0) if math.isfinite(found) else found

        return _at(self.points, bound)


def _at(points: np.ndarray, bound: Callable[[float, int], float]) -> _Direction:
    lower, upper = (np.array([bound(abs(float(t)), row) for t in points]) for row in (0, 1))
    return _Direction(points, lower, upper, bound)


def beta_of_laws(
    laws: list[Smooth], first: int, alpha: float, exchanged: bool
) -> tuple[float, float] | None:
    """Returns (lower, upper) for beta(alpha) from the law of each direction; None where one says nothing.

    Args:
      laws: of the directions.
      first: the direction that chooses the points t.
      alpha: in (0, 1).
      exchanged: the second direction is the first one exchanged, and nothing is left out: one law may do.
    """
    one = _direction(laws[first], alpha, None)
    if one is None:
        return None
    other = one.reverse() if exchanged else None
    if other is None or not _settles(one, other):
        other = _direction(laws[-1 - first], alpha, one.points)
    if other is None:
        return None
    lower, upper = np.minimum(one.lower, other.lower), np.minimum(one.upper, other.upper)
    low, up = combine(alpha, one.points, lower, upper)
    # One direction alone is no smaller than the minimum of both.
    _, alone = combine(alpha, one.points, one.lower, one.upper)
    return float(low), float(min(up, alone, 1 - alpha))


def _settles(one: _Direction, other: _Direction) -> bool:
    """Returns True if at each point the other direction is close enough, or binds for certain less than the one."""
    close = other.upper - other.lower <= _CLOSE
    return bool(np.all(close | (other.lower >= one.lower)))


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
    log_missing = math.log(missing) if missing > 0 else -math.inf

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
        if sign < 0 and row == 0:  # 1 - delta itself
            return value - 16 * ULP
        if sign < 0:  # of all the mass, the missing included
            return min(float(np.logaddexp(value, log_missing)) + 16 * ULP, 0.0)
        if row == 0:
            value = float(np.logaddexp(value, infinite)) + 4 * ULP
        return float(log1mexp(value)) if value < 0 else trivial

    if points is None:
        best = _maximum(profile, alpha, max(centre, 0.0) + 6 * float(contour.spread))
        points = best + APART * float(contour.spread) * np.array([-1.0, 0.0, 1.0])
    return _at(points, bound)


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
