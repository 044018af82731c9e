"""What can an observer learn from one step? Dominating pairs, as atoms on both sides of the truth.

A mechanism contributes *dominating pairs* (P, Q): pairs of distributions that are at least as easy to
tell apart as the mechanism's outputs on any two neighbouring datasets (Zhu, Dong, Wang 2022,
arXiv:2106.08567). Accounting composes pairs and nothing else, so that a new mechanism is one function,
registered with `dominating_pairs`.

A pair is handed to the engine as *atoms*: finitely many privacy losses log dP/dQ with their P-masses. What
matters about (P, Q) is delta(epsilon) = E_P[(1 - e^(epsilon - loss))_+], which grows with every mass and with
every loss, alone and in composition. Hence atoms may be pushed outward: a row of atoms whose masses or losses
are too large gives upper bounds, a row whose masses or losses are too small, or which leaves
some out, gives lower bounds.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from opake_jax._numerics import logsumexp, xp

__all__ = [
    "Atoms",
    "DiscretePair",
    "MixturePair",
    "Pair",
    "Tails",
    "dominating_pairs",
    "pad_outward",
]

#: Spacing of float64 at 1.
ULP = 2.0**-52


class Tails(NamedTuple):
    """Logs of the one-step masses that may be treated coarsely.

    high: P-mass at the largest losses that may be counted as an infinite loss (it adds to delta).
    low: P-mass at the smallest losses that may be moved up to the lowest atom (relative to delta, about
      its number of steps times that mass is lost in tightness).
    """

    high: Any
    low: Any


class Atoms(NamedTuple):
    """Losses of one step and their masses under P.

    log_mass: [2, M]. Row 0 dominates the pair, row 1 is dominated by it; -inf where there is no atom.
    loss: [2, M], finite.
    log_infinity: scalar, log of the mass of an infinite loss in row 0 (row 1 has none).
    """

    log_mass: xp.Array
    loss: xp.Array
    log_infinity: xp.Array


class Pair(Protocol):
    """A dominating pair: a frozen registered dataclass whose numbers are leaves."""

    def atoms(self, size: int, tails: Tails) -> Atoms:
        """Returns `size` atoms in each row, float64; `size` is static, all else may be traced."""


@functools.singledispatch
def dominating_pairs(mechanism: Any) -> tuple[Pair, ...]:
    """Returns the pairs of one step, one for each direction that is composed by itself.

    Two (the larger dataset first: remove, add) where the directions differ; one where a single pair covers
    both. A mechanism's own file registers this; it is called with float64 leaves, perhaps traced.
    """
    raise TypeError(f"no dominating pair is registered for {type(mechanism).__name__}")


def pad_outward(
    log_mass: xp.Array, loss: xp.Array, log_mass_error: Any, loss_error: Any
) -> tuple[xp.Array, xp.Array]:
    """Returns rows [2, M] moved by their error bounds: row 0 up, row 1 down."""
    side = np.array([[1.0], [-1.0]])
    return log_mass + side * log_mass_error, loss + side * loss_error


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DiscretePair:
    """Two distributions on finitely many points, by the logs of their masses.

    Attributes:
      log_p: [K], log masses under P.
      log_q: [K], log masses under Q; -inf there is an infinite loss.
    """

    log_p: Any
    log_q: Any

    def atoms(self, size: int, tails: Tails) -> Atoms:
        """Returns the points themselves, padded to `size`: exact on both sides but for rounding."""
        del tails
        log_p = xp.asarray(self.log_p, xp.float64)
        log_q = xp.asarray(self.log_q, xp.float64)
        (count,) = log_p.shape
        if count > size:
            raise ValueError(f"a discrete pair has at most {size} points, got {count}")
        # A NaN among the logs belongs to no branch: it stays, and the engine answers inf.
        finite = ~((log_p == -xp.inf) | (log_q == -xp.inf))
        loss = xp.where(finite, log_p - log_q, 0.0)
        mass = xp.where(finite, log_p, -xp.inf)
        # Spread over the whole length: neighbours are gathered where only a rough idea is wanted.
        place = xp.arange(count) * (size // count)
        mass = xp.set_at(xp.full(size, -xp.inf), place, mass)
        loss = xp.set_at(xp.zeros(size), place, loss)
        each = xp.where(finite, xp.abs(log_p) + xp.abs(log_q), 0.0)
        scale = xp.set_at(xp.zeros(size), place, each)
        log_mass, loss = pad_outward(
            xp.stack([mass, mass]), xp.stack([loss, loss]), 2 * ULP * (1 + scale), ULP * scale
        )
        infinite = (log_q == -xp.inf) & ~(log_p == -xp.inf)
        return Atoms(log_mass, loss, logsumexp(xp.where(infinite, log_p, -xp.inf)) + 8 * ULP)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MixturePair:
    """One of several pairs, drawn with public probabilities: sum_b w_b (P_b x {b}, Q_b x {b}).

    The branch is seen by the observer, so that losses are those of the branches and the atoms are the
    union of theirs. Each branch gets an equal share of the atoms.

    Attributes:
      weights: [B], probabilities, none below the truth.
      pairs: B pairs, each at least the true branch.
      excess: [2, B], by how much the logs of the masses (row 0) and the losses (row 1) of a branch may lie above the
        truth, where weights or branches were rounded up: the lower atoms are moved down by it.
    """

    weights: Any
    pairs: tuple[Any, ...]
    excess: Any

    def atoms(self, size: int, tails: Tails) -> Atoms:
        """Returns the union of the branches' atoms; of one that hardly ever happens, an infinite loss.

        At the tilt that serves the others it would be all that counts.
        """
        share, rest = divmod(size, len(self.pairs))
        log_weights = xp.log(xp.asarray(self.weights, xp.float64))
        parts = [
            pair.atoms(share + (rest if b == 0 else 0), tails) for b, pair in enumerate(self.pairs)
        ]
        excess = np.array([[0.0], [1.0]]) * xp.asarray(self.excess, xp.float64)[:, None]
        rare = log_weights <= tails.high - math.log(len(parts))
        log_mass = [
            xp.where(rare[b], -xp.inf, part.log_mass + log_weights[b] - excess[0, :, b, None])
            for b, part in enumerate(parts)
        ]
        log_infinity = xp.stack(
            [
                log_weights[b] + xp.where(rare[b], 0.0, part.log_infinity)
                for b, part in enumerate(parts)
            ]
        )
        mass, loss = pad_outward(
            xp.concatenate(log_mass, 1),
            xp.concatenate([part.loss - excess[1, :, b, None] for b, part in enumerate(parts)], 1),
            4 * ULP * (1 + xp.max(xp.where(log_weights > -xp.inf, -log_weights, 0.0))),
            0.0,
        )
        return Atoms(mass, loss, logsumexp(log_infinity) + 8 * ULP)
