"""A mechanism seen in one direction: what removing, or adding, a record costs by itself."""

import dataclasses

import jax

from opake_jax.accounting._pairs import dominating_pairs
from opake_jax.accounting._process import Mechanism

DIRECTIONS = ("remove", "add")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OneDirection(Mechanism):
    """A mechanism of which one dataset of each neighbouring pair, always the same, is the true one."""

    name = "one_direction"
    inner: Mechanism
    direction: str = dataclasses.field(metadata={"static": True})

    @property
    def relation(self):
        return self.inner.relation


@dominating_pairs.register
def _(mechanism: OneDirection):
    return (dominating_pairs(mechanism.inner)[DIRECTIONS.index(mechanism.direction)],)
