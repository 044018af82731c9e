"""How fine must it be? The engine for concrete numbers: level after level, until the bracket is tight."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from opake_jax.accounting._pairs import Tails, dominating_pairs
from opake_jax.accounting._pld_fourier import Bounds, answer, bounds_on, compose, step_spectrum
from opake_jax.accounting._pld_once import answer_once
from opake_jax.accounting._pld_tilt import (
    Query,
    Steps,
    choose_contour,
    follow_contour,
    relative_tails,
    rough_log_delta,
)
from opake_jax.accounting._pld_traced import steps_of
from opake_jax.accounting._pld_trade_off import beta_bounds

__all__ = ["Problem"]

# (atoms, frequencies): the first serves almost every setting, so that a cold call compiles one kernel.
# The last is fine enough for delta itself, to 1e-4, at 1e-50: the atoms' error is about (z times their distance)^2/12
# of it, at z deviations.
_LEVELS = ((2048, 4096), (4096, 16384), (16384, 65536))
# Tails of one step are first cut for a delta of e^-20 = 2e-9: fine down to 1e-11, and no loss above.
_USUAL = -20.0

# The kernels run for milliseconds and are compiled in seconds: without the fusion emitters in two thirds of
# the time, at 10 % of the speed (benchmarks/accounting.py, `compile` and `cold`).
_COMPILER = {"xla_cpu_use_fusion_emitters": False}

# A trajectory's counts share tilt and window in groups of so many, the smallest at least this share of the
# largest: the best tilt falls like the root of the count, and 15 % off it costs nothing visible.
_GROUP, _RATIO = 8, 0.7

Tight = Callable[[float, float], bool]


class Problem:
    """A composition of mechanisms whose numbers are known. Use it inside `float64_on_cpu`."""

    def __init__(self, parts: Any):
        kept = [(mechanism, float(count)) for mechanism, count in parts if float(count) > 0]
        # One dtype for all numbers: the type of a Python number would compile again.
        self.parts = tuple((jax.tree.map(np.float64, m), np.float64(c)) for m, c in kept)
        self.count = sum(count for _, count in kept)
        self.directions = max((_directions(m) for m, _ in self.parts), default=0)

    def epsilon(self, log_delta: float, tight: Tight) -> tuple[float, float]:
        """Returns (lower, upper) around epsilon."""
        if not self.parts:
            return 0.0, 0.0
        search = _Search(self, tight, 0.0, math.inf)
        tails = self._tails(log_delta)
        for level in range(len(_LEVELS)):
            search.look(level, tails, lambda size: Query(log_delta, 0.0, True, size))
            if search.done():
                break
        return search.bounds()

    def log_delta(self, epsilon: float, tight: Tight) -> tuple[float, float]:
        """Returns (lower, upper) around log delta."""
        if not self.parts:
            return -math.inf, -math.inf
        search = _Search(self, tight, -math.inf, 0.0)

        def query(size: float) -> Query:
            return Query(-1.0, epsilon, False, size)

        scale = _USUAL
        search.look(0, self._tails(scale), query)
        if search.bounds()[0] < scale and not search.done():  # a smaller delta needs longer tails
            wide = _steps(self.parts, Tails(-1400.0, -1400.0), _LEVELS[0][0])
            scale = max(float(_rough(wide, d, epsilon)) for d in range(self.directions))
            search.look(0, self._tails(scale), query)
        for level in range(1, len(_LEVELS)):
            if search.done():
                break
            search.look(level, self._tails(min(scale, search.bounds()[1])), query)
        return search.bounds()

    def trajectory(
        self, counts: np.ndarray, log_delta: float, tight: Tight
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns (lower, upper) around epsilon after each number of repetitions, [counts] each."""
        lower, upper = np.zeros(counts.shape), np.zeros(counts.shape)
        if not self.parts or not np.any(counts > 0):
            return lower, upper
        many = Problem([(m, times * counts.max()) for m, times in self.parts])
        atoms, frequencies = _LEVELS[0]
        steps = _steps(self.parts, many._tails(log_delta), atoms)
        for group in _neighbours(counts):
            padded = np.resize(counts[group], _GROUP)  # repeats fill the last places
            low, up = jax.device_get(_together(steps, padded, log_delta, frequencies))
            lower[group], upper[group] = low[: len(group)], up[: len(group)]
        for i in np.flatnonzero(counts > 0):
            if not tight(lower[i], upper[i]):
                each = Problem([(m, times * counts[i]) for m, times in self.parts])
                low, up = each.epsilon(log_delta, tight)
                lower[i], upper[i] = max(lower[i], low), min(upper[i], up)
        return lower, upper

    def beta(self, alpha: float, tight: Tight) -> tuple[float, float]:
        """Returns (lower, upper) around the symmetrised trade-off function at alpha in (0, 1)."""
        if not self.parts:
            return 1 - alpha, 1 - alpha
        log_alpha = math.log(alpha)
        lower, upper = 0.0, 1.0
        for atoms, frequencies in _LEVELS[:2]:
            steps = _steps(self.parts, self._tails(log_alpha), atoms)
            for first in range(self.directions):
                found = _beta(steps, first, alpha, frequencies)
                lower, upper = max(lower, float(found[0])), min(upper, float(found[1]))
                if tight(lower, upper):
                    return lower, upper
        return lower, upper

    def _tails(self, log_delta: float) -> Tails:
        high, low = relative_tails(min(log_delta, -1.0), self.count)
        return Tails(float(high), float(low))


