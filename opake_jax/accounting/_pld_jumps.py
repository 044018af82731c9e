"""What if a few steps decide? Rare large losses, told apart by the size of the largest.

Where a sample rate is small the loss of one step is tiny but for rare jumps, larger by orders of magnitude. No one
window resolves both. For edges c_0 < c_1 < ... < c_K, above all losses, let B_k be the part of a step's law with
losses up to c_k, and J_k the part in (c_k, c_(k+1)]. By the interval in which the largest of T losses lies, and how
many lie there,

    (B_0 + J_0 + J_1 + ...)^T = B_0^T + sum over k, m >= 1 of C(T, m) J_k^m B_k^(T-m)   (powers by convolution),

so that delta is the sum of the deltas of these measures, each of which the Fourier engine brackets in a window of its own
size. It is an identity of the atoms: both rows stay bounds. More than m jumps above c_k have probability at most
C(T, m+1) p^(m+1), p their mass in one step: what is left out is added above by that, and nothing below.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from opake_jax._numerics import logsumexp
from opake_jax.accounting._pairs import ULP
from opake_jax.accounting._pld_bounds import answer, at_most
from opake_jax.accounting._pld_fourier import law_of, log_infinite_delta
from opake_jax.accounting._pld_tilt import COARSE, Query, Steps

__all__ = ["epsilon_by_jumps", "has_jumps", "log_delta_by_jumps"]

_OFTEN = 0.3  # expected number of losses above the first edge, if the range of losses allows
_RARE = 3.0  # no more than so many are told apart
_RATIO = 6.0  # of neighbouring edges
_MOST_EDGES = 10
_NEGLIGIBLE = math.log(1e-6)  # of delta: all that is left out
_MOST_JUMPS = 60
_FEW = 1024  # frequencies while the root is sought
_TILTS = np.geomspace(1.0, 300.0, 6)  # of Chernoff's bound, over the largest loss
_EVALUATIONS = 16
_SLACK = 1e-6  # the root is sought this far (in log delta) on the safe side


def has_jumps(steps: Steps) -> bool:
    """Returns True if this is one kind of step whose large losses are rare, all of them numbers."""
    return len(steps.counts) == 1 and _edges(steps) is not None


def log_delta_by_jumps(
    steps: Steps, epsilon: float, log_scale: float, frequencies: int
) -> tuple[float, float]:
    """Returns (lower, upper) around log delta at epsilon of one kind of step, repeated.

    Args:
      steps: one that `has_jumps`, in one direction.
      epsilon: at least 0.
      log_scale: about what log delta is: what is negligible is so beside it.
      frequencies: of each window.
    """
    negligible = log_scale + _NEGLIGIBLE
    lower, upper = [], [float(log_infinite_delta(steps))]
    for log_weight, part, left_out in _parts(steps, negligible):
        upper.append(left_out)
        if part is None:
            continue
        error = 16 * ULP * (1 + _MOST_JUMPS + abs(log_weight))
        low, up = _bracket(part, epsilon, negligible - log_weight, frequencies)
        lower.append(low + log_weight - error)
        upper.append(up + log_weight + error)
    top, bottom = float(logsumexp(np.array(upper))), float(logsumexp(np.array(lower)))
    # A sum of at most some hundred terms, and the rounding of its logarithm.
    slack = 8 * ULP
    top = top + slack * (64 + abs(top)) if top > -math.inf else top
    bottom = bottom - slack * (64 + abs(bottom)) if bottom > -math.inf else bottom
    return bottom, top if top < 0 else 0.0


def epsilon_by_jumps(
    steps: Steps, log_delta: float, frequencies: int, within: tuple[float, float]
) -> tuple[float, float]:
    """Returns (lower, upper) around epsilon at log_delta, no wider than `within`."""
    low, high = within

    def ask(epsilon: float, frequencies: int = frequencies) -> tuple[float, float]:
        return log_delta_by_jumps(steps, epsilon, log_delta, frequencies)

    x, slope = _root(lambda epsilon: ask(epsilon, _FEW), log_delta, low, high)
    known = ask(x)
    if not slope < 0:
        return low, high
    # From there to where each bound is on its safe side of the goal, for certain.
    for row, side in ((1, 1.0), (0, -1.0)):
        probe, value, steepness = x, known[row], slope
        for attempt in range(5):
            gap = side * (log_delta - value)
            if gap >= 0:
                low, high = (low, min(high, probe)) if row else (max(low, probe), high)
            if 0 <= gap <= 10 * _SLACK:
                break
            move = (log_delta - side * 2**attempt * _SLACK - value) / steepness
            if not within[0] <= probe + move <= within[1]:
                break
            before, probe = value, probe + move
            value = ask(probe)[row]
            steepness = (value - before) / move if (value - before) / move < 0 else steepness
    return low, high


def _root(
    ask: Callable[[float], tuple[float, float]], goal: float, low: float, high: float
) -> tuple[float, float]:
    """Returns (x, slope there): about where the mean of the bounds is the goal."""
    a, b = low, high
    x = math.sqrt(a * b) if a > 0 else b / 2
    before: tuple[float, float] | None = None
    slope = math.nan
    for _ in range(_EVALUATIONS):
        bounds = ask(x)
        if not (math.isfinite(bounds[0]) or bounds[1] < 0):
            break  # nothing is known here: no window serves some part
        value = sum(bounds) / 2 if math.isfinite(bounds[0]) else bounds[1]
        a, b = (x, b) if value > goal else (a, x)
        if before is not None and before[0] != x:
            slope = (value - before[1]) / (x - before[0])
        before = x, value
        if abs(value - goal) < 1e-3 and slope < 0:
            break
        following = x + (goal - value) / slope if slope < 0 and abs(value - goal) < 3 else math.nan
        if not a < following < b:
            following = math.sqrt(a * b) if a > 0 else (a + b) / 2
        x = following
    return before[0] if before else x, slope


def _bracket(
    part: Steps, epsilon: float, negligible: float, frequencies: int
) -> tuple[float, float]:
    """Returns (lower, upper) around log delta of one measure; a second look where the first is wide."""
    if not part.loss.shape[2]:
        return -math.inf, -math.inf  # no mass, no delta
    query = Query(-1.0, epsilon, False, 1.0)
    largest = float(np.max(part.loss[:, 0]))
    most = at_most(law_of(part), query, _TILTS / largest)
    if most <= negligible:
        return -math.inf, most
    found, _ = answer(part, query, frequencies)
    low, up, size = float(found.lower), float(found.upper), float(found.size)
    if up - low > 1e-4 and math.isfinite(size):
        found, _ = answer(part, query._replace(size=min(max(0.1 * size, 1e-9), 1.0)), frequencies)
        low, up = max(low, float(found.lower)), min(up, float(found.upper))
    return low if not math.isnan(low) else -math.inf, up if not math.isnan(up) else 0.0


def _parts(steps: Steps, log_negligible: float) -> Iterator[tuple[float, Steps | None, float]]:
    """Yields (log C(T, m), the measure J_k^m B_k^(T-m), log of a bound on what is left out)."""
    count = float(steps.counts[0])
    mass, loss = steps.log_mass[0], steps.loss[0]
    edges = _edges(steps)
    assert edges is not None
    # What is left out has the mass of all other steps, too, which outward rounding may have pushed above 1.
    over = count * (max(float(logsumexp(mass[0])), 0.0) + mass.shape[1] * ULP)
    yield 0.0, _measure([np.where(loss <= edges[0], mass, -np.inf)], loss, [count]), -math.inf
    for below, above in itertools.pairwise(edges):
        under = np.where(loss <= below, mass, -np.inf)
        jump = np.where((loss > below) & (loss <= above), mass, -np.inf)
        once = float(logsumexp(jump[0]))
        if once == -math.inf:
            continue
        for m in range(1, _MOST_JUMPS):
            if m > count:
                break
            choose = _log_choose(count, m)
            rest = choose + m * once + over + 64 * ULP * (1 + m * (1 + abs(once)))
            if rest <= log_negligible - math.log(len(edges)):
                yield 0.0, None, rest
                break
            yield choose, _measure([jump, under], loss, [m, count - m]), -math.inf
        else:
            yield 0.0, None, 0.0  # too many to tell apart: nothing is claimed


def _measure(masses: list[Any], loss: Any, counts: list[float]) -> Steps:
    """Returns the kinds that occur, on the columns that any of them uses (and some more: see `roughen`)."""
    kept = [(mass, times) for mass, times in zip(masses, counts, strict=True) if times > 0]
    used = np.any([np.any(mass > -np.inf, 0) for mass, _ in kept], 0)
    more = [(0, 0), (0, -int(used.sum()) % COARSE)]
    columns = np.pad(loss[:, used], more)
    return Steps(
        np.stack([np.pad(mass[:, used], more, constant_values=-np.inf) for mass, _ in kept]),
        np.stack([columns] * len(kept)),
        np.full(len(kept), -np.inf),
        np.array([times for _, times in kept], np.float64),
    )


def _edges(steps: Steps) -> list[float] | None:
    """Returns the edges, the last above all losses; None if no loss is rare and large."""
    count = float(steps.counts[0])
    there = ~(steps.log_mass[0, 0] == -np.inf)
    loss, mass = steps.loss[0, 0][there], np.exp(steps.log_mass[0, 0][there])
    if not loss.size or np.isnan(loss + mass).any():
        return None  # what is no number belongs to no interval: it would be lost, and the bound with it
    order = np.argsort(-loss)
    loss, above = loss[order], np.cumsum(mass[order]) * count
    last = float(loss[0])
    often = float(loss[min(np.searchsorted(above, _OFTEN), len(loss) - 1)])
    first = min(max(often, last * _RATIO**-_MOST_EDGES), last / _RATIO)
    at = int(np.searchsorted(-loss, -first, side="right")) - 1
    rate = float(above[at]) if last > 0 else math.inf
    if not rate <= _RARE:
        return None
    number = math.ceil(math.log(last / first) / math.log(_RATIO))
    return [*(first * _RATIO**k for k in range(number)), math.inf]


def _log_choose(count: float, m: int) -> float:
    """Returns log C(count, m), m <= count, to 4 ulp of its terms: gamma functions would lose log(count!) ulp."""
    return math.fsum(math.log((count - i) / (i + 1)) for i in range(m))
