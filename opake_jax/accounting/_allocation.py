"""The law of the likelihood ratio under random allocation, from above and from below.

One of t steps is chosen for the unit: P = mean over i of N(e_i, sigma^2 I) against Q = N(0, sigma^2 I), or the reverse. The
likelihood ratio is S = (Y_1 + ... + Y_t)/t, where the Y_i are independent under Q, each the ratio of N(1, sigma^2) to
N(0, sigma^2). Every divergence of the pair is an expectation under Q of a convex function of S. Hence it grows if a Y_i is
replaced by a mean-preserving spread, and shrinks if it is replaced by its conditional means (both keep
under addition of an independent term: condition on it).

A law lives on a geometric grid and 0. From above, the mass at a sum goes to the two grid points around it,
the mean kept; what exceeds the grid becomes an infinite loss. From below, a cell keeps its mass and its
mean; what exceeds the grid is left out. Only positive numbers are added, so that tails keep their digits.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np

from opake_jax._numerics import log_ndtr, tail_quantile, xp
from opake_jax.accounting._allocation_known import LEAST_MASS, Law, sum_of, underflowing
from opake_jax.accounting._gaussian_pairs import GaussianMixturePair
from opake_jax.accounting._pairs import Atoms, Tails

__all__ = ["AllocationPair"]

_MOST_VALUES = 512  # of a law; adding two costs the square of it
_MOST_KNOWN = 4096  # the same where the noise is known
# Noise below which ratios leave the range of float64 (amplification is worth log(t) of 300 there), and above which they are
# so near 1 that the grids' width is more than amplification.
_SMALLEST, _LARGEST = 0.05, 1e3
_OUTWARD = 1e-12  # masses and values are sums of positive terms, a few hundred ulp wrong


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AllocationPair:
    """The pair of one unit in one of `num_steps` steps, in one direction."""

    sigma: Any
    num_steps: int = dataclasses.field(metadata={"static": True})
    is_reversed: bool = dataclasses.field(metadata={"static": True})

    def atoms(self, size: int, tails: Tails) -> Atoms:
        """Returns the losses log S under P (or -log S under Q), above and below."""
        sigma = xp.asarray(self.sigma, xp.float64)
        if not xp.is_traced(sigma) and not _SMALLEST <= sigma <= _LARGEST:
            return self._unamplified(size, tails)
        if xp.is_traced(sigma, *tails):
            values = min(size // 4, _MOST_VALUES)
            upper, lower = _sum_of_ratios(sigma, self.num_steps, values, tails)
            outward = _OUTWARD
        else:
            upper, lower, outward = _known_sum_of_ratios(
                float(sigma),
                self.num_steps,
                min(size, _MOST_KNOWN) - 2,
                Tails(float(tails.high), float(tails.low)),
            )
        masses, losses = [], []
        for law, side in ((upper, +1), (lower, -1)):
            values, mass = law.values, law.masses
            if (
                self.is_reversed and side > 0
            ):  # beyond the grid: the loss is at most that of its end
                mass = xp.append(mass[:-1], mass[-1] + law.lost_q)
            there = ~((values <= 0) | (mass <= 0))  # a NaN stays, and the answer is inf
            log_ratio = xp.log(xp.where(there, values, 1.0) / self.num_steps)
            log_mass = xp.where(there, xp.log(xp.where(there, mass, 1.0)), -xp.inf)
            log_mass = log_mass + side * outward + (0.0 if self.is_reversed else log_ratio)
            loss = (-log_ratio if self.is_reversed else log_ratio) + side * outward
            rest = size - loss.shape[0]
            masses.append(xp.pad(log_mass, rest, -xp.inf))
            losses.append(xp.pad(loss, rest, 0.0))
        # A ratio of 0 is an infinite loss of the reverse; one beyond the grid of the pair itself.
        infinite = upper.masses[0] if self.is_reversed else upper.lost_p
        return Atoms(xp.stack(masses), xp.stack(losses), xp.log(infinite) + outward)

    def _unamplified(self, size: int, tails: Tails) -> Atoms:
        """Returns the plain Gaussian's atoms, which a mean of such pairs does not exceed, and nothing below."""
        one, none = xp.ones(1), xp.zeros(0)
        atoms = GaussianMixturePair(one, one, none, none, self.sigma).atoms(size, tails)
        return atoms._replace(log_mass=xp.set_at(atoms.log_mass, 1, -xp.inf))


