"""Random allocation: every unit takes part in exactly k of t steps, drawn for it alone."""

import dataclasses
from typing import Any

import jax

from opake_jax._checks import check_count, is_traced, require
from opake_jax.accounting._allocation import AllocationPair
from opake_jax.accounting._gaussian import Gaussian
from opake_jax.accounting._inner import check_inner, check_relation_of
from opake_jax.accounting._pairs import dominating_pairs
from opake_jax.accounting._process import Mechanism, Process
from opake_jax.types import NeighboringRelation

__all__ = ["OneOutOfT", "k_out_of_t", "one_out_of_t"]

_RELATIONS = (NeighboringRelation.ADD_REMOVE, NeighboringRelation.ZERO_OUT)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OneOutOfT(Mechanism):
    """All `t` steps in which a unit takes part once; build it with `k_out_of_t`."""

    name = "one_out_of_t"

    inner: Any
    t: int = dataclasses.field(metadata={"static": True})
    relation: NeighboringRelation = dataclasses.field(metadata={"static": True})
    pair_is_tight: bool = dataclasses.field(default=True, metadata={"static": True})  # type: ignore[misc]

    def squared_mu(self) -> Any:
        """Returns the Gaussian's for a single step, else None: no Gaussian."""
        if self.t > 1:
            return None
        return Gaussian(self.inner.noise_multiplier, self.relation).squared_mu()

    def is_valid(self) -> Any:
        """Returns: the inner mechanism is valid."""
        return self.inner.is_valid()


@dominating_pairs.register
def _(mechanism: OneOutOfT) -> tuple[AllocationPair, ...]:
    sigma, t = mechanism.inner.noise_multiplier, mechanism.t
    return AllocationPair(sigma, t, False), AllocationPair(sigma, t, True)


def one_out_of_t(
    inner: Any,
    t: int,
    *,
    relation: NeighboringRelation | None = None,
    pair_is_tight: bool = True,
) -> OneOutOfT:
    """Returns all `t` steps, in a random one of which each unit takes part (`k_out_of_t` with k = 1).

    Args:
      inner: `gaussian(...)` or `adaclip(...)`, one step's release.
      t: number of steps, at least 1; static.
      relation: ADD_REMOVE or ZERO_OUT; None takes the inner mechanism's.
      pair_is_tight: False if this stands for a part of something that it only bounds.
    """
    check_inner(inner)
    if is_traced(t):
        raise TypeError("t must be a concrete whole number: it decides shapes")
    relation = check_relation_of(
        inner, relation, allowed=_RELATIONS, remedy="random allocation has no analysis for it here"
    )
    return OneOutOfT(inner, check_count("t", t, minimum=1), relation, bool(pair_is_tight))


def k_out_of_t(
    inner: Any, *, k: int, t: int, relation: NeighboringRelation | None = None
) -> Process:
    """Returns a whole horizon of `t` steps, in a random `k` of which each unit takes part.

    Balls in bins for k = 1: an epoch in which each unit is put into a batch by itself (batches vary in size).
    The mean of N(e_i, sigma^2 I) over the steps i against N(0, sigma^2 I), and the reverse; their laws are bracketed by
    mean-preserving spreads and contractions (`_allocation`).

    For k > 1 the k-fold composition of one out of floor(t/k): a uniform k-subset arises by dividing the steps
    into k blocks at random and choosing one of each; given the blocks, that is such a composition, and
    divergences are convex.

    `* m` repeats whole horizons (epochs with fresh draws), not steps.

    | k, t | answer |
    |---|---|
    | 1, 1 | the inner mechanism's |

    A known noise multiplier below 0.05 or above 1,000 is answered by the plain Gaussian's upper bound (and 0 below).

    Args:
      inner: `gaussian(...)` or `adaclip(...)`, one step's release; its noise multiplier may be traced.
      k: participations of each unit, from 1 to t; static.
      t: steps of the horizon; static.
      relation: ADD_REMOVE or ZERO_OUT; None takes the inner mechanism's.

    Raises:
      TypeError, ValueError: a number outside its range.

    Guarantee: exact for k = 1, an upper bound for k > 1. Each unit's steps must be drawn independently of the
    others'.

    Reference: Chua et al. 2024, arXiv:2412.16802; Feldman and Shenfeld 2025, arXiv:2502.08202.

    >>> from opake_jax.accounting import gaussian
    >>> epoch = k_out_of_t(gaussian(1.0), k=1, t=100)
    >>> 0.6189 < epoch.epsilon_at(1e-5) < 0.6264
    True
    """
    check_inner(inner)
    if is_traced(k) or is_traced(t):
        raise TypeError("k and t must be concrete whole numbers: they decide shapes")
    t = check_count("t", t, minimum=1)
    k = check_count("k", k, minimum=1)
    require(k <= t, f"k must be at most t = {t}, got {k}")
    return one_out_of_t(inner, t // k, relation=relation, pair_is_tight=k == 1) * k
