"""Which parameter spends the budget, and no more?"""

import dataclasses
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from opake_jax._checks import check_real, require
from opake_jax.accounting._budgets import Budget
from opake_jax.accounting._process import Process

__all__ = ["Calibration", "calibrate"]

# log p is searched within +-70: beyond 1e30 no parameter of a mechanism means anything.
_FURTHEST = 70.0
_LONGEST_STEP = math.log(16.0)
_FIRST_STEP = math.log(1.25)
_MAX_EVALUATIONS = 200


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The result of `calibrate`.

    Attributes:
      param: the parameter found.
      achieved: the certified answer there; never beyond the target.
      target: what the budget allows.
      iterations: how many processes were evaluated.
    """

    param: Any
    achieved: float
    target: float
    iterations: int


@dataclasses.dataclass(frozen=True)
class _Point:
    x: float
    param: Any
    spent: float
    y: float  # scale(spent) - scale(aim): grows with the cost
    allowed: bool


def calibrate(
    budget: Budget,
    make_process: Callable[[Any], Process],
    param_min: Any,
    param_max: Any,
    *,
    tolerance: float = 1e-6,
    accountant: Any = None,
) -> Calibration:
    """Returns the parameter at which the process spends the budget, on the private side.

    Secant steps on a smooth scale of the answer against log(parameter), kept inside a bracket once there is
    one. The range says where to look first; it is widened as far as `make_process` accepts.

    Args:
      budget: `epsilon_budget(...)` or one of its kin.
      make_process: parameter -> process; the answer must be monotone in the parameter, either way.
      param_min: lower end of the range that is looked at first.
      param_max: upper end. Two whole `int`s: the parameter is an integer (steps) and is searched as one.
      tolerance: relative, on the achieved answer. Integers, and a parameter that reaches the end of what
        `make_process` accepts, may stay further below the target.
      accountant: `PLD(...)` (None) or `RDP(...)`.

    Returns:
      `Calibration(param, achieved, target, iterations)` with achieved <= target (beta, risk: >=).

    Raises:
      ValueError: an empty range, or no parameter keeps the budget.

    >>> from opake_jax.accounting import epsilon_budget, gaussian
    >>> result = calibrate(epsilon_budget(1.0, delta=1e-5), gaussian, 0.1, 10.0)
    >>> round(result.param, 4), result.achieved <= 1.0
    (3.7306, True)
    """
    if not isinstance(budget, Budget):
        raise TypeError(f"budget must be epsilon_budget(...) or its kin, got {budget!r}")
    for name, value in (("param_min", param_min), ("param_max", param_max)):
        check_real(name, value, low=-math.inf, low_open=True)
    require(param_min <= param_max, f"param_min {param_min!r} lies above param_max {param_max!r}")
    check_real("tolerance", tolerance, low=1e-12, high=1.0)
    integer = _is_integer(param_min) and _is_integer(param_max)
    search = _Search(budget, make_process, accountant, tolerance, integer, param_min, param_max)
    return search.run()


def _is_integer(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, (bool, np.bool_))


def _zero_of(points: list[_Point]) -> float:
    """Returns where the polynomial x(y) through the points is at y = 0; NaN if two have the same y."""
    total = 0.0
    for p in points:
        weight = 1.0
        for other in points:
            if other is p:
                continue
            if other.y == p.y:
                return math.nan
            weight *= other.y / (other.y - p.y)
        total += weight * p.x
    return total


class _Search:
    """The points evaluated so far, and where to look next."""

    def __init__(
        self,
        budget: Budget,
        make_process: Callable[[Any], Process],
        accountant: Any,
        tolerance: float,
        integer: bool,
        low: Any,
        high: Any,
    ):
        self.budget, self.make_process, self.accountant = budget, make_process, accountant
        self.tolerance, self.integer = tolerance, integer
        self.log = low > 0
        self.first = (self._to_x(low), self._to_x(high))
        width = self.first[1] - self.first[0]
        self.unit = 1.0 if self.log else max(width, 1.0)
        # The middle of the tolerated interval: half of it is left on either side.
        sign = -1 if budget.is_cost else 1
        self.aim = budget.scale(budget.target * (1 + sign * tolerance / 2))
        self.points: list[_Point] = []
        # What make_process accepts, as far as known.
        self.lowest = 0.0 if integer and self.log else -_FURTHEST * self.unit
        self.highest = _FURTHEST * self.unit

    def _to_x(self, param: Any) -> float:
        return math.log(param) if self.log else float(param)

    def _to_param(self, x: float) -> Any:
        param = math.exp(x) if self.log else x
        return round(param) if self.integer else param

    def evaluate(self, x: float) -> _Point | None:
        """Returns the point at x; None if make_process does not accept it, which bounds the search."""
        param = self._to_param(x)
        for known in self.points:
            if known.param == param:
                return known
        inside = self.first[0] <= x <= self.first[1]
        try:
            process = self.make_process(param)
        except ValueError:
            if inside:
                raise
            if x < self.first[0]:
                self.lowest = max(self.lowest, x)
            else:
                self.highest = min(self.highest, x)
            return None
        if not hasattr(process, "epsilon_at"):  # a process, or a ledger
            raise TypeError(f"make_process must return a process, got {process!r}")
        spent = float(self.budget.spent(process, accountant=self.accountant))
        allowed = bool(self.budget.allows(spent))
        y = self.budget.scale(spent) - self.aim if not math.isnan(spent) else math.inf
        x = self._to_x(param) if self.integer else x
        point = _Point(x, param, spent, y, allowed)
        self.points.append(point)
        return point

    def run(self) -> Calibration:
        """Returns the answer, or raises where no parameter keeps the budget."""
        low, high = self.first
        middle = (low + high) / 2
        width = high - low
        step = min(_FIRST_STEP * self.unit, width / 4) if width > 0 else 0.01 * self.unit
        self.evaluate(middle)
        if not self._done():
            second = middle + step if width > 0 else middle * 1.01 + 0.01
            if self.integer and self._to_param(second) == self._to_param(middle):
                second = self._to_x(self._to_param(middle) + 1)
            self.evaluate(second)
        for _ in range(_MAX_EVALUATIONS):
            x = None if self._done() else self._next()
            if x is None:
                break
            self.evaluate(x)
        best = self._best()
        if best is None:
            nearest = min(self.points, key=lambda p: p.y)
            raise ValueError(
                f"no parameter keeps the budget {self.budget}: of {len(self.points)} values from "
                f"{min(p.param for p in self.points):g} to {max(p.param for p in self.points):g} the "
                f"most private is {nearest.param:g} with {nearest.spent:g}. Loosen the target, or "
                "change what is held fixed"
            )
        return Calibration(best.param, best.spent, self.budget.target, len(self.points))

    def _best(self) -> _Point | None:
        allowed = [p for p in self.points if p.allowed]
        return max(allowed, key=lambda p: p.y) if allowed else None

    def _done(self) -> bool:
        best = self._best()
        target = self.budget.target
        return best is not None and abs(best.spent - target) <= self.tolerance * target

    def _next(self) -> float | None:
        """Returns the next x; None if there is nothing left to learn."""
        inside = [p for p in self.points if p.allowed]
        outside = [p for p in self.points if not p.allowed]
        if not (inside and outside):
            return self._widen()
        a, b = min(
            ((p, q) for p in inside for q in outside), key=lambda pair: abs(pair[0].x - pair[1].x)
        )
        low, high = min(a.x, b.x), max(a.x, b.x)
        if self.integer:
            if abs(a.param - b.param) <= 1:
                return None
        elif high - low <= max(1e-3 * self.tolerance * self.unit, 4e-16 * max(abs(low), abs(high))):
            return None
        near = sorted((p for p in self.points if math.isfinite(p.y)), key=lambda p: abs(p.y))
        x = (low + high) / 2
        # Two of the last four points should have come near; if they did not, halve the bracket.
        stalled = len(self.points) >= 8 and len(self.points) % 4 == 0
        if not stalled:
            guesses = [_zero_of(near[:count]) for count in (3, 2) if len(near) >= count]
            x = next((guess for guess in guesses if low < guess < high), x)
        if self.integer:
            least, most = sorted((a.param, b.param))
            param = min(max(self._to_param(x), least + 1), most - 1)
            return self._to_x(param)
        return x

    def _widen(self) -> float | None:
        """Returns an x beyond all points, on the side where the budget's limit lies."""
        points = sorted(self.points, key=lambda p: p.x)
        left, right = points[0], points[-1]
        longest = _LONGEST_STEP * self.unit
        rising = right.y - left.y
        if rising == 0 or math.isnan(rising):  # flat so far: both infinite, or both without cost
            reach = longest * (len(points) // 2)
            side = 1 if len(points) % 2 == 0 else -1
            x = (self.first[0] + self.first[1]) / 2 + side * reach
            return x if self.lowest < x < self.highest else self._other_side(side, longest)
        # An allowed set of points wants more cost, a forbidden one less.
        up = (rising > 0) == left.allowed
        end = right if up else left
        finite = [p for p in points if math.isfinite(p.y)]
        step = longest
        if len(finite) >= 2:
            p, q = (finite[-2], finite[-1]) if up else (finite[1], finite[0])
            if p.y != q.y and math.isfinite(end.y):
                step = 1.1 * abs(q.y * (q.x - p.x) / (q.y - p.y))
        step = min(max(step, 0.02 * self.unit), longest)
        return self._step_from(end, 1 if up else -1, step)

    def _step_from(self, end: _Point, side: int, step: float) -> float | None:
        limit = self.highest if side > 0 else self.lowest
        x = end.x + side * step
        if self.integer and self._to_param(x) == end.param and end.x != limit:
            x = self._to_x(end.param + side)  # the next one at least, or nothing new is learnt
        if side * (limit - x) <= 0:  # half way to what make_process refused
            x = (end.x + limit) / 2
            if abs(limit - end.x) <= 1e-9 * self.unit or self._to_param(x) == end.param:
                return None
        return x

    def _other_side(self, side: int, longest: float) -> float | None:
        points = sorted(self.points, key=lambda p: p.x)
        end = points[0] if side > 0 else points[-1]
        return self._step_from(end, -side, longest)
