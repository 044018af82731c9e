"""What a clipped gradient may be told beside its loss and its norm."""

import dataclasses
from collections.abc import Callable
from typing import Any

from opake_jax._checks import check_count, check_real
from opake_jax.clipping._auto import Auto
from opake_jax.clipping._chunked import Chunked
from opake_jax.clipping._guards import takes_key
from opake_jax.clipping._problem import Engine, check_engine
from opake_jax.clipping._projection import Projection
from opake_jax.clipping._rules import PerGroup, Rule
from opake_jax.types import PyTree

__all__ = ["Options", "Spec"]


@dataclasses.dataclass(frozen=True, eq=False)
class Options:
    """The keyword arguments that all factories share; `clipped_grad` documents them."""

    engine: Engine | Chunked = dataclasses.field(default_factory=Auto)
    has_aux: bool = False
    denominator: Any = 1.0
    trainable: PyTree | None = None
    needs_key: bool | None = None
    unit_axis: int | None = None
    pre_clipping: Callable[[PyTree], PyTree] | None = None
    projection: Projection | None = None
    second_moment: Any = None

    def check(self) -> None:
        """Raises TypeError or ValueError unless the options make sense."""
        if not isinstance(self.engine, Chunked):
            check_engine(self.engine)
        check_real("denominator", self.denominator, low_open=True)
        if self.unit_axis is not None:
            check_count("unit_axis", self.unit_axis, minimum=1)
        if self.pre_clipping is not None and not callable(self.pre_clipping):
            raise TypeError(f"pre_clipping must be callable, got {self.pre_clipping!r}")
        if self.projection is not None:
            if not isinstance(self.projection, Projection):
                raise TypeError(
                    f"projection must come from clipping.projection, got {self.projection!r}"
                )
            if self.pre_clipping is not None:
                raise ValueError("pre_clipping and projection: choose one")
        if self.second_moment is not None:
            check_real("second_moment", self.second_moment, low_open=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Spec:
    """A loss, a rule and the options: all of a clipped gradient but the numbers that may be traced."""

    loss_fn: Callable[..., Any]
    rule: Rule
    per_group: PerGroup | None
    options: Options

    @property
    def needs_key(self) -> bool:
        """Whether the loss takes a key."""
        told = self.options.needs_key
        return takes_key(self.loss_fn) if told is None else told
