"""A release of which only (epsilon, delta) is known, and the two ends: everything, nothing."""

import dataclasses
from typing import Any

import jax

from opake_jax._checks import check_real, is_traced
from opake_jax._numerics import xp
from opake_jax.accounting._discrete import Law, repeated_response
from opake_jax.accounting._evaluate import quietly
from opake_jax.accounting._pairs import DiscretePair, dominating_pairs
from opake_jax.accounting._process import Mechanism
from opake_jax.accounting._relations import check_relation
from opake_jax.types import NeighboringRelation

__all__ = ["EpsDelta", "eps_delta"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EpsDelta(Mechanism):
    """An (epsilon, delta)-DP release; build it with `eps_delta`."""

    name = "eps_delta"

    epsilon: Any
    delta: Any
    relation: NeighboringRelation = dataclasses.field(metadata={"static": True})

    def largest_loss(self) -> Any:
        """Returns epsilon, if delta is 0."""
        return xp.where(xp.asarray(self.delta) > 0, xp.inf, self.epsilon)

    def infinite_mass(self) -> Any:
        """Returns delta."""
        return self.delta

    def law(self, count: float) -> Law | None:
        """Returns the binomial law of so many randomised responses."""
        return repeated_response(float(self.epsilon), count)

    def is_valid(self) -> Any:
        """Returns: epsilon >= 0 and delta in [0, 1]."""
        delta = xp.asarray(self.delta)
        return (xp.asarray(self.epsilon) >= 0) & (delta >= 0) & (delta <= 1)

    def grouped(self, size: int) -> "EpsDelta":
        """Returns (k epsilon, delta (e^(k epsilon) - 1)/(e^epsilon - 1)) for a group of k."""
        some = self.epsilon > 0
        one = xp.where(some, self.epsilon, 1.0)
        # Upwards: a product that is off by an ulp moves e^(k epsilon) by k epsilon times as much.
        ulp = 2.0**-46 if is_traced(self.epsilon) or is_traced(self.delta) else 2.0**-52
        with quietly():  # a large group: inf, and delta 1
            slack = ulp * (8 + 4 * size * one)
            growth = xp.where(some, xp.expm1(size * one) / xp.expm1(one), size) * (1 + slack)
            delta = xp.where(self.delta == 0, 0.0, xp.minimum(self.delta * growth, 1.0))
        epsilon = self.epsilon if size == 1 else size * self.epsilon * (1 + ulp)
        return EpsDelta(epsilon, delta, self.relation)

    def renyi(self, orders: Any) -> Any:
        """Returns log(p^a (1-p)^(1-a) + (1-p)^a p^(1-a))/(a-1), p = 1/(1+e^-epsilon); inf if delta > 0."""
        log_p = -xp.logaddexp(0.0, -xp.asarray(self.epsilon, xp.float64))
        log_rest = log_p - self.epsilon
        moment = xp.logaddexp(
            orders * log_p + (1 - orders) * log_rest, orders * log_rest + (1 - orders) * log_p
        )
        return xp.where(xp.asarray(self.delta) > 0, xp.inf, moment / (orders - 1))


@dominating_pairs.register
def _(mechanism: EpsDelta) -> tuple[DiscretePair, ...]:
    """Returns randomised response behind a leak of probability delta: its own reverse."""
    epsilon = xp.asarray(mechanism.epsilon, xp.float64)
    delta = xp.asarray(mechanism.delta, xp.float64)
    rest = xp.log1p(-delta) - xp.logaddexp(0.0, epsilon)
    leak = xp.log(delta)
    never = xp.full((), -xp.inf)
    return (
        DiscretePair(
            xp.stack([leak, rest + epsilon, rest, never]),
            xp.stack([never, rest, rest + epsilon, leak]),
        ),
    )


def eps_delta(
    epsilon: Any,
    delta: Any = 0.0,
    *,
    relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE,
) -> EpsDelta:
    """Returns a release of which only (epsilon, delta)-differential privacy is known.

    Analysed as the worst such release: with probability delta it tells everything, otherwise it is randomised
    response with odds e^epsilon. Its advantage is delta + (1 - delta) tanh(epsilon/2).

    Args:
      epsilon: in [0, inf).
      delta: in [0, 1].
      relation: the neighbouring relation under which that is known; static.

    Raises:
      TypeError, ValueError: a number outside its range.

    Guarantee: every (epsilon, delta)-DP release is a post-processing of this one (Kairouz, Oh, Viswanath 2015,
    arXiv:1311.0776, Thm 3.3), so that compositions are optimal for what is known.

    >>> from opake_jax.accounting import eps_delta
    >>> eps_delta(1.0).epsilon_at(0.0)
    1.0
    """
    check_real("epsilon", epsilon)
    check_real("delta", delta, high=1.0, high_open=False)
    return EpsDelta(epsilon, delta, check_relation(relation))