class _Search:
    """The best bounds so far, for each direction; every single one holds."""

    def __init__(self, problem: Problem, tight: Tight, low: float, high: float):
        self.problem, self.tight = problem, tight
        self.lower = [low] * problem.directions
        self.upper = [high] * problem.directions
        self.sizes = [1.0] * problem.directions

    def bounds(self) -> tuple[float, float]:
        return max(self.lower), max(self.upper)

    def done(self) -> bool:
        return self.tight(*self.bounds())

    def look(self, level: int, tails: Tails, query: Callable[[float], Query]) -> None:
        """Asks at one level, leaving out the directions that are smaller for certain."""
        atoms, frequencies = _LEVELS[level]
        steps = _steps(self.problem.parts, tails, atoms)
        open_ = [d for d, upper in enumerate(self.upper) if upper > max(self.lower)]
        if self.problem.count == 1:
            found = {d: answer_once(steps, d, query(1.0)) for d in open_}
        else:
            found = {d: _answer(steps, d, query(self.sizes[d]), frequencies) for d in open_}
        for d, bounds in jax.device_get(found).items():
            self.lower[d] = max(self.lower[d], float(bounds.lower))
            self.upper[d] = min(self.upper[d], float(bounds.upper))
            size = float(bounds.size)
            self.sizes[d] = min(max(0.1 * size, 1e-9), 1.0) if math.isfinite(size) else 1.0


def _neighbours(counts: np.ndarray) -> list[np.ndarray]:
    """Returns groups of positions, the largest count first, whose counts are close enough for one contour."""
    order = [i for i in np.argsort(-counts, kind="stable") if counts[i] > 0]
    groups: list[list[int]] = []
    for i in order:
        if groups and len(groups[-1]) < _GROUP and counts[i] >= _RATIO * counts[groups[-1][0]]:
            groups[-1].append(i)
        else:
            groups.append([i])
    return [np.array(group) for group in groups]


def _directions(mechanism: Any) -> int:
    return len(jax.eval_shape(dominating_pairs, mechanism))


@functools.partial(jax.jit, static_argnums=2, compiler_options=_COMPILER)
def _steps(parts: Any, tails: Tails, size: int) -> Steps:
    return steps_of(parts, tails, size)


@functools.partial(jax.jit, static_argnums=3, compiler_options=_COMPILER)
def _answer(steps: Steps, direction: Any, query: Query, frequencies: int) -> Bounds:
    return answer(jax.tree.map(lambda leaf: leaf[direction], steps), query, frequencies)[0]


@functools.partial(jax.jit, static_argnums=3)
def _beta(steps: Steps, first: Any, alpha: Any, frequencies: int) -> tuple[Any, Any]:
    lower, upper, _ = beta_bounds(steps, first, alpha, frequencies)
    return lower, upper


@functools.partial(jax.jit, compiler_options=_COMPILER)
def _rough(steps: Steps, direction: Any, epsilon: Any) -> jax.Array:
    return rough_log_delta(jax.tree.map(lambda leaf: leaf[direction], steps), epsilon)


@functools.partial(jax.jit, static_argnums=3, compiler_options=_COMPILER)
def _together(steps: Steps, counts: Any, log_delta: Any, frequencies: int) -> tuple[Any, Any]:
    """Returns (lower, upper) around epsilon for neighbouring repetitions, the largest first."""
    query = Query(log_delta, 0.0, True, 1.0)

    def one_direction(steps: Steps) -> tuple[Any, Any]:
        first = choose_contour(steps._replace(counts=steps.counts * counts[0]), query)
        step = step_spectrum(steps, first.tilt, first.window, frequencies)

        def one_count(count: Any) -> tuple[Any, Any]:
            repeated = steps._replace(counts=steps.counts * count)
            contour = follow_contour(first, repeated, query)
            spectrum = compose(step, repeated.counts, contour)
            found = bounds_on(repeated, query, contour, spectrum)
            return found.lower, found.upper

        return jax.lax.map(one_count, counts)

    lower, upper = jax.lax.map(one_direction, steps)
    return lower.max(0), upper.max(0)
