"""Which contour serves a query? Tilt, window and centre, chosen on a coarse step.

Nothing here needs to be right: whatever is chosen, the bounds of `_pld_fourier` hold. A poor choice only
makes them wide.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from opake_jax._numerics import logsumexp, xp
from opake_jax.accounting._pairs import Tails

__all__ = [
    "ALIAS",
    "COARSE",
    "Contour",
    "Query",
    "Rough",
    "Steps",
    "choose_contour",
    "contour_on",
    "expected_size",
    "follow_contour",
    "log_peak",
    "look_around",
    "pick_tilt",
    "relative_tails",
    "renyi_epsilon",
    "rough_log_delta",
    "rough_of",
    "roughen",
]

COARSE = 256
# Relative budget of delta for periodisation; the window grows with its log only.
ALIAS = 1e-5
# What the tails of one step may cost: high losses that become infinite, relative to delta; low losses that
# move up, in probability over all steps.
_HIGH, _LOW = 1e-7, 1e-8


# Tilts that are tried, times the spread. Low ones: a rare heavy tail takes over at a small tilt.
_GRID = np.geomspace(1e-7, 3e3, 56)
_BETWEEN = np.linspace(0.0, 1.0, 12)
_EXTRA = np.geomspace(0.5, 60.0, 14)  # more than the tilt, over the spread: for Chernoff's bounds


class Steps(NamedTuple):
    """What is composed: R kinds of step, each `counts[r]` times.

    log_mass, loss: [R, 2, M]; log_infinity, counts: [R]. See `_pairs.Atoms`.
    """

    log_mass: xp.Array
    loss: xp.Array
    log_infinity: xp.Array
    counts: xp.Array


class Query(NamedTuple):
    """What is asked: the epsilon at `log_delta` where `solve`, else delta at `epsilon`.

    `size` multiplies the expected size of the inversion integral (1 at first; what the first pass found, at the
    second).
    """

    log_delta: Any
    epsilon: Any
    solve: Any
    size: Any


class Contour(NamedTuple):
    """The line Re s = tilt, cut into 2 pi / window: see `_pld_fourier`."""

    tilt: xp.Array
    spread: xp.Array  # standard deviation of the tilted loss
    window: xp.Array
    centre: xp.Array  # the epsilon about which the integrand is expanded
    size: xp.Array  # expected value of the integral
    right: xp.Array  # extra tilts for Chernoff bounds of both tails
    left: xp.Array


def relative_tails(log_delta: Any, count: Any) -> Tails:
    """Returns where one of `count` steps is cut, for answers about this delta."""
    spread = xp.log(count)
    return Tails(log_delta + math.log(_HIGH) - spread, math.log(_LOW) - spread)


class Rough(NamedTuple):
    """The lower atoms, gathered into groups: mass in logs and loss [R, groups], counts [R]."""

    mass: xp.Array
    loss: xp.Array
    counts: xp.Array
    spread: xp.Array  # standard deviation of the composed loss

    def cumulants(self, tilts: xp.Array) -> tuple[xp.Array, xp.Array, xp.Array]:
        """Returns K, K', K'' of the composed loss, K = log E e^(tilt L), at each tilt."""
        loss = self.loss
        v = self.mass[:, None] + tilts[:, None] * loss[:, None]
        top = v.max(2, keepdims=True)
        moments = xp.exp(v - top) @ xp.stack([xp.ones_like(loss), loss, loss * loss], 2)
        z = moments[:, :, 0]
        mean = moments[:, :, 1] / z
        variance = xp.maximum(moments[:, :, 2] / z - mean * mean, 0.0)
        value = top[:, :, 0] + xp.log(z)
        return self.counts @ value, self.counts @ mean, self.counts @ variance

    def spread_at(self, tilt: xp.Array) -> xp.Array:
        """Returns the standard deviation of the tilted composed loss."""
        v = self.mass + tilt * self.loss
        w = xp.exp(v - logsumexp(v)[:, None])
        mean = (w * self.loss).sum(1, keepdims=True)
        spread = xp.sqrt((w * (self.loss - mean) ** 2).sum(1) @ self.counts)
        return xp.maximum(spread, 1e-6 * self.spread)


