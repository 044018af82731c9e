"""A mechanism seen in one direction: what removing, or adding, a record costs by itself."""

import dataclasses
from typing import Any

import jax
import numpy as np

from opake_jax.accounting._pairs import dominating_pairs
from opake_jax.accounting._process import Mechanism

DIRECTIONS = ("remove", "add")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GivenPair(Mechanism):
    """A mechanism of which the given pair is the only one."""

    name = "given_pair"
    pair: Any
    relation: Any = dataclasses.field(metadata={"static": True})


@dominating_pairs.register
def _(mechanism: GivenPair):
    return (mechanism.pair,)


def one_direction(mechanism, direction):
    """Returns the mechanism whose only pair is that of "remove" or "add"."""
    with jax.enable_x64(True):
        pairs = dominating_pairs(jax.tree.map(np.float64, mechanism))
        pair = jax.device_get(pairs[DIRECTIONS.index(direction)])
    return GivenPair(pair, mechanism.relation)
