"""Shuffled batches: one epoch over the data in a random order. No amplification is claimed."""

import dataclasses
import math
import warnings
from typing import Any

import jax
import numpy as np

from opake_jax._checks import check_count, check_real
from opake_jax.accounting._gaussian import Gaussian
from opake_jax.accounting._inner import check_inner, check_relation_of
from opake_jax.accounting._pairs import Pair, dominating_pairs
from opake_jax.accounting._process import Mechanism
from opake_jax.types import NeighboringRelation

__all__ = ["Shuffled", "shuffled", "shuffled_lower_bound"]

_RELATIONS = (NeighboringRelation.ZERO_OUT, NeighboringRelation.REPLACE_ONE)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Shuffled(Mechanism):
    """One epoch of shuffled batches; build it with `shuffled`."""

    name = "shuffled"
    pair_is_tight = False

    inner: Any
    relation: NeighboringRelation = dataclasses.field(metadata={"static": True})

    def squared_mu(self) -> Any:
        """Returns that of one Gaussian release: each unit takes part in one batch of the epoch."""
        return Gaussian(self.inner.noise_multiplier, self.relation).squared_mu()

    def is_valid(self) -> Any:
        """Returns: the inner mechanism is valid."""
        return self.inner.is_valid()

    def renyi(self, orders: Any) -> Any:
        """Returns the Gaussian's divergences."""
        return orders * (self.squared_mu() / 2)


@dominating_pairs.register
def _(mechanism: Shuffled) -> tuple[Pair, ...]:
    return dominating_pairs(Gaussian(mechanism.inner.noise_multiplier, mechanism.relation))


def shuffled(inner: Any, *, relation: NeighboringRelation | None = None) -> Shuffled:
    """Returns one epoch over the data in a shuffled (or any fixed) order: the cost of one release.

    Each unit takes part in exactly one batch of the epoch, so that, whatever the order, what depends on it
    is one Gaussian release. Shuffling hides which one; how much that helps is not known well enough to be
    claimed, and it is less than Poisson sampling would (`shuffled_lower_bound`). `* epochs` repeats epochs.

    Args:
      inner: `gaussian(...)` or `adaclip(...)`, one step's release.
      relation: ZERO_OUT or REPLACE_ONE; None takes the inner mechanism's. Under ADD_REMOVE the batches of two
        neighbours would be cut at different places, and differ everywhere.

    Raises:
      ValueError: the relation is ADD_REMOVE.

    Guarantee: an upper bound; exact for a fixed order. Never a Poisson epsilon.

    >>> from opake_jax.accounting import gaussian
    >>> epoch = shuffled(gaussian(1.0), relation=NeighboringRelation.ZERO_OUT)
    >>> round(epoch.epsilon_at(1e-5), 4)
    4.3772
    """
    check_inner(inner)
    remedy = "shuffled batches need a public dataset size: relation=NeighboringRelation.ZERO_OUT"
    return Shuffled(inner, check_relation_of(inner, relation, allowed=_RELATIONS, remedy=remedy))


def shuffled_lower_bound(noise_multiplier: Any, *, num_batches: int, delta: float) -> float:
    """Returns an epsilon that one shuffled epoch does *not* keep at delta: no privacy statement.

    It warns each time. All records but one contribute -1, that one 1 (or, zeroed out, 0); the test looks at
    the largest of the batches' sums. With tau = num_batches,

        delta(epsilon) >= max over C of  1 - Phi((C-2)/sigma) Phi(C/sigma)^(tau-1) - e^epsilon (1 - Phi((C-1)/sigma) Phi(C/sigma)^(tau-1)).

    Where it exceeds what Poisson sampling at rate 1/num_batches costs, a Poisson epsilon reported for a shuffled
    loader is wrong.

    Args:
      noise_multiplier: sigma, in (0, inf).
      num_batches: of the epoch, at least 1.
      delta: in (0, 1).

    Reference: Chua et al. 2024, arXiv:2403.17673, Sec. 4 (zero-out).
    """
    check_real("noise_multiplier", noise_multiplier, low_open=True)
    check_real("delta", delta, low_open=True, high=1.0)
    tau = check_count("num_batches", num_batches, minimum=1)
    warnings.warn(
        "shuffled_lower_bound is a lower bound on epsilon: it shows what shuffling costs at least, and is no "
        "privacy guarantee",
        stacklevel=2,
    )
    sigma = float(noise_multiplier)
    best = 0.0
    for threshold in np.linspace(0.0, 2 + 12 * sigma, 2001):
        p, q = (_largest_exceeds(threshold, shift, sigma, tau) for shift in (2.0, 1.0))
        if p > delta and q > 0:
            best = max(best, math.log((p - delta) / q))
    return best * (1 - 1e-9)


def _largest_exceeds(threshold: float, shift: float, sigma: float, tau: int) -> float:
    """Returns Pr[max of tau normals, one shifted, > threshold]: no cancellation in the tail."""
    tails = [0.5 * math.erfc((threshold - s) / (sigma * math.sqrt(2))) for s in (shift, 0.0)]
    if max(tails) >= 1:
        return 1.0
    return -math.expm1(math.log1p(-tails[0]) + (tau - 1) * math.log1p(-tails[1]))