def roughen(steps: Steps) -> Rough:
    """Returns the lower atoms gathered into at most 256 groups."""
    kinds, _, count = steps.loss.shape
    groups = min(COARSE, count)
    each = count // groups
    mass = steps.log_mass[:, 1, : groups * each].reshape(kinds, groups, each)
    loss = steps.loss[:, 1, : groups * each].reshape(kinds, groups, each)
    top = xp.max(mass, 2, keepdims=True)
    top = xp.where(xp.isfinite(top), top, 0.0)
    weight = xp.exp(mass - top)
    total = weight.sum(2)
    mean = (weight * loss).sum(2) / xp.where(total > 0, total, 1.0)
    return rough_of(xp.log(total) + top[:, :, 0], mean, steps.counts)


def rough_of(log_mass: xp.Array, loss: xp.Array, counts: xp.Array) -> Rough:
    """Returns groups of atoms, [R, groups], with the spread of the composition."""
    p = xp.exp(log_mass)
    middle = (p * loss).sum(1, keepdims=True)
    variance = (p * (loss - middle) ** 2).sum(1) @ counts
    floor = 1e-5 * ((p * xp.abs(loss)).sum(1) @ counts)
    return Rough(log_mass, loss, counts, xp.sqrt(variance + floor * floor))


def renyi_epsilon(tilt: Any, cumulant: Any, log_delta: Any) -> Any:
    """Returns the epsilon at which Chernoff's bound on delta meets log_delta.

    (1 - e^-u)_+ <= e^(tilt u) (tilt/(1+tilt))^tilt/(1+tilt), hence delta(epsilon) <= that constant times
    e^(K(tilt) - tilt epsilon): the conversion of Canonne, Kamath, Steinke 2020, arXiv:2004.00010.
    """
    return (cumulant + log_peak(tilt) - log_delta) / tilt


def log_peak(tilt: Any) -> Any:
    """Returns log of the maximum over u of e^(-tilt u) (1 - e^-u)_+."""
    return -tilt * xp.log1p(1 / tilt) - xp.log1p(tilt)


def pick_tilt(rough: Rough, goal: Callable[..., Any], most: float = math.inf) -> tuple[Any, Any]:
    """Returns about the *last* tilt whose tilted mean is still left of its goal, and about the spread there.

    `goal(tilts, K, K'')` is the epsilon that the saddle point, or Chernoff, gives at a tilt. The last one, because
    where sigma is small or q tiny the best Renyi order lies beyond a phase transition. tilt * spread >= 1, so
    that e^(-tilt u) is gone within the window (or 4 times the untilted spread: a law with an atom at its top
    narrows as the tilt grows).
    """
    tilts = xp.minimum(_GRID / rough.spread, most)
    for last in (False, True):
        value, mean, variance = rough.cumulants(tilts)
        short = (tilts * tilts * variance < 1.0) & (tilts * rough.spread < 4.0)
        good = xp.cumprod((mean <= goal(tilts, value, variance)) | short)
        index = xp.clip(good.sum().astype(xp.int32) - 1, 0, tilts.shape[0] - 2)
        if not last:
            tilts = tilts[index] * (tilts[index + 1] / tilts[index]) ** _BETWEEN
    return tilts[index], xp.maximum(xp.sqrt(variance[index]), 1e-6 * rough.spread)


class Around(NamedTuple):
    """The composed law at a tilt: K, K', the tilted standard deviation; and K at tilts that are `more` or `less`."""

    value: Any
    mean: Any
    spread: Any
    more: xp.Array
    less: xp.Array
    above: xp.Array
    below: xp.Array

    def ends(self, log_alias: Any) -> tuple[Any, Any, Any, Any]:
        """Returns (right, left) ends beyond which the tilted law has less than e^log_alias, and their extra tilts."""
        rights = (self.above - self.value - log_alias) / self.more
        lefts = -(self.below - self.value - log_alias) / self.less
        right, left = rights.min(), lefts.max()
        # (argmin lowers to 32-bit constants in a program whose x64 flag is off.)
        right_tilt = xp.max(xp.where(rights <= right, self.more, 0.0))
        left_tilt = xp.max(xp.where(lefts >= left, self.less, 0.0))
        return right, left, right_tilt, left_tilt


