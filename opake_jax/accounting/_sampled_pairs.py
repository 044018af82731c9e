"""Dominating pairs of a Gaussian release in which one unit appears K times, K random."""

from typing import Any

import numpy as np

from opake_jax._numerics import xp
from opake_jax.accounting._gaussian_pairs import GaussianMixturePair
from opake_jax.types import NeighboringRelation

__all__ = ["sampled_pairs"]


def sampled_pairs(
    noise_multiplier: Any,
    probabilities: Any,
    relation: NeighboringRelation,
    log_none: Any = None,
) -> tuple[GaussianMixturePair, ...]:
    """Returns the pairs of one step in which the unit appears k times with `probabilities[k-1]`.

    ADD_REMOVE and ZERO_OUT: P = sum_k p_k N(k, sigma^2) against N(0, sigma^2), and its reverse. REPLACE_ONE:
    against sum_k p_k N(-k, sigma^2): that pair is its own reverse.

    Args:
      noise_multiplier: sigma, a float64 scalar.
      probabilities: [K], of 1, 2, ... appearances; what is missing to 1 is the probability of none.
      relation: which datasets count as neighbours.
      log_none: log of the probability of no appearance, where it is too small to be known by subtraction.
    """
    weights = xp.asarray(probabilities, xp.float64)
    means = xp.asarray(np.arange(1.0, weights.shape[0] + 1))
    sigma = xp.asarray(noise_multiplier, xp.float64)
    if relation is NeighboringRelation.REPLACE_ONE:
        both = None if log_none is None else xp.stack([log_none, log_none])
        return (GaussianMixturePair(weights, means, weights, -means, sigma, log_rest=both),)
    none = xp.zeros(0, xp.float64)
    rest = None if log_none is None else xp.stack([log_none, xp.zeros_like(log_none)])
    pair = GaussianMixturePair(weights, means, none, none, sigma, log_rest=rest)
    return pair, pair.reversed()
