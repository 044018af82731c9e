"""The engine that works through the batch in parts of a given size."""

import dataclasses

import jax

from opake_jax.clipping._parts import in_parts
from opake_jax.clipping._problem import Problem, Rows, Sums
from opake_jax.clipping._sized import Sized

__all__ = ["Microbatched"]


@dataclasses.dataclass(frozen=True)
class Microbatched(Sized):
    """Engine that runs another one on `size` rows at a time and adds up.

    A batch that `size` does not divide is padded. The parts run in a `lax.scan`; on a CPU a loss with convolutions is
    unrolled instead, since XLA runs a convolution inside a loop 8 to 23 times slower there (jax#12868), at the price
    of a compile time that grows with the number of parts: see `Chunked`.

    Args:
      size: rows in each part, at least 1.
      engine: how each part is computed.

    Raises:
      TypeError, ValueError: `size` is not a whole number of at least 1, `engine` no engine.
    """

    def sums(self, problem: Problem, leaves: list[jax.Array], rows: Rows) -> Sums:
        """Returns the clipped sums of these rows."""
        return in_parts(self.engine, self.size, problem, leaves, rows)
