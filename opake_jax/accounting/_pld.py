"""The accountant: certified bounds on what a composition of dominating pairs costs."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax.accounting._evaluate import float64_on_cpu
from opake_jax.accounting._pairs import Atoms, Tails, dominating_pairs
from opake_jax.accounting._pld_fourier import Bounds, answer
from opake_jax.accounting._pld_tilt import Query, Steps, choose_contour

__all__ = ["PLD"]

# (atoms, frequencies): the first serves almost every setting, so that a cold call compiles one kernel.
_LEVELS = ((2048, 4096), (4096, 16384), (8192, 32768))
_ABSOLUTE = 1e-9
# Relative shares of delta (high losses made infinite) and of a step (low losses moved up).
_HIGH, _LOW = 1e-7, 1e-8


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PLD:
    """Answers from the privacy loss distribution, by certified Fourier inversion.

    Attributes:
      rtol: concrete questions are refined until upper - lower <= max(rtol * upper, 1e-9), or the levels
        are used up; the bounds hold in either case.
    """

    rtol: Any = 1e-4

    def epsilon_bounds(self, parts: Any, delta: Any) -> tuple[float, float]:
        """Returns (lower, upper) around epsilon at `delta`, for parts ((mechanism, count), ...)."""
        problem = _problem(parts)
        log_delta = math.log(delta)

        def ask(direction: int, level: int, bounds: Any) -> Bounds:
            del bounds
            tails = problem.tails(log_delta)
            query = Query(log_delta, 0.0, True, problem.sizes[direction])
            return problem.ask(direction, level, tails, query)

        with float64_on_cpu():
            lower, upper = _refine(problem, ask, self._tight(_ABSOLUTE), 0.0, math.inf)
        return lower, upper

    def delta_bounds(self, parts: Any, epsilon: Any) -> tuple[float, float]:
        """Returns (lower, upper) around delta at `epsilon`."""
        problem = _problem(parts)

        def ask(direction: int, level: int, bounds: Any) -> Bounds:
            scale = bounds[1] if level else problem.log_delta_scale(direction, epsilon)
            query = Query(-1.0, float(epsilon), False, problem.sizes[direction])
            found = problem.ask(direction, level, problem.tails(min(scale, -1.0)), query)
            return found

        with float64_on_cpu():
            tight = lambda lower, upper: (
                math.exp(lower - upper) >= 1 - self.rtol if upper > -math.inf else True
            )
            lower, upper = _refine(problem, ask, tight, -math.inf, 0.0)
        return math.exp(lower) * (1 - 4e-16), min(math.exp(upper) * (1 + 4e-16), 1.0)

    def _tight(self, absolute: float) -> Any:
        return lambda lower, upper: upper - lower <= max(self.rtol * upper, absolute)


@dataclasses.dataclass
class _Problem:
    """A composition whose numbers are known: mechanisms, counts, and what earlier levels found."""

    mechanisms: tuple[Any, ...]
    counts: np.ndarray
    directions: int = 0
    sizes: list[float] = dataclasses.field(default_factory=list)
    cache: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def tails(self, log_delta: float) -> Tails:
        spread = math.log(self.counts.sum())
        return Tails(log_delta + math.log(_HIGH) - spread, math.log(_LOW) - spread)

    def steps(self, direction: int, size: int, tails: Tails) -> Steps:
        key = (size, tails)
        if key not in self.cache:
            self.cache[key] = [_atoms(m, tails, size) for m in self.mechanisms]
        atoms = [found[min(direction, len(found) - 1)] for found in self.cache[key]]
        return _stack(atoms, self.counts)

    def ask(self, direction: int, level: int, tails: Tails, query: Query) -> Bounds:
        size, frequencies = _LEVELS[level]
        return jax.device_get(_answer(self.steps(direction, size, tails), query, frequencies))

    def log_delta_scale(self, direction: int, epsilon: float) -> float:
        steps = self.steps(direction, _LEVELS[0][0], Tails(-1400.0, -1400.0))
        return float(_scale(steps, float(epsilon)))


def _problem(parts: Any) -> _Problem:
    kept = [(m, float(c)) for m, c in parts if float(c) > 0]
    mechanisms = tuple(jax.tree.map(np.float64, m) for m, _ in kept)
    with float64_on_cpu():
        directions = max((_directions(m) for m in mechanisms), default=1)
    counts = np.array([c for _, c in kept])
    return _Problem(mechanisms, counts, directions, [1.0] * directions)


def _directions(mechanism: Any) -> int:
    return len(jax.eval_shape(dominating_pairs, mechanism))


def _refine(
    problem: _Problem, ask: Any, tight: Any, low: float, high: float
) -> tuple[float, float]:
    """Returns the best (lower, upper) over directions and levels; every single bound holds."""
    lower, upper = [low] * problem.directions, [high] * problem.directions
    for level in range(len(_LEVELS)):
        for d in range(problem.directions):
            if level and upper[d] <= max(lower):
                continue  # the other direction is larger for certain
            found = ask(d, level, (lower[d], upper[d]))
            lower[d] = max(lower[d], float(found.lower))
            upper[d] = min(upper[d], float(found.upper))
            size = float(found.size)
            problem.sizes[d] = min(max(0.1 * size, 1e-9), 1.0) if math.isfinite(size) else 1.0
        if tight(max(lower), max(upper)):
            break
    return max(lower), max(upper)


@functools.partial(jax.jit, static_argnums=2)
def _atoms(mechanism: Any, tails: Tails, size: int) -> list[Atoms]:
    pairs = dominating_pairs(mechanism)
    shapes = {jax.tree.structure(pair): None for pair in pairs}
    if len(pairs) > 1 and len(shapes) == 1:  # one compilation serves all directions
        stacked = jax.tree.map(lambda *leaves: jnp.stack(jnp.asarray(leaves)), *pairs)
        atoms = jax.vmap(lambda pair: pair.atoms(size, tails))(stacked)
        return [jax.tree.map(lambda leaf, d=d: leaf[d], atoms) for d in range(len(pairs))]
    return [pair.atoms(size, tails) for pair in pairs]


def _stack(atoms: Sequence[Atoms], counts: Any) -> Steps:
    mass, loss, infinity = zip(*atoms, strict=True)
    if len(atoms) == 1:
        return Steps(mass[0][None], loss[0][None], infinity[0][None], counts)
    return Steps(jnp.stack(mass), jnp.stack(loss), jnp.stack(infinity), jnp.asarray(counts))


_answer = jax.jit(answer, static_argnums=2)


@jax.jit
def _scale(steps: Steps, epsilon: Any) -> Any:
    """Returns a rough log delta at epsilon, from which tails are cut."""
    contour = choose_contour(steps, Query(-1.0, epsilon, False, 1.0))
    mass, loss = steps.log_mass[:, 1], steps.loss[:, 1]
    v = mass + contour.tilt * loss
    top = v.max(1)
    moment = steps.counts @ (top + jnp.log(jnp.exp(v - top[:, None]).sum(1)))
    return jnp.clip(moment - contour.tilt * epsilon + jnp.log(contour.size), -1400.0, 0.0)
