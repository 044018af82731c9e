"""How is the norm of one leaf computed?

The gradient of a leaf is sum_k a_k g_k^T over K positions, an M x N matrix (S of them), for each of B examples. Its norm is
sum_kl <a_k, a_l> <g_k, g_l> (Gram), or that of the matrix, computed. Which is cheaper depends on the shapes and on the machine.
"""

import dataclasses
import enum

import jax

from opake_jax.clipping._ghost._forms import Factored

__all__ = ["Machine", "Way", "choose", "machine", "sizes"]


class Way(enum.Enum):
    """How one leaf's norm is computed, and what the weighted sum is made of."""

    RANK_ONE = "rank one: |a|^2 |g|^2"
    GRAM = "Gram matrices of activations and cotangents"
    KEEP = "computed and kept"
    DROP = "computed for the norm alone"
    WHOLE = "whole"


@dataclasses.dataclass(frozen=True)
class Machine:
    """Price of an element of a computed gradient, in multiply-adds: written once and read twice.

    Attributes:
      cached: while all examples' gradients of the leaf fit in `cache` bytes.
      streamed: beyond.
      cache: bytes.
    """

    cached: float
    streamed: float
    cache: int


# CPU: fitted to 30 shapes on one thread (K 1 to 256, sides 64 to 1024): geometric mean regret 1.003. Others: 12 F / W for F multiply-adds
# and W bytes a second, from data sheets (A100: 9.7e12 and 2.0e12; TPU v4 in full float32: 2.3e13 and 1.2e12); not measured.
_MACHINES = {
    "cpu": Machine(5.0, 60.0, 16 * 2**20),
    "gpu": Machine(60.0, 60.0, 0),
    "tpu": Machine(230.0, 230.0, 0),
}
# An entry of a Gram matrix is written, read and multiplied twice and summed: as dear as 6 multiply-adds, from the same fit.
_GRAM_ENTRY = 6.0
# A gradient that is computed but not kept is written and read once, and computed again in the sum.
_DROP_SHARE = 0.67


def machine() -> Machine:
    """Returns the prices of the backend that programs are traced for."""
    return _MACHINES.get(jax.default_backend(), _MACHINES["gpu"])


def sizes(factored: Factored) -> tuple[int, int, int, int, int]:
    """Returns (S, K, R, M, N): R counts scattered rows."""
    stacked, m, n = factored.layout
    k = 0 if factored.left is None else factored.left.array.shape[1]
    r = 0 if factored.rows is None else factored.rows.array.shape[0]
    return stacked, k, r, m, n


def choose(factored: Factored, batch: int, prices: Machine, room: float) -> Way:
    """Returns the cheapest way for a batch of this size; a gradient of more than `room` bytes is not kept."""
    s, k, r, m, n = sizes(factored)
    if k == 1 and r == 0 and factored.constant is None:
        return Way.RANK_ONE
    gram = s * (k * k * (m + n) + _GRAM_ENTRY * (k + r) ** 2) + r * (r + k) * n
    size = 4 * batch * s * m * n
    element = s * m * n * (prices.cached if size <= prices.cache else prices.streamed)
    if size <= room:
        return Way.GRAM if gram < element else Way.KEEP
    return Way.GRAM if gram < _DROP_SHARE * element + s * k * m * n else Way.DROP
