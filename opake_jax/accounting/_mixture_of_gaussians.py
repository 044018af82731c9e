"""A Gaussian release whose sensitivity is random: group privacy, users with many records."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from opake_jax._checks import check_probability, check_real, is_traced, require
from opake_jax._numerics import xp
from opake_jax.accounting._gaussian_pairs import GaussianMixturePair
from opake_jax.accounting._pairs import dominating_pairs
from opake_jax.accounting._process import Mechanism
from opake_jax.accounting._relations import check_relation
from opake_jax.accounting._renyi import divergence, mixture_excess
from opake_jax.types import NeighboringRelation

__all__ = ["MixtureOfGaussians", "mixture_of_gaussians"]

_ROUNDING = 1e-9  # that probabilities in decimals may miss a sum of 1 by


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MixtureOfGaussians(Mechanism):
    """One Gaussian release of random sensitivity; build it with `mixture_of_gaussians`."""

    name = "mixture_of_gaussians"

    noise_multiplier: Any
    sensitivities: tuple[Any, ...]
    probabilities: tuple[Any, ...]
    relation: NeighboringRelation = dataclasses.field(metadata={"static": True})

    def is_valid(self) -> Any:
        """Returns: every number is in the factory's range."""
        shifts, chances = xp.stack(self.sensitivities), xp.stack(self.probabilities)
        right = xp.all(shifts >= 0) & xp.all(chances >= 0) & (xp.sum(chances) <= 1 + _ROUNDING)
        return (self.noise_multiplier >= 0) & right

    def renyi(self, orders: Any) -> Any:
        """Returns the divergences of the mixture, the larger direction; inf where out of reach."""
        sigma = xp.asarray(self.noise_multiplier, xp.float64)
        chances, shifts = _arrays(self.probabilities, self.sensitivities)
        excess = mixture_excess(xp.where(sigma > 0, sigma, 1.0), chances, shifts, orders)
        return xp.where(sigma > 0, divergence(excess, orders), xp.inf)


def _arrays(*tuples: tuple[Any, ...]) -> list[xp.Array]:
    return [xp.stack([xp.asarray(v, xp.float64) for v in values]) for values in tuples]


@dominating_pairs.register
def _(mechanism: MixtureOfGaussians) -> tuple[GaussianMixturePair, ...]:
    weights, shifts = _arrays(mechanism.probabilities, mechanism.sensitivities)
    none = xp.zeros(0, xp.float64)
    sigma = xp.asarray(mechanism.noise_multiplier, xp.float64)
    pair = GaussianMixturePair(weights, shifts, none, none, sigma)
    return pair, pair.reversed()


def mixture_of_gaussians(
    noise_multiplier: Any,
    sensitivities: Sequence[Any],
    probabilities: Sequence[Any],
    *,
    relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE,
) -> MixtureOfGaussians:
    """Returns a Gaussian release that one unit moves by `sensitivities[k]` with `probabilities[k]`.

    sum_k p_k N(s_k, sigma^2) against N(0, sigma^2), and its reverse: a user with several records, each sampled by
    itself.

    Args:
      noise_multiplier: in [0, inf); standard deviation of the noise.
      sensitivities: L2 norms by which the unit moves the sum, each at least 0.
      probabilities: of each; their sum is at most 1, what is missing to 1 is the probability of no move.
      relation: ADD_REMOVE or ZERO_OUT; static.

    Raises:
      TypeError, ValueError: a number outside its range, or lengths that differ.

    Guarantee: exact for sums of aligned vectors (Ganesh 2024, arXiv:2401.10294, Thm 3.1).

    >>> from opake_jax.accounting import mixture_of_gaussians
    >>> 1.8282 < (mixture_of_gaussians(1.0, [1.0], [0.01]) * 1000).epsilon_at(1e-5) < 1.8285
    True
    """
    check_real("noise_multiplier", noise_multiplier, remedy="0 means no noise")
    for name, values in (("sensitivities", sensitivities), ("probabilities", probabilities)):
        if isinstance(values, np.ndarray | jax.Array):
            flat = values.ndim == 1
        else:
            flat = isinstance(values, Sequence) and not isinstance(values, str)
            flat = flat and all(np.ndim(value) == 0 for value in values)
        if not flat:
            raise TypeError(f"{name} must be a sequence of numbers, got {values!r}")
    shifts, chances = tuple(sensitivities), tuple(probabilities)
    require(
        len(shifts) == len(chances) > 0,
        f"sensitivities and probabilities must be of one length, got {len(shifts)}, {len(chances)}",
    )
    for shift, chance in zip(shifts, chances, strict=True):
        check_real("sensitivities", shift)
        check_probability("probabilities", chance)
    if not any(is_traced(chance) for chance in chances):
        total = float(np.sum(np.asarray(chances, np.float64)))
        require(total <= 1 + _ROUNDING, f"probabilities must sum to at most 1, got {total}")
    allowed = (NeighboringRelation.ADD_REMOVE, NeighboringRelation.ZERO_OUT)
    return MixtureOfGaussians(
        noise_multiplier, shifts, chances, check_relation(relation, allowed=allowed)
    )