def _sum_of_ratios(sigma: Any, count: int, size: int, tails: Tails) -> tuple[Law, Law]:
    """Returns the law of Y_1 + ... + Y_count from above and from below: by doubling."""
    high, low = _levels(tails, count)
    one = _single_ratio(sigma, size, Tails(high, low))
    largest = xp.max(one[0].values)

    def double(total: Any, bit: Any) -> Any:
        total = _added(total, total, low, largest)

        def more() -> Any:
            return _added(total, one, low, largest)

        return xp.cond(bit, more, lambda: total), None

    # One body for all bits but the first: it compiles once, whatever the count.
    bits = np.array([bit == "1" for bit in f"{count:b}"[1:]], bool)
    return xp.scan(double, one, bits)[0]


@functools.lru_cache(maxsize=8)  # both directions ask, and levels of one size
def _known_sum_of_ratios(
    sigma: float, count: int, size: int, tails: Tails
) -> tuple[Law, Law, float]:
    """Returns the same for a known sigma, on finer grids, and by how much its logs may be wrong."""
    high, low = _levels(tails, count)
    above, below = _single_ratio(np.float64(sigma), size, Tails(high, low))
    used = (above.masses != 0) | (np.arange(len(above.masses)) == 0), below.masses != 0
    one = (
        above._replace(values=above.values[used[0]], masses=above.masses[used[0]], terms=1),
        below._replace(values=below.values[used[1]], masses=below.masses[used[1]], terms=1),
    )
    return sum_of(one, count, size, float(low))


def _levels(tails: Tails, count: int) -> tuple[Any, Any]:
    """Returns the logs of what one ratio may lose above, and move up below: a ratio of 0 is the reverse's infinite loss."""
    high = tails.high - math.log(2.0)
    return high, xp.minimum(tails.low, high) - math.log(count)


def _single_ratio(sigma: Any, size: int, tails: Tails) -> tuple[Law, Law]:
    """Returns the law of one ratio: the Gaussian pair's own atoms, as Q-masses."""
    one, none = xp.ones(1), xp.zeros(0)
    pair = GaussianMixturePair(one, one, none, none, sigma)
    # Dots from where Q has little mass: P has less there.
    low = xp.minimum(tails.low, log_ndtr(-tail_quantile(tails.low) - 1 / sigma))
    atoms = pair.atoms(size, Tails(tails.high, low))
    q = xp.exp(atoms.log_mass - atoms.loss)
    # What Q hardly ever sees has no digits as Q-mass, whatever P makes of it: its ratio counts as infinite.
    there = q[0] > LEAST_MASS
    unseen = ~(there | (atoms.log_mass[0] == -xp.inf))  # a NaN is among them, and the answer is inf
    unseen_p = xp.sum(xp.where(unseen, xp.exp(atoms.log_mass[0]), 0.0))
    values = xp.where(there, xp.exp(atoms.loss[0]), 0.0)
    # Ratios below the lowest dot, y, are spread between it and 0: their P-mass / y is at y already.
    lowest = xp.min(xp.where(there, atoms.loss[0], xp.inf))
    edge = sigma * lowest + 0.5 / sigma  # in standard deviations
    beneath_p = xp.exp(log_ndtr(edge - 1 / sigma) - lowest)
    beneath = xp.exp(log_ndtr(edge)) * (1 + _OUTWARD) - beneath_p * (1 - _OUTWARD)
    highest = xp.max(xp.where(there, atoms.loss[0], -xp.inf))
    lost_q = xp.exp(log_ndtr(-(sigma * highest + 0.5 / sigma))) * (1 + _OUTWARD)
    lost_q = lost_q + xp.sum(xp.where(unseen, q[0], 0.0))
    zero, once = xp.zeros(()), xp.ones(())
    upper = Law(
        xp.append(zero, values),
        xp.append(xp.maximum(beneath, 0.0), xp.where(there, q[0], 0.0)),
        lost_q,
        xp.exp(atoms.log_infinity) + unseen_p * (1 + _OUTWARD),
        once,
    )
    there = q[1] > LEAST_MASS
    values = xp.where(there, xp.exp(atoms.loss[1]), 0.0)
    lower = Law(
        xp.append(zero, values), xp.append(zero, xp.where(there, q[1], 0.0)), zero, zero, once
    )
    return upper, lower


