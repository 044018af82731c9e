"""The Gaussian mechanism: a sum of L2 sensitivity 1 plus normal noise."""

import dataclasses
from typing import Any

import jax
import numpy as np

from opake_jax._checks import check_real, is_traced
from opake_jax._numerics import xp
from opake_jax.accounting._gaussian_pairs import GaussianMixturePair
from opake_jax.accounting._pairs import dominating_pairs
from opake_jax.accounting._process import Mechanism
from opake_jax.accounting._relations import check_relation
from opake_jax.accounting._rounding import quotient_below
from opake_jax.types import NeighboringRelation

__all__ = ["Gaussian", "gaussian"]

_LEAST = 1e-300  # of mu^2: 0 would be no release at all


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Gaussian(Mechanism):
    """One Gaussian release; build it with `gaussian`."""

    name = "gaussian"
    is_gaussian_release = True

    noise_multiplier: Any
    relation: NeighboringRelation = dataclasses.field(
        default=NeighboringRelation.ADD_REMOVE, metadata={"static": True}
    )

    def squared_mu(self) -> Any:
        """Returns (shift / noise_multiplier)^2, at least 1e-300: the release is exactly mu-Gaussian DP."""
        shift = 2.0 if self.relation is NeighboringRelation.REPLACE_ONE else 1.0
        sigma = self.noise_multiplier
        if is_traced(sigma):
            square = (shift / xp.where(sigma > 0, sigma, 1.0)) ** 2
            return xp.where(sigma > 0, xp.maximum(square, _LEAST), xp.inf)
        with np.errstate(divide="ignore", over="ignore", under="ignore"):
            square = float(np.square(np.float64(shift) / np.float64(sigma)))
        return max(square, _LEAST) if square == square else square

    def is_valid(self) -> Any:
        """Returns noise_multiplier >= 0."""
        return self.noise_multiplier >= 0

    def renyi(self, orders: Any) -> Any:
        """Returns order * mu^2 / 2 (Mironov 2017, arXiv:1702.07476, Cor. 3)."""
        return orders * (self.squared_mu() / 2)

    def grouped(self, size: int) -> "Gaussian":
        """Returns the Gaussian whose shift is `size` times as large."""
        return dataclasses.replace(
            self, noise_multiplier=quotient_below(self.noise_multiplier, size)
        )


@dominating_pairs.register
def _(mechanism: Gaussian) -> tuple[GaussianMixturePair, ...]:
    """Returns N(mu, 1) against N(0, 1), whose reverse has the same losses."""
    mu = xp.sqrt(xp.asarray(mechanism.squared_mu(), xp.float64))
    none = xp.zeros(0, xp.float64)
    one = xp.ones(1, xp.float64)
    return (GaussianMixturePair(one, mu[None], none, none, xp.ones((), xp.float64)),)


def gaussian(
    noise_multiplier: Any, *, relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE
) -> Gaussian:
    """Returns the Gaussian mechanism N(0, noise_multiplier^2) on a sum of units of L2 norm at most 1.

    Under ADD_REMOVE and ZERO_OUT one unit moves the sum by 1, under REPLACE_ONE by 2 (mu doubles).

    | noise_multiplier | answer |
    |---|---|
    | 0 | epsilon inf, delta 1 |
    | 1e-5 | epsilon 5.0e9, in closed form as any other |

    Args:
      noise_multiplier: in [0, inf); standard deviation of the noise over the clipping norm. May be
        traced; a negative traced value gives NaN.
      relation: which datasets count as neighbours; static.

    Raises:
      TypeError, ValueError: no finite number of at least 0.

    Guarantee: exact (Balle and Wang 2018, arXiv:1805.06530, Thm 5).

    >>> from opake_jax.accounting import gaussian
    >>> round(gaussian(1.0, relation=NeighboringRelation.REPLACE_ONE).epsilon_at(1e-5), 3)
    9.997
    """
    check_real("noise_multiplier", noise_multiplier, remedy="0 means no noise")
    return Gaussian(noise_multiplier, check_relation(relation))
