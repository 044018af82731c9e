"""What every sampler is: pure draws of a fixed shape, a host iterator, and its own accounting."""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import jax
import numpy as np

from opake_jax import _threefry
from opake_jax._checks import check_count, check_key, require
from opake_jax.random import key_data, tagged

__all__ = [
    "MAX_CAPACITY",
    "MAX_DATASET_SIZE",
    "STATIC",
    "Sampler",
    "check_rows",
    "check_step",
    "step_words",
]

# Indices are int32.
MAX_DATASET_SIZE = 2**31
# Rows are numbered in int32 as well.
MAX_CAPACITY = 2**31 - 1
# Steps enter the key as one 32-bit word.
_MAX_STEP = 2**32 - 1
# Metadata of a field that is part of the pytree's structure: a shape, not a number.
STATIC = {"static": True}


class Sampler(abc.ABC):
    """Base of the samplers: frozen dataclasses whose numbers are pytree leaves.

    The choice of step t is a function of (key, t): there is no state, and a resumed run passes the
    step where it stopped. Validation is in each sampler's `__init__`; unflattening skips it.
    """

    dataset_size: int
    # The purpose of this sampler's random words: no two kinds of sampler share a stream.
    _tag: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_node_class(cls)

    @property
    def period(self) -> int:
        """The number of steps that one `process` covers."""
        return 1

    @abc.abstractmethod
    def process(self, mechanism: Any) -> Any:
        """Returns the accounting of `period` steps that release `mechanism`."""

    @abc.abstractmethod
    def _draw(self, words: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns indices and mask; `words` are those of the sampling key, `step` is uint32."""

    def sample(self, key: jax.Array, step: Any) -> tuple[jax.Array, jax.Array]:
        """Returns `(indices, mask)` of one step: int32 and bool, of one static shape.

        Padding has index 0 and mask False. Pure and jittable.

        Args:
          key: a typed key; the same for all steps.
          step: whole number in [0, 2^32), may be traced.
        """
        check_key("key", key)
        return _sample(self, key_data(tagged(key, self._tag)), check_step(step))

    def batches(
        self, key: jax.Array, num_steps: int, start: int = 0
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Returns an iterator over `num_steps` steps, from `start` on: what `sample` gives each.

        Args:
          key: a typed key.
          num_steps: how many steps to yield.
          start: the first step: a resumed run passes the number of steps already done, which costs
            nothing.
        """
        check_key("key", key)
        num_steps = check_count("num_steps", num_steps)
        start = check_count("start", start, maximum=_MAX_STEP - num_steps + 1)
        return self._iterate(key_data(tagged(key, self._tag)), range(start, start + num_steps))

    def _iterate(self, words: jax.Array, steps: range) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for step in steps:
            indices, mask = _sample(self, words, np.uint32(step))
            yield np.asarray(indices), np.asarray(mask)

    def tree_flatten(self) -> tuple[list[Any], tuple[Any, ...]]:
        """Returns the numbers, and the static rest."""
        numbers, shapes = _field_names(type(self))
        return [getattr(self, n) for n in numbers], tuple(getattr(self, n) for n in shapes)

    @classmethod
    def tree_unflatten(cls, static_values: tuple[Any, ...], children: Any) -> Self:
        """Returns the sampler with these fields; jax calls this on tracers, so nothing is checked."""
        numbers, shapes = _field_names(cls)
        out = object.__new__(cls)
        out._set(**dict(zip(numbers, children, strict=True)))
        out._set(**dict(zip(shapes, static_values, strict=True)))
        return out

    def _set(self, **fields: Any) -> None:
        """Sets fields of this frozen dataclass; for `__init__` and unflattening only."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)


@jax.jit
def _sample(sampler: Sampler, words: jax.Array, step: Any) -> tuple[jax.Array, jax.Array]:
    return sampler._draw(words, jax.numpy.asarray(step).astype(jax.numpy.uint32))


def check_rows(name: str, count: int) -> None:
    """Raises ValueError if arrays of so many entries could not be indexed."""
    require(
        count <= MAX_CAPACITY,
        f"{name}: {count} entries in one array are too many (at most {MAX_CAPACITY})",
    )


def check_step(step: Any) -> Any:
    """Returns a step as a uint32 number or a traced integer."""
    step = check_count("step", step, maximum=_MAX_STEP)
    return np.uint32(step) if isinstance(step, int) else step


def step_words(words: jax.Array, step: jax.Array) -> jax.Array:
    """Returns the key words of one step."""
    return _threefry.fold(words, step)


def _field_names(cls: type) -> tuple[list[str], list[str]]:
    """Returns the names of the leaves and of the static fields."""
    numbers: list[str] = []
    shapes: list[str] = []
    for field in dataclasses.fields(cls):
        (shapes if field.metadata.get("static") else numbers).append(field.name)
    return numbers, shapes
