"""Adaptive clipping: a Gaussian release of the sum and of how many norms were below the threshold."""

import dataclasses
import math
from typing import Any

import jax

from opake_jax._checks import check_real, is_traced
from opake_jax._numerics import xp
from opake_jax.accounting._gaussian import Gaussian
from opake_jax.accounting._pairs import Pair, dominating_pairs
from opake_jax.accounting._process import Mechanism
from opake_jax.accounting._relations import check_relation
from opake_jax.types import NeighboringRelation

__all__ = ["Adaclip", "adaclip", "gradient_noise_multiplier"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Adaclip(Mechanism):
    """One release of adaptive clipping; build it with `adaclip`."""

    name = "adaclip"
    is_gaussian_release = True

    gradient_noise_multiplier: Any
    count_noise_std: Any
    relation: NeighboringRelation = dataclasses.field(metadata={"static": True})

    @property
    def noise_multiplier(self) -> Any:
        """Returns the noise multiplier of the one Gaussian that costs as much as both releases."""
        z, b = self.gradient_noise_multiplier, self.count_noise_std
        # 1/sqrt(1/z^2 + 1/(2b)^2) = 2 b z / sqrt(z^2 + 4 b^2), without dividing by a zero.
        if is_traced(z) or is_traced(b):
            hypotenuse = xp.hypot(z, 2 * xp.asarray(b))
            some = hypotenuse > 0
            return xp.where(some, 2 * z * b / xp.where(some, hypotenuse, 1.0), 0.0)
        length = math.hypot(float(z), 2 * float(b))
        return 2 * float(z) * float(b) / length if length > 0 else 0.0

    def squared_mu(self) -> Any:
        """Returns (shift / noise_multiplier)^2: two Gaussian releases are one."""
        return Gaussian(self.noise_multiplier, self.relation).squared_mu()

    def is_valid(self) -> Any:
        """Returns: neither is negative."""
        return (xp.asarray(self.gradient_noise_multiplier) >= 0) & (
            xp.asarray(self.count_noise_std) >= 0
        )

    def renyi(self, orders: Any) -> Any:
        """Returns the Gaussian's divergences."""
        return orders * (self.squared_mu() / 2)

    def grouped(self, size: int) -> Gaussian:
        """Returns the Gaussian whose shift is `size` times as large."""
        return Gaussian(self.noise_multiplier, self.relation).grouped(size)


@dominating_pairs.register
def _(mechanism: Adaclip) -> tuple[Pair, ...]:
    return dominating_pairs(Gaussian(mechanism.noise_multiplier, mechanism.relation))


def gradient_noise_multiplier(noise_multiplier: Any, count_noise_std: Any) -> Any:
    """Returns the multiplier that the gradient needs so that it and the count cost one Gaussian's price.

    (1/noise_multiplier^2 - 1/(4 count_noise_std^2))^(-1/2): larger than `noise_multiplier`, by the share that the
    count takes.

    Args:
      noise_multiplier: of the whole release, positive.
      count_noise_std: standard deviation of the noise on the sum of 1[norm <= threshold] - 1/2, above
        noise_multiplier / 2.

    Raises:
      ValueError: the count alone costs the whole budget or more.

    Reference: Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv:1905.03871, Thm 1.

    >>> round(gradient_noise_multiplier(1.0, 5.0), 5)
    1.00504
    """
    check_real("noise_multiplier", noise_multiplier, low_open=True)
    check_real(
        "count_noise_std",
        count_noise_std,
        low=float(noise_multiplier) / 2,
        low_open=True,
        remedy="at noise_multiplier / 2 the count alone costs the whole budget",
    )
    ratio = float(noise_multiplier) / (2 * float(count_noise_std))
    return float(noise_multiplier) / math.sqrt((1 - ratio) * (1 + ratio))


def adaclip(
    gradient_noise_multiplier: Any,
    count_noise_std: Any,
    *,
    relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE,
) -> Adaclip:
    """Returns the release of adaptive clipping: the clipped sum, and the count that moves the threshold.

    The count is the sum over units of 1[norm <= threshold] - 1/2, which one unit changes by 1/2. Both
    Gaussian releases together are one of noise multiplier (1/z^2 + 1/(4 sigma_b^2))^(-1/2), also within an
    amplifier: `poisson(adaclip(z, sigma_b), q)` (both are made on the same sample).

    Args:
      gradient_noise_multiplier: z, noise on the sum over the clipping norm of the same step; in [0, inf).
      count_noise_std: sigma_b, standard deviation of the noise on the count; in [0, inf).
      relation: which datasets count as neighbours; static.

    Raises:
      TypeError, ValueError: a number outside its range.

    Guarantee: exact, for the worst gradient. Reference: Andrew, Thakkar, McMahan, Ramaswamy 2021,
    arXiv:1905.03871, Thm 1.

    >>> round(adaclip(1.00504, 5.0).noise_multiplier, 4)
    1.0
    """
    check_real("gradient_noise_multiplier", gradient_noise_multiplier, remedy="0 means no noise")
    check_real("count_noise_std", count_noise_std, remedy="0 means no noise")
    return Adaclip(gradient_noise_multiplier, count_noise_std, check_relation(relation))
