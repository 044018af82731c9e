"""What the engines that work through a batch in parts of a given size share."""

import dataclasses

from opake_jax._checks import check_count
from opake_jax.clipping._auto import Auto
from opake_jax.clipping._problem import Engine, check_engine

__all__ = ["Sized"]


@dataclasses.dataclass(frozen=True)
class Sized:
    """The rows in a part, and the engine that computes each."""

    size: int
    engine: Engine = dataclasses.field(default_factory=Auto)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", check_count("size", self.size, minimum=1))
        check_engine(self.engine)
