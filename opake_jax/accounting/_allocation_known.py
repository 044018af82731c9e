"""Sums of likelihood ratios whose noise is known: `_allocation`, on finer grids and in a fraction of the time.

Two values are added by groups. Of the values b_0 <= b_1 <= ... below a value a, those whose sum with a falls into one
cell lie side by side, and a cell needs of them only the mass and the first moment. On a geometric grid of
step h the sums a + b <= 2a meet log(2)/h cells, however many values there are. Segments are summed as they stand (not as
differences of running totals), so that tails keep their digits.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from opake_jax.accounting._pairs import ULP

__all__ = ["LEAST_MASS", "Law", "sum_of", "underflowing"]

_GROUPS = 75  # of sums, for each value: grids are as fine as this allows
_LEAST_VALUES = 600
LEAST_MASS = 1e-290  # smaller ones have no digits


class Law(NamedTuple):
    """Law under Q of a sum of `terms` likelihood ratios.

    values: [M]; from above values[0] is 0.
    masses: [M].
    lost_q, lost_p: bounds on the Q-mass and P-mass of what lies beyond the values (from above only).
    """

    values: Any
    masses: Any
    lost_q: Any
    lost_p: Any
    terms: Any


def underflowing(pairs: int) -> float:
    """Returns what masses and shares of so many pairs may lose because the product is below the smallest number."""
    return 4 * pairs * math.ulp(0.0)


def sum_of(one: tuple[Law, Law], count: int, size: int, low: float) -> tuple[Law, Law, float]:
    """Returns the law of the sum of `count` ratios from above and from below, and the error of its logs.

    Args:
      one: the law of one ratio, above and below, values increasing.
      count: at least 1.
      size: most values of a law.
      low: log of the Q-mass that may be moved up to the lowest value at each addition.
    """
    largest = float(one[0].values[-1])
    spread = largest * math.sqrt(float(one[0].masses @ ((one[0].values - 1) / largest) ** 2))
    total, additions = one, 0
    for bit in f"{count:b}"[1:]:
        total, additions = _added(total, total, size, low, largest, spread), additions + 1
        if bit == "1":
            total, additions = _added(total, one, size, low, largest, spread), additions + 1
    # Each addition sums at most so many terms for one value.
    return (*total, additions * (4 * size + 64) * ULP)


def _added(
    a: tuple[Law, Law], b: tuple[Law, Law], size: int, low: float, largest: float, spread: float
) -> tuple[Law, Law]:
    """Returns the law of the sum of two independent sums, above and below, on one grid."""
    terms = a[0].terms + b[0].terms
    # From a low quantile to one large ratio on top of the rest and eight of its standard deviations.
    start = _low_quantile(a[0], low) + _low_quantile(b[0], low)
    stop = largest + terms + 8 * math.sqrt(terms) * spread
    reach = math.log(stop) - math.log(start)
    count = int(min(size, max(math.sqrt(_GROUPS * size * reach / math.log(2.0)), _LEAST_VALUES)))
    places = math.log(start) + reach / (count - 1) * np.arange(count)
    points = np.append(0.0, np.exp(places))
    return _above(a[0], b[0], points), _below(a[1], b[1], points)


def _above(a: Law, b: Law, points: np.ndarray) -> Law:
    terms, last = a.terms + b.terms, len(points) - 1
    cell, mass, moment = _groups(a, b, points)
    out = cell == last
    underflow = underflowing(len(a.values) * len(b.values))
    lost_q = float(mass[out].sum()) + underflow
    lost_p = float(moment[out].sum()) / terms + underflow * points[last] / terms
    # Something was lost in a, or in b: its own share of the P-mass, and the other's.
    for this, other in ((a, b), (b, a)):
        lost_q = lost_q + this.lost_q
        lost_p = lost_p + (this.terms * this.lost_p + other.terms * this.lost_q) / terms
    cell, mass, moment = cell[~out], mass[~out], moment[~out]
    # The mean is kept by a share of the mass that goes to the cell's upper end.
    far = (moment - points[cell] * mass) / (points[cell + 1] - points[cell])
    far = np.clip(far, 0.0, mass)
    masses = np.bincount(cell, mass - far, last + 1) + np.bincount(cell + 1, far, last + 1)
    used = masses != 0
    used[0] = True
    return Law(points[used], masses[used], lost_q, lost_p, terms)


def _below(a: Law, b: Law, points: np.ndarray) -> Law:
    last = len(points) - 1
    cell, mass, moment = _groups(a, b, points)
    inside = cell < last
    masses = np.bincount(cell[inside], mass[inside], last)
    moments = np.bincount(cell[inside], moment[inside], last)
    used = masses > LEAST_MASS
    return Law(moments[used] / masses[used], masses[used], 0.0, 0.0, a.terms + b.terms)


def _groups(a: Law, b: Law, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (cell, mass, first moment) of groups that together hold all sums of two values."""
    less = _half(a, b, points, "left")
    parts: Any
    if a is b:  # each sum of different values stands for two
        cell, mass, moment = less
        twice = np.searchsorted(points, 2 * a.values, "right") - 1
        same = a.masses * a.masses
        parts = (cell, twice), (2 * mass, same), (2 * moment, 2 * a.values * same)
    else:
        parts = tuple(zip(less, _half(b, a, points, "right"), strict=True))
    cell, mass, moment = (np.concatenate(part) for part in parts)
    return cell, mass, moment


def _half(a: Law, b: Law, points: np.ndarray, side: Any) -> tuple[np.ndarray, ...]:
    """Returns the groups of the sums with b <= a (side "right"), or b < a ("left")."""
    count = np.searchsorted(b.values, a.values, side)  # of each row
    rows = np.flatnonzero(count)
    if not rows.size:
        return np.zeros(0, int), np.zeros(0), np.zeros(0)
    value, count = a.values[rows], count[rows]
    lowest = np.searchsorted(points, value + b.values[0], "right") - 1
    highest = np.searchsorted(points, value + b.values[count - 1], "right") - 1
    columns = int(np.max(highest - lowest, initial=0)) + 1
    cells = lowest[:, None] + np.arange(columns)
    # Where each cell but the first begins.
    edges = np.append(points, np.inf)[np.minimum(cells[:, 1:], len(points))] - value[:, None]
    begins = np.minimum(np.searchsorted(b.values, edges), count[:, None])
    begins = np.concatenate([np.zeros((len(rows), 1), int), begins, count[:, None]], 1)
    some = begins[:, 1:] > begins[:, :-1]

    def summed(terms: np.ndarray) -> np.ndarray:
        sums = np.add.reduceat(np.append(terms, 0.0), begins.ravel()).reshape(begins.shape)
        return sums[:, :-1][some]

    masses = np.broadcast_to(a.masses[rows][:, None], some.shape)[some]
    values = np.broadcast_to(value[:, None], some.shape)[some]
    mass, moment = summed(b.masses), summed(b.masses * b.values)
    return (
        np.minimum(cells, len(points) - 1)[some],
        masses * mass,
        masses * (values * mass + moment),
    )


def _low_quantile(law: Law, low: float) -> float:
    """Returns a value below which there is at most about e^low of mass: the grid may start there."""
    below = np.cumsum(law.masses)
    there = law.values > 0
    smallest = float(law.values[there][0])
    return max(float(np.max(np.where(below <= math.exp(low), law.values, 0.0))), smallest)