def look_around(
    rough: Rough, tilt: Any, spread: Any, known: tuple[float, float] = (-math.inf, math.inf)
) -> Around:
    """Returns the law about a tilt, where its spread is about this, at tilts between those of `known` only."""
    more = xp.minimum(_EXTRA / spread, known[1] - tilt)
    less = xp.minimum(_EXTRA / spread, tilt - known[0])
    value, mean, variance = rough.cumulants(xp.concatenate([tilt[None], tilt + more, tilt - less]))
    above, below = value[1 : 1 + len(_EXTRA)], value[1 + len(_EXTRA) :]
    exact = xp.maximum(xp.sqrt(variance[0]), 1e-6 * rough.spread)
    return Around(value[0], mean[0], exact, more, less, above, below)


def choose_contour(steps: Steps, query: Query) -> Contour:
    """Returns the contour for a query about delta: tilt > 0."""
    return contour_on(roughen(steps), query)


def contour_on(
    rough: Rough,
    query: Query,
    most: float = math.inf,
    known: tuple[float, float] = (-math.inf, math.inf),
) -> Contour:
    """Returns the contour: its tilt is at most `most`, and only tilts between those of `known` are looked at."""
    log_delta, solve = query.log_delta, query.solve

    def goal(tilts: Any, value: Any, variance: Any) -> Any:
        shape = 0.5 * xp.log(2 * xp.pi * variance + 1e-300) + xp.log(tilts * (1 + tilts))
        saddle = (value - log_delta - shape) / tilts
        found = xp.minimum(renyi_epsilon(tilts, value, log_delta), saddle)
        return xp.where(solve, found, query.epsilon)

    tilt, spread = pick_tilt(rough, goal, most)
    law = look_around(rough, tilt, spread, known)
    value, mean, spread = law.value, law.mean, law.spread
    size = expected_size(tilt, spread) * query.size
    log_alias = xp.log(ALIAS * size)
    end = goal(tilt, value, spread * spread)
    centre = _centre(query, tilt, value, mean, spread, size, end)
    right, left, right_tilt, left_tilt = law.ends(log_alias)
    reach = xp.maximum(right - centre, centre - left - log_alias / tilt)
    return Contour(tilt, spread, 1.03 * reach, centre, size, right_tilt, left_tilt)


def _centre(
    query: Query, tilt: Any, value: Any, mean: Any, spread: Any, size: Any, end: Any
) -> Any:
    """Returns where delta is expected to be what is asked for; or the epsilon that is asked about."""
    solved = (value - query.log_delta + xp.log(size)) / tilt
    return xp.where(query.solve, xp.clip(solved, mean - spread, end), query.epsilon)


def follow_contour(contour: Contour, rough: Rough, query: Query) -> Contour:
    """Returns the contour of fewer repetitions of the same steps, at the tilt and window of more."""
    value, mean, variance = (found[0] for found in rough.cumulants(contour.tilt[None]))
    spread = xp.maximum(xp.sqrt(variance), 1e-6 * rough.spread)
    size = expected_size(contour.tilt, spread) * query.size
    end = renyi_epsilon(contour.tilt, value, query.log_delta)
    centre = _centre(query, contour.tilt, value, mean, spread, size, xp.maximum(end, mean - spread))
    return contour._replace(spread=spread, size=size, centre=centre)


def expected_size(tilt: Any, spread: Any) -> Any:
    """Returns about what the inversion integral will be, tilt > 0."""
    size = 1 / (math.sqrt(2 * math.pi) * spread * tilt * (1 + tilt))
    # A heavy one-step tail: the answer lies between two humps of the tilted sum.
    return xp.minimum(size, 0.3 / (1 + tilt)) * xp.minimum(1.0, (6 / (tilt * spread)) ** 3)


def rough_log_delta(steps: Steps, epsilon: Any) -> xp.Array:
    """Returns a rough log delta at epsilon, from which tails are cut."""
    contour = choose_contour(steps, Query(-1.0, epsilon, False, 1.0))
    each = logsumexp(steps.log_mass[:, 1] + contour.tilt * steps.loss[:, 1])
    value = steps.counts @ each - contour.tilt * epsilon + xp.log(contour.size)
    return xp.clip(xp.where(xp.isnan(value), 0.0, value), -1400.0, 0.0)
