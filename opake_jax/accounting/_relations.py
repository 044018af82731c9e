"""Is this a neighbouring relation that the analysis is true for?"""

from typing import Any

from opake_jax.types import NeighboringRelation

__all__ = ["check_relation"]


def check_relation(
    relation: Any,
    *,
    allowed: tuple[NeighboringRelation, ...] = tuple(NeighboringRelation),
    remedy: str = "",
) -> NeighboringRelation:
    """Returns `relation`, a member of NeighboringRelation that is among the allowed ones."""
    names = ", ".join(r.name for r in allowed)
    tail = f": {remedy}" if remedy else ""
    if not isinstance(relation, NeighboringRelation):
        raise TypeError(f"relation must be a NeighboringRelation ({names}), got {relation!r}{tail}")
    if relation not in allowed:
        raise ValueError(f"relation must be one of {names}, got {relation.name}{tail}")
    return relation
