"""The Laplace mechanism: a sum of L1 sensitivity 1 plus Laplace noise."""

import dataclasses
import math
from typing import Any

import jax

from opake_jax._checks import check_real, is_traced
from opake_jax._numerics import xp
from opake_jax.accounting._laplace_pair import LaplacePair
from opake_jax.accounting._pairs import dominating_pairs
from opake_jax.accounting._process import Mechanism
from opake_jax.accounting._relations import check_relation
from opake_jax.accounting._rounding import quotient_below
from opake_jax.types import NeighboringRelation

__all__ = ["Laplace", "laplace"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Laplace(Mechanism):
    """One Laplace release; build it with `laplace`."""

    name = "laplace"

    noise_multiplier: Any
    relation: NeighboringRelation = dataclasses.field(metadata={"static": True})

    def scale(self) -> Any:
        """Returns the scale of the noise over the distance that one unit can move the sum."""
        shift = 2.0 if self.relation is NeighboringRelation.REPLACE_ONE else 1.0
        return self.noise_multiplier / shift

    def largest_loss(self) -> Any:
        """Returns 1 / scale: Laplace noise gives pure DP."""
        scale = self.scale()
        if is_traced(scale):
            return xp.where(scale > 0, 1 / xp.where(scale > 0, scale, 1.0), xp.inf)
        return 1 / float(scale) if scale > 0 else math.inf

    def squared_mu(self) -> Any:
        """Returns inf without noise, else None: no Gaussian."""
        scale = self.noise_multiplier
        return math.inf if not is_traced(scale) and scale == 0 else None

    def is_valid(self) -> Any:
        """Returns: the scale is not negative."""
        return self.noise_multiplier >= 0

    def renyi(self, orders: Any) -> Any:
        """Returns the exact divergences (Mironov 2017, arXiv:1702.07476, Prop. 6)."""
        loss = xp.asarray(self.largest_loss(), xp.float64)
        first = xp.log(orders / (2 * orders - 1)) + (orders - 1) * loss
        second = xp.log((orders - 1) / (2 * orders - 1)) - orders * loss
        return xp.logaddexp(first, second) / (orders - 1)

    def grouped(self, size: int) -> "Laplace":
        """Returns the mechanism whose shift is `size` times as large."""
        return dataclasses.replace(
            self, noise_multiplier=quotient_below(self.noise_multiplier, size)
        )


@dominating_pairs.register
def _(mechanism: Laplace) -> tuple[LaplacePair, ...]:
    return (LaplacePair(mechanism.scale()),)


def laplace(
    noise_multiplier: Any, *, relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE
) -> Laplace:
    """Returns the Laplace mechanism of scale `noise_multiplier` on a sum of units of L1 norm at most 1.

    Pure DP: epsilon_at(0) is 1/noise_multiplier for one release, twice that under REPLACE_ONE.

    | noise_multiplier | answer |
    |---|---|
    | 0 | epsilon inf, delta 1 |

    Args:
      noise_multiplier: in [0, inf); scale of the noise over the L1 bound of one unit. May be traced; a traced
        value that is not positive gives epsilon inf.
      relation: which datasets count as neighbours; static.

    Raises:
      TypeError, ValueError: no finite number of at least 0.

    Guarantee: the pair is exact (a unit that moves one coordinate).

    >>> from opake_jax.accounting import laplace
    >>> laplace(0.5).epsilon_at(0.0)
    2.0
    """
    check_real("noise_multiplier", noise_multiplier, remedy="0 means no noise")
    return Laplace(noise_multiplier, check_relation(relation))
