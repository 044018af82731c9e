"""What may an amplifier amplify? A Gaussian release, whose noise multiplier it reads."""

from typing import Any

from opake_jax.accounting._process import Mechanism
from opake_jax.accounting._relations import check_relation
from opake_jax.types import NeighboringRelation

__all__ = ["check_inner", "check_relation_of"]


def check_inner(inner: Any) -> Any:
    """Returns `inner`, a mechanism that is one Gaussian release: it has a noise multiplier."""
    if not (isinstance(inner, Mechanism) and inner.is_gaussian_release):
        raise TypeError(
            "inner must be a Gaussian release, gaussian(...) or adaclip(...), "
            f"got {type(inner).__name__}: amplify one step, then repeat it (poisson(...) * steps)"
        )
    return inner


def check_relation_of(
    inner: Mechanism, relation: NeighboringRelation | None, **limits: Any
) -> NeighboringRelation:
    """Returns the relation of an amplifier: the given one, or its inner mechanism's."""
    return check_relation(inner.relation if relation is None else relation, **limits)