def _added(a: tuple[Law, Law], b: tuple[Law, Law], low: Any, largest_ratio: Any) -> tuple[Law, Law]:
    """Returns the law of the sum of two independent sums, above and below, on one grid."""
    size = a[0].values.shape[0] - 1
    terms = a[0].terms + b[0].terms
    # From a low quantile to one large ratio on top of the rest and eight of its standard deviations.
    start = _low_quantile(a[0], low) + _low_quantile(b[0], low)
    spread = xp.sqrt(terms) * xp.sqrt(xp.sum(b[0].masses * (b[0].values - b[0].terms) ** 2))
    stop = largest_ratio + terms + 8 * spread / xp.sqrt(b[0].terms)
    log_step = (xp.log(stop) - xp.log(start)) / (size - 1)
    grid = start * xp.exp(log_step * np.arange(size))
    points = xp.concatenate([xp.zeros(1), grid])

    def cell(sums: Any) -> Any:
        """Returns the index of the point at or below each sum; 0 where it is no number (its mass is none, too)."""
        place = xp.floor(xp.log(xp.maximum(sums, start * 1e-9) / start) / log_step)
        place = xp.clip(xp.where(place >= -1, place, -1.0), -1, size - 1)
        return xp.astype(place, np.int32) + 1

    def pairs(side: int) -> tuple[Any, Any]:
        """Returns all sums of two values, and their masses."""
        sums = a[side].values[:, None] + b[side].values
        return sums, a[side].masses[:, None] * b[side].masses

    zero = xp.zeros(())
    none = xp.zeros(size + 1)
    sums, weights = pairs(0)
    k = xp.minimum(cell(sums), size - 1)
    share = xp.clip((sums - points[k]) / (points[k + 1] - points[k]), 0.0, 1.0)
    out = sums > stop
    inside, beyond = xp.where(out, 0.0, weights), xp.where(out, weights, 0.0)
    masses = xp.add_at(xp.add_at(none, k, inside * (1 - share)), k + 1, inside * share)
    underflow = underflowing(sums.size)
    lost_q = xp.sum(beyond) + underflow
    lost_p = xp.sum(xp.where(out, beyond * sums, 0.0)) / terms + underflow * stop / terms
    # Something was lost in a, or in b: its own share of the P-mass, and the other's.
    for this, other in ((a[0], b[0]), (b[0], a[0])):
        lost_q = lost_q + this.lost_q
        lost_p = lost_p + (this.terms * this.lost_p + other.terms * this.lost_q) / terms
    upper = Law(points, masses, lost_q, lost_p, terms)
    sums, weights = pairs(1)
    k = cell(sums)
    weights = xp.where(sums > stop, 0.0, weights)
    masses, moments = xp.add_at(none, k, weights), xp.add_at(none, k, weights * sums)
    values = xp.where(masses > 0, moments / xp.where(masses > 0, masses, 1.0), 0.0)
    return upper, Law(values, masses, zero, zero, terms)


def _low_quantile(law: Law, low: Any) -> Any:
    """Returns a value below which there is at most about e^low of mass: the grid may start there."""
    below = xp.cumsum(law.masses)
    smallest = xp.min(xp.where(law.values > 0, law.values, xp.inf))
    return xp.maximum(xp.max(xp.where(below <= xp.exp(low), law.values, 0.0)), smallest)
