"""Parallel Poisson subsampling: several workers draw from the same data, independently."""

import dataclasses
from typing import Any

import jax
import numpy as np

from opake_jax._checks import check_count, check_probability, is_traced
from opake_jax._numerics import xp
from opake_jax.accounting._gaussian_pairs import GaussianMixturePair
from opake_jax.accounting._inner import check_inner, check_relation_of
from opake_jax.accounting._pairs import dominating_pairs
from opake_jax.accounting._process import Mechanism
from opake_jax.accounting._renyi import divergence, mixture_excess
from opake_jax.accounting._sampled_pairs import sampled_pairs
from opake_jax.types import NeighboringRelation

__all__ = ["ParallelPoisson", "check_appearances", "parallel_poisson"]

# Each worker adds a component to the mixture, which costs time and memory, not accuracy.
_MOST_WORKERS = 128


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ParallelPoisson(Mechanism):
    """One Gaussian release on several Poisson samples; build it with `parallel_poisson`."""

    name = "parallel_poisson"

    inner: Any
    sample_rate: Any
    num_workers: int = dataclasses.field(metadata={"static": True})
    relation: NeighboringRelation = dataclasses.field(metadata={"static": True})

    def squared_mu(self) -> Any:
        """Returns 0 at rate 0, else None: no Gaussian."""
        return 0.0 if not is_traced(self.sample_rate) and self.sample_rate == 0 else None

    def is_valid(self) -> Any:
        """Returns: the sample rate is a probability and the inner mechanism is valid."""
        rate = xp.asarray(self.sample_rate)
        return (rate >= 0) & (rate <= 1) & self.inner.is_valid()

    def renyi(self, orders: Any) -> Any:
        """Returns the divergences of the mixture, the larger direction; inf where out of reach."""
        if self.relation is NeighboringRelation.REPLACE_ONE:
            return super().renyi(orders)
        rate = xp.asarray(self.sample_rate, xp.float64)
        sigma = xp.asarray(self.inner.noise_multiplier, xp.float64)
        probabilities = _appearances(rate, self.num_workers)
        excess = mixture_excess(
            xp.where(sigma > 0, sigma, 1.0),
            probabilities,
            xp.asarray(np.arange(1.0, self.num_workers + 1)),
            orders,
        )
        value = divergence(xp.where(rate > 0, excess, -xp.inf), orders)
        return xp.where((sigma > 0) | (rate == 0), value, xp.inf)

    def grouped(self, size: int) -> Mechanism:
        """Returns how often any of a group's units is drawn: Bin(num_workers * size, q) times."""
        if self.relation is NeighboringRelation.REPLACE_ONE:
            return super().grouped(size)
        check_appearances(self.num_workers * size, f"group_size={size}")
        return dataclasses.replace(self, num_workers=self.num_workers * size)


def check_appearances(most: int, asked: str) -> None:
    """Raises if a unit, or a group of them, could be drawn more often in one step than is computed."""
    if most > _MOST_WORKERS:
        raise ValueError(
            f"{asked}: in one step up to {most} units could be drawn, more than the {_MOST_WORKERS} that are "
            "computed. Take the group's units as one privacy unit, and sample that"
        )


def _appearances(rate: Any, workers: int) -> xp.Array:
    """Returns Pr[Bin(workers, rate) = k] for k = 1..workers, [workers]."""
    rate = xp.asarray(rate, xp.float64)
    k = np.arange(1.0, workers + 1)
    choose = np.cumsum(np.log(workers + 1 - k) - np.log(k))
    log_rate, log_rest = xp.log(rate), xp.log1p(-rate)
    # 0 log 0 is 0: at rate 1 every worker draws the unit.
    rest = xp.where(k < workers, (workers - k) * log_rest, 0.0)
    return xp.exp(choose + k * log_rate + rest)


@dominating_pairs.register
def _(mechanism: ParallelPoisson) -> tuple[GaussianMixturePair, ...]:
    chances = _appearances(mechanism.sample_rate, mechanism.num_workers)
    none = mechanism.num_workers * xp.log1p(-xp.asarray(mechanism.sample_rate, xp.float64))
    return sampled_pairs(mechanism.inner.noise_multiplier, chances, mechanism.relation, none)


def parallel_poisson(
    inner: Any,
    sample_rate: Any,
    num_workers: int,
    *,
    relation: NeighboringRelation | None = None,
) -> ParallelPoisson:
    """Returns one release on the union of `num_workers` independent Poisson samples of one dataset.

    A unit appears K ~ Bin(num_workers, sample_rate) times: sum_k Pr[K=k] N(k, sigma^2) against N(0, sigma^2), and the
    reverse. That is more than one sample at num_workers times the rate would cost. REPLACE_ONE: against
    sum_k Pr[K=k] N(-k, sigma^2); see `poisson` for why opposite values are the worst.

    Args:
      inner: `gaussian(...)` or `adaclip(...)`, whose noise multiplier is read: noise over the whole sum.
      sample_rate: of one worker, in [0, 1]; may be traced.
      num_workers: a whole number from 1 to 128; static.
      relation: which datasets count as neighbours; None takes the inner mechanism's.

    Raises:
      TypeError, ValueError: a number outside its range.

    Guarantee: the pair is exact. The workers' draws must be independent, and their data the same.

    >>> from opake_jax.accounting import gaussian
    >>> step = parallel_poisson(gaussian(1.0), 0.01, num_workers=4)
    >>> 8.8990 < (step * 1000).epsilon_at(1e-5) < 8.9001
    True
    """
    check_inner(inner)
    check_probability("sample_rate", sample_rate, remedy="expected batch size / dataset size")
    if is_traced(num_workers):
        raise TypeError("num_workers must be a concrete whole number: it decides shapes")
    workers = check_count("num_workers", num_workers, minimum=1, maximum=_MOST_WORKERS)
    return ParallelPoisson(inner, sample_rate, workers, check_relation_of(inner, relation))
