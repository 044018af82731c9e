"""How fine must it be? The engine for known numbers: level after level, until the bracket is tight.

Everything here is NumPy (`_numerics.xp`): nothing is compiled, and levels may differ in their sizes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from opake_jax.accounting._pairs import MixturePair, Tails, dominating_pairs
from opake_jax.accounting._pld_apart import Apart, apart_of
from opake_jax.accounting._pld_beta import beta_of_laws
from opake_jax.accounting._pld_bounds import Bounds, answer, at_most, bounds_on
from opake_jax.accounting._pld_fourier import compose, law_of, step_spectrum
from opake_jax.accounting._pld_jumps import epsilon_by_jumps, has_jumps, log_delta_by_jumps
from opake_jax.accounting._pld_once import answer_once
from opake_jax.accounting._pld_smooth import Smooth, smooth_of
from opake_jax.accounting._pld_tilt import (
    Query,
    Steps,
    choose_contour,
    follow_contour,
    relative_tails,
    rough_log_delta,
    roughen,
)
from opake_jax.accounting._pld_trade_off import beta_bounds
from opake_jax.accounting._smooth_lines import is_reverse

__all__ = ["Problem"]

# (atoms, frequencies): the first serves almost every setting.
# The last is fine enough for delta itself, to 1e-4, at 1e-50: the atoms' error is about (z times their distance)^2/12
# of it, at z deviations.
_LEVELS = ((1536, 3072), (3072, 9216), (8192, 27648), (16384, 110592))
_SMOOTH = -1  # before the levels: the law itself, where it has a density
# A direction that Chernoff's bound on so few atoms, at tilts about the other's, finds smaller than the other
# for certain, is not asked further.
_GLANCE, _TILTS = 192, np.array([1.0, 0.78, 1.27, 0.6, 1.6])
# Tails of one step are first cut for a delta of e^-20 = 2e-9: fine down to 1e-11, and no loss above.
_USUAL = -20.0

# A trajectory's counts share tilt and window in groups of so many, the smallest at least this share of the
# largest. The best tilt falls like the root of the count: for atoms 15 % off it cost nothing visible; where the law
# itself is inverted there are digits to spare.
_NARROW, _WIDE = (8, 0.7), (64, 0.3)

# How much tighter than the first each level is, about: atoms err by 1/M^2, the band limit by 1/N^2.
_FINER = (1.0, 5.0, 35.0, 120.0)

# The width of a bracket as a multiple of what is allowed.
Excess = Callable[[float, float], float]


class Problem:
    """A composition of mechanisms whose numbers are known."""

    def __init__(self, parts: Any):
        kept = [(mechanism, float(count)) for mechanism, count in parts if float(count) > 0]
        self.parts = kept
        self.pairs = [dominating_pairs(jax.tree.map(np.float64, m)) for m, _ in kept]
        self.counts = np.array([count for _, count in kept], np.float64)
        self.count = float(self.counts.sum())
        self.directions = max((len(pairs) for pairs in self.pairs), default=0)

    def epsilon(self, log_delta: float, excess: Excess) -> tuple[float, float]:
        """Returns (lower, upper) around epsilon."""
        if not self.parts:
            return 0.0, 0.0
        apart = self._apart(log_delta)
        if apart and excess(*(both := apart.epsilon(log_delta))) <= 1:
            return both
        search = _Search(self, excess, 0.0, math.inf, self.directions)
        tails = self._tails(log_delta)
        level = _SMOOTH
        while level < len(_LEVELS):
            search.look(level, tails, lambda size: Query(log_delta, 0.0, True, size))
            level = search.following(level)
        search.tell_apart(tails, log_delta, None)
        return search.bounds()

    def log_delta(self, epsilon: float, excess: Excess) -> tuple[float, float]:
        """Returns (lower, upper) around log delta."""
        if not self.parts:
            return -math.inf, -math.inf
        apart = self._apart(_USUAL)
        if apart and excess(*(both := apart.log_delta(epsilon))) <= 1:
            return both
        # At 0 it is the total variation, which has no direction.
        directions = 1 if epsilon == 0 and self.reversible else self.directions
        search = _Search(self, excess, -math.inf, 0.0, directions)

        def query(size: float) -> Query:
            return Query(-1.0, epsilon, False, size)

        scale = _USUAL
        tails = self._tails(scale)
        search.look(_SMOOTH, tails, query)
        level = search.following(_SMOOTH)
        if level == 0:
            search.look(0, tails, query)
            level = search.following(0)
        if search.bounds()[0] < scale and level < len(
            _LEVELS
        ):  # a smaller delta needs longer tails
            scale = search.bounds()[0]
            if search.bounds()[1] - scale > 1:  # not even roughly known
                wide = Tails(-1400.0, -1400.0)
                scale = max(
                    float(rough_log_delta(self.steps(d, wide, _LEVELS[0][0]), epsilon))
                    for d in range(directions)
                )
                level = 0
        while level < len(_LEVELS):
            tails = self._tails(min(scale, search.bounds()[1]))
            search.look(level, tails, query)
            level = search.following(level)
        search.tell_apart(tails, max(search.bounds()[0], scale), epsilon)
        return search.bounds()

    def trajectory(
        self, counts: np.ndarray, log_delta: float, excess: Excess
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns (lower, upper) around epsilon after each number of repetitions, [counts] each."""
        lower, upper = np.zeros(counts.shape), np.zeros(counts.shape)
        if not self.parts or not np.any(counts > 0):
            return lower, upper
        many = Problem([(m, times * counts.max()) for m, times in self.parts])
        tails = many._tails(log_delta)
        open_ = counts > 0
        for d in range(self.directions):
            for group in _neighbours(np.where(open_, counts, 0), _WIDE):
                low, up, other = self._group(d, counts[group], log_delta, tails)
                lower[group] = np.maximum(lower[group], low)
                upper[group] = np.maximum(upper[group], up)
                open_[group] = other > lower[group]
        for i in np.flatnonzero(counts > 0):
            if excess(lower[i], upper[i]) > 1:
                each = Problem([(m, times * counts[i]) for m, times in self.parts])
                ends = each.epsilon(log_delta, excess)
                lower[i], upper[i] = max(lower[i], ends[0]), min(upper[i], ends[1])
        return lower, upper

    def _group(
        self, direction: int, counts: np.ndarray, log_delta: float, tails: Tails
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns (lower, upper) around epsilon for falling counts, and above it in the other direction."""
        query = Query(log_delta, 0.0, True, 1.0)
        fewest = Problem([(m, times * counts[-1]) for m, times in self.parts])
        smooth = fewest.smooth(direction, query)
        found = None if smooth is None else smooth.together(counts / counts[-1], query)
        if smooth is not None and found is not None:
            low, up = (
                np.array([float(getattr(b, end)) for b in found]) for end in Bounds._fields[:2]
            )
            if not self.reversible:
                return low, up, np.full(len(counts), np.inf)
            tilts = smooth.most * np.geomspace(0.1, 1.0, 12)
            laws = [smooth.repeated(t).reverse_law() for t in counts / counts[-1]]
            others = [at_most(law, query, tilts, x) for law, x in zip(laws, low, strict=True)]
            return low, up, np.array(others)
        low, up, other = np.zeros(len(counts)), np.zeros(len(counts)), np.full(len(counts), np.inf)
        steps = self.steps(direction, tails, _LEVELS[0][0])
        few = self.steps(min(direction + 1, self.directions - 1), tails, _GLANCE)
        for group in _neighbours(counts, _NARROW):
            low[group], up[group], tilt = _together(steps, counts[group], log_delta)
            for i in group:
                law = law_of(few._replace(counts=few.counts * counts[i]))
                other[i] = at_most(law, query, tilt * _TILTS, low[i])
        return low, up, other

    def beta(self, alpha: float, excess: Excess) -> tuple[float, float]:
        """Returns (lower, upper) around the symmetrised trade-off function at alpha in (0, 1)."""
        if not self.parts:
            return 1 - alpha, 1 - alpha
        log_alpha = math.log(alpha)
        apart = self._apart(log_alpha)
        if apart and excess(*(both := apart.beta(alpha))) <= 1:
            return both
        lower, upper = 0.0, 1.0
        query = Query(log_alpha, 0.0, True, 1.0)
        each = [self.smooth(d, query) for d in range(self.directions)]
        laws = [law for law in each if law is not None and law.is_exact]
        whole = self.reversible and all(law.log_infinity == -math.inf for law in laws)
        for first in range(self.directions if len(laws) == self.directions else 0):
            ends = beta_of_laws(laws, first, alpha, whole)
            if ends is None:
                break
            lower, upper = max(lower, ends[0]), min(upper, ends[1])
            if excess(lower, upper) <= 1:
                return lower, upper
        tails = self._tails(
            4.0 * math.floor(log_alpha / 4.0)
        )  # neighbours share what is found once
        for atoms, frequencies in _LEVELS[:2]:
            sides = [self.steps(d, tails, atoms) for d in range(self.directions)]
            both = jax.tree.map(lambda *leaves: np.stack(leaves), sides[0], sides[-1])
            for first in range(self.directions):
                found = beta_bounds(both, first, alpha, frequencies)
                lower, upper = max(lower, float(found[0])), min(upper, float(found[1]))
                if excess(lower, upper) <= 1:
                    return lower, upper
        return lower, upper

    def steps(self, direction: int, tails: Tails, size: int) -> Steps:
        """Returns the atoms of every kind of step in one direction."""
        some = [pairs[min(direction, len(pairs) - 1)] for pairs in self.pairs]
        # A mixture divides its atoms among its branches.
        size *= max(len(pair.pairs) if isinstance(pair, MixturePair) else 1 for pair in some)
        kinds = [pair.atoms(size, tails) for pair in some]
        mass, loss, infinity = (np.stack(leaves) for leaves in zip(*kinds, strict=True))
        return Steps(mass, loss, infinity, self.counts)

    @functools.cached_property
    def reversible(self) -> bool:
        """Whether the second direction's pairs are the first's, exchanged."""
        return all(is_reverse(pairs[0], pairs[-1]) for pairs in self.pairs)

    def smooth(self, direction: int, query: Query) -> Smooth | None:
        """Returns the law itself in one direction; None where it is of no use."""
        some = [pairs[min(direction, len(pairs) - 1)] for pairs in self.pairs]
        return smooth_of(some, self.counts, query)

    def _apart(self, log_delta: float) -> Apart | None:
        """Returns the composition where outputs tell who took part, for answers about this delta; else None."""
        apart = apart_of([pairs[0] for pairs in self.pairs], self.counts, log_delta)
        return apart if apart and self.reversible else None

    def _tails(self, log_delta: float) -> Tails:
        high, low = relative_tails(min(log_delta, -1.0), self.count)
        return Tails(float(high), float(low))


class _Search:
    """The best bounds so far, for each direction; every single one holds."""

    def __init__(self, problem: Problem, excess: Excess, low: float, high: float, directions: int):
        self.problem, self.excess, self.directions = problem, excess, directions
        self.lower = [low] * directions
        self.upper = [high] * directions
        self.sizes = [1.0] * directions

    def bounds(self) -> tuple[float, float]:
        return max(self.lower), max(self.upper)

    def following(self, level: int) -> int:
        """Returns the level to look at next: the first that should be fine enough; past the last if done."""
        excess = self.excess(*self.bounds())
        if excess <= 1:
            return len(_LEVELS)
        if level == _SMOOTH:
            return 0
        for finer in range(level + 1, len(_LEVELS)):
            if excess * _FINER[level] <= _FINER[finer]:
                return finer
        return level + 1

    def tell_apart(self, tails: Tails, log_delta: float, epsilon: float | None) -> None:
        """Asks by the number of jumps, where large losses are rare: for log delta at epsilon, or for epsilon (None)."""
        if self.problem.count == 1 or self.excess(*self.bounds()) <= 1:
            return
        atoms, frequencies = _LEVELS[1]
        for d in range(self.directions):
            if not self.upper[d] > max(self.lower):
                continue
            steps = self.problem.steps(d, tails, atoms)
            if not has_jumps(steps):
                continue
            if epsilon is None:
                within = self.lower[d], self.upper[d]
                low, up = epsilon_by_jumps(steps, log_delta, frequencies, within)
            else:
                low, up = log_delta_by_jumps(steps, epsilon, log_delta, frequencies)
            self.lower[d], self.upper[d] = max(self.lower[d], low), min(self.upper[d], up)

    def look(self, level: int, tails: Tails, query: Callable[[float], Query]) -> None:
        """Asks at one level, leaving out the directions that are smaller for certain."""
        tilt: Any = None
        smooth: Smooth | None = None
        for d in range(self.directions):
            if not self.upper[d] > max(self.lower):
                continue
            if tilt is not None and level <= 0:
                if smooth is not None and self.problem.reversible:
                    law = smooth.reverse_law()
                else:
                    law = law_of(self.problem.steps(d, tails, _GLANCE))
                most = at_most(law, query(1.0), tilt * _TILTS, max(self.lower))
                if most <= max(self.lower):
                    self.upper[d] = min(self.upper[d], most)
                    continue
            if level == _SMOOTH:
                smooth = self.problem.smooth(d, query(1.0))
                found = None if smooth is None else smooth.answer(query(1.0))
                if smooth is None or found is None:
                    return
                bounds, contour = found
                tilt = contour.tilt
            elif self.problem.count == 1:
                bounds = answer_once(self.problem.steps(d, tails, _LEVELS[level][0]), query(1.0))
            else:
                atoms, frequencies = _LEVELS[level]
                steps = self.problem.steps(d, tails, atoms)
                bounds, contour = answer(steps, query(self.sizes[d]), frequencies)
                tilt = contour.tilt
            self.lower[d] = max(self.lower[d], float(bounds.lower))
            self.upper[d] = min(self.upper[d], float(bounds.upper))
            size = float(bounds.size)
            self.sizes[d] = min(max(0.1 * size, 1e-9), 1.0) if math.isfinite(size) else 1.0


def _neighbours(counts: np.ndarray, limits: tuple[int, float]) -> list[np.ndarray]:
    """Returns groups of positions, the largest count first: so many, and no count below that share of the first."""
    most, ratio = limits
    order = [i for i in np.argsort(-counts, kind="stable") if counts[i] > 0]
    groups: list[list[int]] = []
    for i in order:
        if groups and len(groups[-1]) < most and counts[i] >= ratio * counts[groups[-1][0]]:
            groups[-1].append(i)
        else:
            groups.append([i])
    return [np.array(group) for group in groups]


def _together(steps: Steps, counts: np.ndarray, log_delta: float) -> tuple[Any, Any, Any]:
    """Returns (lower, upper) around epsilon for neighbouring repetitions, the largest first, and their tilt."""
    query = Query(log_delta, 0.0, True, 1.0)
    first = choose_contour(steps._replace(counts=steps.counts * counts[0]), query)
    step = step_spectrum(steps, first.tilt, first.window, _LEVELS[0][1])
    lower, upper = np.zeros(len(counts)), np.zeros(len(counts))
    for i, count in enumerate(counts):
        repeated = steps._replace(counts=steps.counts * count)
        contour = follow_contour(first, roughen(repeated), query)
        found = bounds_on(law_of(repeated), query, contour, compose(step, repeated.counts, contour))
        lower[i], upper[i] = found.lower, found.upper
    return lower, upper, first.tilt
