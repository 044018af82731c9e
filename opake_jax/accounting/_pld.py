"""The accountant: certified bounds on what a composition of dominating pairs costs."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from opake_jax.accounting._evaluate import any_traced, evaluate_each, quietly
from opake_jax.accounting._pld_levels import Problem
from opake_jax.accounting._pld_traced import beta_core, delta_core, epsilon_core

__all__ = ["PLD"]

_ABSOLUTE = 1e-9  # of epsilon: below this nothing is refined
_OUT = (-1, +1)  # lower bounds are rounded down, upper ones up


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PLD:
    """Answers from the privacy loss distribution, by certified Fourier inversion.

    Concrete questions are refined level by level until the bracket is tight or the levels are used up; traced
    ones (inside jit, vmap, grad) use one fixed level. In either case the bounds hold: what could not be
    certified is the trivially valid side, epsilon inf or what Chernoff's bound gives.

    Attributes:
      rtol: tight means upper - lower <= max(rtol * upper, 1e-9) for epsilon, rtol * upper for delta.
    """

    rtol: Any = 1e-4

    def epsilon_bounds(self, parts: Any, delta: Any) -> tuple[Any, Any]:
        """Returns (lower, upper) around epsilon at `delta`, for parts ((mechanism, count), ...)."""
        if any_traced((parts, delta)):
            lower, upper = evaluate_each(epsilon_core, parts, delta, _OUT)
            return lower, upper
        with quietly():
            return Problem(parts).epsilon(math.log(delta), self._excess)

    def _excess(self, lower: float, upper: float) -> float:
        if upper == math.inf:
            return 0.0 if lower == math.inf else math.inf
        return (upper - lower) / max(self.rtol * upper, _ABSOLUTE) if upper > lower else 0.0

    def delta_bounds(self, parts: Any, epsilon: Any) -> tuple[Any, Any]:
        """Returns (lower, upper) around delta at `epsilon`."""
        if any_traced((parts, epsilon)):
            lower, upper = evaluate_each(delta_core, parts, epsilon, _OUT)
            return lower, upper

        def excess(lower: float, upper: float) -> float:
            return -math.expm1(lower - upper) / self.rtol if lower < upper else 0.0

        with quietly():
            low, high = Problem(parts).log_delta(float(epsilon), excess)
        return float(np.exp(low) * (1 - 4e-16)), min(float(np.exp(high) * (1 + 4e-16)), 1.0)

    def epsilon_trajectory(self, parts: Any, counts: Any, delta: Any) -> tuple[Any, Any]:
        """Returns (lower, upper) around epsilon at `delta` after `counts` runs of the parts: [counts] each.

        The atoms of a step are made once, its characteristic function once for neighbouring counts.
        """
        if any_traced((parts, counts, delta)):

            def repeated(arguments: Any) -> Any:
                (parts, delta), count = arguments
                return epsilon_core((tuple((m, times * count) for m, times in parts), delta))

            lower, upper = evaluate_each(repeated, (parts, delta), counts, _OUT)
            return lower, upper
        counts = np.asarray(counts, np.float64)
        with quietly():
            ends = Problem(parts).trajectory(counts, math.log(delta), self._excess)
        return ends[0], ends[1]

    def beta_bounds(self, parts: Any, alpha: Any) -> tuple[Any, Any]:
        """Returns (lower, upper) around the trade-off function at `alpha`, symmetrised.

        The lower end is the private side, and is as tight as delta is. The upper end comes from concavity and is
        looser: ten times `rtol` will do.
        """
        if any_traced((parts, alpha)):
            lower, upper = evaluate_each(beta_core, parts, alpha, _OUT)
            return lower, upper

        def excess(lower: float, upper: float) -> float:
            return (upper - lower) / (10 * self.rtol * upper) if upper > lower else 0.0

        with quietly():
            return Problem(parts).beta(float(alpha), excess)
