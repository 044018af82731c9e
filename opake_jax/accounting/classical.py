"""The textbook formulas under their names, each within the range in which its theorem holds.

They are looser than the answers of a process; each docstring says by how much. None of them is used by
anything else in this package.
"""

import math
from typing import Any

from opake_jax._checks import check_count, check_real

__all__ = [
    "advanced_composition",
    "basic_composition",
    "classical_sigma",
    "expected_squared_error",
    "mean_sensitivity",
    "sum_sensitivity",
]


def classical_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Returns sigma = sensitivity sqrt(2 ln(1.25/delta))/epsilon of the Gaussian mechanism, for epsilon < 1.

    At epsilon 0.5, delta 1e-5 it says 9.69 where 7.03 is enough: `calibrate(epsilon_budget(0.5, 1e-5), gaussian, 0.1, 100)`.
    From epsilon 1 on it has no proof; at epsilon 10 it would give delta 2.27e-5, at 50 delta 0.586.

    Args:
      epsilon: in (0, 1).
      delta: in (0, 1).
      sensitivity: L2 sensitivity, positive.

    Raises:
      ValueError: epsilon >= 1, or another number out of range.

    Reference: Dwork and Roth 2014, Thm A.1.

    >>> round(classical_sigma(0.5, 1e-5), 3)
    9.69
    """
    check_real(
        "epsilon",
        epsilon,
        low_open=True,
        high=1.0,
        remedy="the theorem ends there; calibrate(epsilon_budget(epsilon, delta), gaussian, ...) does not",
    )
    check_real("delta", delta, low_open=True, high=1.0)
    check_real("sensitivity", sensitivity, low_open=True)
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def basic_composition(epsilon: float, delta: float, count: Any) -> tuple[float, float]:
    """Returns (count * epsilon, count * delta): what `count` (epsilon, delta)-DP releases cost together.

    For 100 releases of (0.1, 0) it says epsilon 10; `(eps_delta(0.1) * 100).epsilon_at(1e-5)` says 4.31.

    Args:
      epsilon: of each, in [0, inf).
      delta: of each, in [0, 1).
      count: a whole number of at least 0.

    Raises:
      ValueError: a number out of range, or count * delta reaches 1, where nothing is said.

    Reference: Dwork and Roth 2014, Thm 3.16.

    >>> basic_composition(0.1, 0.0, 100)
    (10.0, 0.0)
    """
    check_real("epsilon", epsilon)
    check_real("delta", delta, high=1.0)
    count = check_count("count", count)
    total = count * delta
    if total >= 1:
        raise ValueError(f"count * delta must be below 1, got {total:g}: at 1 nothing is private")
    return count * epsilon, total


def advanced_composition(
    epsilon: float, delta: float, count: Any, *, slack: float
) -> tuple[float, float]:
    """Returns (epsilon', count * delta + slack), epsilon' = epsilon sqrt(2 count ln(1/slack)) + count epsilon (e^epsilon - 1).

    For 100 releases of (0.1, 0) at slack 1e-5 it says epsilon 5.85; `(eps_delta(0.1) * 100).epsilon_at(1e-5)` says 4.31.
    For few releases it is worse than basic composition, and both hold.

    Args:
      epsilon: of each, in [0, inf).
      delta: of each, in [0, 1).
      count: a whole number of at least 0.
      slack: in (0, 1), what is added to delta.

    Raises:
      ValueError: a number out of range, or the total delta reaches 1.

    Reference: Dwork, Rothblum, Vadhan 2010; Dwork and Roth 2014, Thm 3.20.

    >>> round(advanced_composition(0.1, 0.0, 100, slack=1e-5)[0], 2)
    5.85
    """
    check_real("slack", slack, low_open=True, high=1.0)
    _, total = basic_composition(epsilon, delta, count)
    count = check_count("count", count)
    if total + slack >= 1:
        raise ValueError(f"count * delta + slack must be below 1, got {total + slack:g}")
    epsilon, slack = float(epsilon), float(slack)
    spread = epsilon * math.sqrt(2 * count * math.log(1 / slack))
    growth = math.expm1(epsilon) if epsilon < 700 else math.inf
    return spread + count * epsilon * growth, total + slack


def sum_sensitivity(bound: float, *, replace_one: bool = False) -> float:
    """Returns how far one record moves a sum of vectors of norm at most `bound`, in the same norm.

    bound if the record comes or goes, 2 bound if it is replaced. True of any norm: give an L2 bound for the L2
    sensitivity (Gaussian noise), an L1 bound for the L1 sensitivity (Laplace noise).

    Args:
      bound: of each record's vector, positive.
      replace_one: True where neighbours have the same size and differ in one record.

    >>> sum_sensitivity(0.5, replace_one=True)
    1.0
    """
    check_real("bound", bound, low_open=True)
    return 2 * bound if replace_one else bound


def mean_sensitivity(bound: float, size: Any) -> float:
    """Returns how far replacing one of `size` records moves the mean of vectors of norm at most `bound`.

    2 bound/size; half of it for numbers in [0, bound]. The size must be public and the same for both neighbours:
    of datasets that differ in size the mean has no such bound that does not depend on them, so that there is
    no add/remove form (release a noisy sum and a noisy size instead).

    Args:
      bound: of each record's vector, positive.
      size: number of records, at least 1.

    >>> mean_sensitivity(1.0, 50)
    0.04
    """
    check_real("bound", bound, low_open=True)
    return 2 * bound / check_count("size", size, minimum=1)


def expected_squared_error(dimension: Any, sigma: float) -> float:
    """Returns E |noise|^2 = dimension * sigma^2 of Gaussian noise of that standard deviation: exact.

    (The source page writes E |noise| for it; the expected norm is about its root.)

    Args:
      dimension: a whole number of at least 1.
      sigma: standard deviation in each coordinate, at least 0.

    >>> expected_squared_error(100, 0.5)
    25.0
    """
    check_real("sigma", sigma)
    return check_count("dimension", dimension, minimum=1) * (float(sigma) * float(sigma))
