"""Poisson subsampling: every unit takes part in a step with probability q, independently."""

import dataclasses
from typing import Any

import jax

from opake_jax._checks import check_probability, is_traced, require
from opake_jax._numerics import xp
from opake_jax.accounting._gaussian import Gaussian
from opake_jax.accounting._gaussian_pairs import GaussianMixturePair
from opake_jax.accounting._inner import check_inner, check_relation_of
from opake_jax.accounting._pairs import dominating_pairs
from opake_jax.accounting._parallel_poisson import ParallelPoisson, check_appearances
from opake_jax.accounting._process import Mechanism
from opake_jax.accounting._renyi import divergence, sampled_excess
from opake_jax.accounting._sampled_pairs import sampled_pairs
from opake_jax.accounting._truncated_poisson import truncated_poisson
from opake_jax.types import NeighboringRelation

__all__ = ["Poisson", "poisson"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Poisson(Mechanism):
    """One Gaussian release on a Poisson sample; build it with `poisson`."""

    name = "poisson"

    inner: Any
    sample_rate: Any
    relation: NeighboringRelation = dataclasses.field(metadata={"static": True})

    def squared_mu(self) -> Any:
        """Returns 0 at rate 0, the Gaussian's at rate 1; otherwise this is no Gaussian: None."""
        if is_traced(self.sample_rate) or self.sample_rate not in (0, 1):
            return None
        whole = Gaussian(self.inner.noise_multiplier, self.relation)
        return whole.squared_mu() if self.sample_rate == 1 else 0.0

    def is_valid(self) -> Any:
        """Returns: the sample rate is a probability and the inner mechanism is valid."""
        rate = xp.asarray(self.sample_rate)
        return (rate >= 0) & (rate <= 1) & self.inner.is_valid()

    def renyi(self, orders: Any) -> Any:
        """Returns the exact divergences (`rdp.poisson_gaussian`); of the replace-one pair likewise."""
        return self._renyi(orders, rough=False)

    def rough_renyi(self, orders: Any) -> Any:
        """Returns about the same from a quarter of the nodes."""
        return self._renyi(orders, rough=True)

    def _renyi(self, orders: Any, rough: bool) -> Any:
        excess = sampled_excess(
            self.inner.noise_multiplier, self.sample_rate, orders, self.relation, rough
        )
        return divergence(excess, orders)

    def grouped(self, size: int) -> Mechanism:
        """Returns how often any of a group's units is drawn: Bin(size, q) times."""
        if self.relation is NeighboringRelation.REPLACE_ONE:
            return super().grouped(size)
        check_appearances(size, f"group_size={size}")
        return ParallelPoisson(self.inner, self.sample_rate, size, self.relation)


@dominating_pairs.register
def _(mechanism: Poisson) -> tuple[GaussianMixturePair, ...]:
    return sampled_pairs(
        mechanism.inner.noise_multiplier, [mechanism.sample_rate], mechanism.relation
    )


def poisson(
    inner: Any,
    sample_rate: Any,
    *,
    truncated_batch_size: Any = None,
    dataset_size: Any = None,
    relation: NeighboringRelation | None = None,
) -> Mechanism:
    """Returns one release on a Poisson sample: each unit takes part with probability `sample_rate`.

    ADD_REMOVE and ZERO_OUT: (1-q) N(0, sigma^2) + q N(1, sigma^2) against N(0, sigma^2), each direction composed by
    itself. REPLACE_ONE: (1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1). With x and x' the two values of
    the unit, hockey-stick divergences are E h(X - a Y), h convex, X and Y increasing functions of two
    normals whose correlation is the cosine of x and x'; the mixed derivative is <= 0, so that by
    Slepian's inequality opposite values are the worst.

    | sample_rate | answer |
    |---|---|
    | 0 | epsilon 0 |
    | 1 | the inner mechanism's |

    Args:
      inner: `gaussian(...)` or `adaclip(...)`, whose noise multiplier is read.
      sample_rate: in [0, 1]; may be traced. Derivatives hold inside (0, 1).
      truncated_batch_size: the cap: of more units than that, a uniformly random subset of this size
        is kept. Needs `dataset_size`. See `truncated_poisson` for what it costs.
      dataset_size: number of units, with `truncated_batch_size` only.
      relation: which datasets count as neighbours; None takes the inner mechanism's.

    Raises:
      TypeError, ValueError: as above; or one of the truncation's two numbers is missing.

    Guarantee: the pair is exact (Zhu, Dong, Wang 2022, arXiv:2106.08567, Thm 11; Mironov, Talwar, Zhang
    2019, arXiv:1908.10530). It holds for Poisson sampling only: shuffled or fixed batches have their own.

    >>> from opake_jax.accounting import gaussian, poisson
    >>> step = poisson(gaussian(1.0), 0.01)
    >>> 1.82823 < (step * 1000).epsilon_at(1e-5) < 1.8285
    True
    """
    check_inner(inner)
    check_probability("sample_rate", sample_rate, remedy="expected batch size / dataset size")
    relation = check_relation_of(inner, relation)
    require(
        (truncated_batch_size is None) == (dataset_size is None),
        "truncated_batch_size and dataset_size go together: the cost of a cap depends on both; got "
        f"truncated_batch_size={truncated_batch_size!r}, dataset_size={dataset_size!r}",
    )
    if truncated_batch_size is None:
        return Poisson(inner, sample_rate, relation)
    return truncated_poisson(
        inner,
        sample_rate,
        truncated_batch_size=truncated_batch_size,
        dataset_size=dataset_size,
        relation=relation,
    )
