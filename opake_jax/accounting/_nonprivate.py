"""A release without any privacy."""

import dataclasses
import math
from typing import Any

import jax

from opake_jax.accounting._process import Mechanism

__all__ = ["NonPrivate", "nonprivate"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NonPrivate(Mechanism):
    """A release that tells everything; build it with `nonprivate`."""

    name = "nonprivate"
    relation = None

    def squared_mu(self) -> Any:
        """Returns inf: a Gaussian without noise."""
        return math.inf

    def infinite_mass(self) -> Any:
        """Returns 1: every output is told apart."""
        return 1.0

    def renyi(self, orders: Any) -> Any:
        """Returns inf at every order."""
        return orders * math.inf


def nonprivate() -> NonPrivate:
    """Returns a release that tells everything: epsilon inf, delta 1, beta 0, under any relation.

    >>> from opake_jax.accounting import nonprivate
    >>> nonprivate().epsilon_at(1e-5), nonprivate().advantage()
    (inf, 1.0)
    """
    return NonPrivate()
