"""What is being composed?

A process is an immutable list of (mechanism, count). `step * 1000` repeats, `a | b` composes, in any
order: composition adds privacy losses, so that only the counts matter. Numbers (noise multipliers,
sample rates, counts) are pytree leaves, so that a process passes through jit, vmap and grad; relations
are static.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax._checks import check_count, is_traced
from opake_jax.accounting._evaluate import any_traced
from opake_jax.accounting._queries import Queries
from opake_jax.types import NeighboringRelation

__all__ = ["Composition", "Mechanism", "Process", "compose", "identity", "repeat"]


class Process(Queries):
    """Something that costs privacy: a mechanism or a composition of mechanisms.

    Attributes:
      parts: the mechanisms and how often each is run (a count is a float: it may be traced).
      relation: which datasets count as neighbours; None if the statement holds under every relation
        (`identity()`, `nonprivate()`).
    """

    parts: Any
    relation: Any

    def __mul__(self, count: Any) -> "Process":
        """Returns this process run `count` times; a whole number, 0 gives the identity."""
        count = check_count("count", count)
        if not is_traced(count):
            if count == 0:
                return identity()
            count = float(count)
        return _composition([(mechanism, _times(times, count)) for mechanism, times in self.parts])

    __rmul__ = __mul__

    def __or__(self, other: Any) -> "Process":
        """Returns both processes run on the same data.

        Raises:
          ValueError: the two are stated under different neighbouring relations.
        """
        if not isinstance(other, Process):
            return NotImplemented
        return compose(self, other)


class Mechanism(Process):
    """One release. Subclasses are frozen registered dataclasses, one to a file.

    A new mechanism registers its dominating pair (`_pairs.dominating_pairs.register`), names its
    factory, and overrides what it knows more about. The factory is the function of the same module
    that is called `name`; its arguments are the dataclass's fields, so that a ledger can be written
    out and read back by names and numbers.
    """

    name: ClassVar[str]
    #: Whether it is one Gaussian release with a `noise_multiplier` that amplifiers read.
    is_gaussian_release: ClassVar[bool] = False
    #: Whether the dominating pair is exact for the mechanism, or only an upper bound.
    pair_is_tight: ClassVar[bool] = True

    @property
    def parts(self) -> tuple[tuple["Mechanism", float], ...]:
        """Returns this mechanism, once."""
        return ((self, 1.0),)

    def squared_mu(self) -> Any:
        """Returns mu^2 if one run is exactly mu-Gaussian DP (0: no cost, inf: no privacy), or None."""
        return None

    def largest_loss(self) -> Any:
        """Returns the supremum of the privacy loss of one run: finite for pure DP."""
        return np.inf

    def infinite_mass(self) -> Any:
        """Returns the probability of an output that only one of two neighbours can give."""
        return 0.0

    def law(self, count: float) -> Any:
        """Returns the exact law of the loss of `count` runs, if it has few values (`_discrete`), or None."""
        return None

    def is_valid(self) -> Any:
        """Returns a boolean: False if traced numbers lie outside the range of the factory."""
        return True

    def renyi(self, orders: Any) -> Any:
        """Returns an upper bound on the Renyi divergence of one run, both ways, at each order."""
        raise NotImplementedError(
            f"{self.name} has no Renyi analysis here: use accountant=PLD(), the default"
        )

    def rough_renyi(self, orders: Any) -> Any:
        """Returns about `renyi(orders)`, perhaps sooner: where to look for the best order."""
        return self.renyi(orders)

    def grouped(self, size: int) -> "Mechanism":
        """Returns the mechanism as a group of `size` units sees it."""
        raise NotImplementedError(
            f"{self.name} has no group analysis here: gaussian and poisson have one"
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Composition(Process):
    """Mechanisms run in any order, each `counts[i]` times."""

    mechanisms: tuple[Mechanism, ...]
    counts: tuple[Any, ...]

    @property
    def parts(self) -> tuple[tuple[Mechanism, Any], ...]:
        """Returns (mechanism, count) pairs."""
        return tuple(zip(self.mechanisms, self.counts, strict=True))

    @property
    def relation(self) -> NeighboringRelation | None:
        """Returns the relation that all parts share; None if every relation will do."""
        return next((m.relation for m in self.mechanisms if m.relation is not None), None)


def identity() -> Process:
    """Returns the process that does nothing: epsilon 0 under any relation.

    >>> (identity() | identity()).epsilon_at(1e-5)
    0.0
    """
    return Composition((), ())


def repeat(process: Process, count: Any) -> Process:
    """Returns `process` run `count` times: the same as `process * count`."""
    return process * count


def compose(*processes: Process) -> Process:
    """Returns all processes run on the same data: the same as joining them by `|`.

    Raises:
      ValueError: two of them are stated under different neighbouring relations.
    """
    for process in processes:
        if not isinstance(process, Process):
            raise TypeError(f"compose takes processes, one by one, got {process!r}")
    relations = {p.relation for p in processes if p.relation is not None}
    if len(relations) > 1:
        names = " and ".join(sorted(relation.name for relation in relations))
        raise ValueError(
            f"cannot compose under different neighbouring relations: {names}. "
            "Build all with the same relation="
        )
    return _composition([part for process in processes for part in process.parts])


def _composition(parts: list[tuple[Mechanism, Any]]) -> Process:
    """Returns the composition of the parts, equal mechanisms merged."""
    merged: dict[Any, tuple[Mechanism, Any]] = {}
    for mechanism, count in parts:
        key = _key(mechanism)
        first, times = merged.get(key, (mechanism, 0.0))
        merged[key] = (first, _plus(times, count))
    return Composition(tuple(m for m, _ in merged.values()), tuple(c for _, c in merged.values()))


def _times(count: Any, more: Any) -> Any:
    """Returns the product of two counts; a traced one is not below it, and NaN unless both are whole."""
    if not any_traced((count, more)):
        return count * more
    count, more = _in_program(count), _in_program(more)
    whole = (count >= 0) & (more >= 0) & (jnp.floor(count) == count) & (jnp.floor(more) == more)
    return jnp.where(whole, _upwards(count * more), jnp.nan)


def _plus(count: Any, more: Any) -> Any:
    """Returns the sum of two counts; a traced one is not below it."""
    if not any_traced((count, more)):
        return count + more
    return _upwards(_in_program(count) + _in_program(more))


def _in_program(count: Any) -> jax.Array:
    """Returns a count in the program's float, not below it."""
    dtype = jnp.result_type(float)
    value = jnp.asarray(count)
    return value if value.dtype == dtype and is_traced(count) else _upwards(value.astype(dtype))


def _upwards(count: jax.Array) -> jax.Array:
    """Returns the next float where whole numbers were rounded: above 2^24 in float32."""
    still = jax.lax.stop_gradient(count)
    beyond = jnp.nextafter(still, jnp.inf) - still
    return count + jnp.where(count >= 1 / jnp.finfo(count.dtype).epsneg, beyond, 0)


def _key(mechanism: Mechanism) -> Any:
    """Returns what equal mechanisms share: class, structure and every number (a tracer is itself)."""
    leaves, tree = jax.tree.flatten(mechanism)
    return tree, tuple(
        id(leaf) if is_traced(leaf) else (np.shape(leaf), np.asarray(leaf).tobytes())
        for leaf in leaves
    )
