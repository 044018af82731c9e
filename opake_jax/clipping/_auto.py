"""The engine that picks the cheapest way."""

import dataclasses

import jax

from opake_jax.clipping._ghost._engine import Ghost
from opake_jax.clipping._problem import Problem, Rows, Sums

__all__ = ["Auto"]


@dataclasses.dataclass(frozen=True)
class Auto:
    """Engine that picks the cheapest of the others for this loss, batch and backend, while tracing.

    Args:
      memory_limit: bytes of temporary memory to aim at; None: no limit.
    """

    memory_limit: int | None = None

    def sums(self, problem: Problem, leaves: list[jax.Array], rows: Rows) -> Sums:
        """Returns the clipped sums of these rows."""
        return Ghost(self.memory_limit).sums(problem, leaves, rows)
