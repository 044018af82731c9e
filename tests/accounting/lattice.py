"""An accountant of another kind, to test ours against: loss lattice, connect the dots, tilted FFT.

Numpy and scipy only; it shares no line and no method with `opake_jax`. One step's privacy loss is
laid on the multiples of h, once upwards and once downwards:

* upper: the mass between two multiples goes to both so that the masses under P and under Q are kept
  (Doroshenko et al. 2022, arXiv 2207.04380): a dominating pair;
* lower: the outcomes whose loss rounds to one multiple are merged (post-processing, so dominated);
  the merged losses differ from the multiples by at most h, in fact by about h^2, and a Chernoff
  bound turns T such differences into one shift that fails with a stated, subtracted probability.

Steps are composed by FFT of exponentially tilted masses, so that a delta of 1e-30 has as many digits as
one of 0.1. The bracket holds up to float64 rounding (about 1e-11 relative).

A step is a `Pair`: branches (which branch it is counts as public) of Gaussian mixtures with loss
increasing in the outcome, plus atoms.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import fft, stats

NODES, WEIGHTS = np.polynomial.legendre.leggauss(5)
# Beyond 38 nats a tilted mass is below the rounding of the FFT that carries it.
WINDOW_NATS = 42.0
MAX_FFT = 2**23


@dataclass(frozen=True)
class Branch:
    """A part of a step: outcomes x in (low, high), of P-density exp(log_p), loss increasing in x."""

    weight: float
    log_p: Callable[[Any], Any]
    loss: Callable[[Any], Any]
    scale: float  # a length over which log_p and loss are smooth
    cut: Callable[[float], tuple[float, float]]  # log tail -> (x_low, x_high)


@dataclass(frozen=True)
class Pair:
    """One step: what the dominating P and Q make of it."""

    branches: tuple[Branch, ...]
    atoms: tuple[tuple[float, float], ...] = ()  # (loss, P-mass)


Steps = Sequence[tuple[Pair, float]]


def _log_ratio(x: Any, mixture: Any, std: float) -> Any:
    """Returns log(sum w N(x; a, std) / N(x; 0, std)), relatively accurate near 0."""
    weights, means = mixture
    y = [(2 * a * x - a * a) / (2 * std * std) for a in means]
    if len(weights) == 1:
        return math.log(weights[0]) + y[0]
    top = np.maximum.reduce(y)
    far = top + np.log(sum(w * np.exp(v - top) for w, v in zip(weights, y, strict=True)))
    near = sum(w * np.expm1(np.minimum(v, 1.0)) for w, v in zip(weights, y, strict=True))
    return np.where(top < 1.0, np.log1p(near), far)


def _normalised(mixture: Sequence[tuple[float, float]]) -> Any:
    kept = [(w, a) for w, a in mixture if w > 0]
    return [w for w, _ in kept], [a for _, a in kept]


def branch(
    P: Sequence[tuple[float, float]],
    Q: Sequence[tuple[float, float]],
    std: float,
    *,
    weight: float = 1.0,
    low: float = -math.inf,
    high: float = math.inf,
) -> Branch:
    """Returns the branch of two Gaussian mixtures, given as (probability, mean)."""
    p, q = _normalised(P), _normalised(Q)

    def log_p(x: Any) -> Any:
        base = -x * x / (2 * std * std) - math.log(std * math.sqrt(2 * math.pi))
        return base + _log_ratio(x, p, std)

    def loss(x: Any) -> Any:
        return _log_ratio(x, p, std) - _log_ratio(x, q, std)

    def cut(log_tail: float) -> tuple[float, float]:
        k = math.sqrt(-2 * log_tail)
        return max(low, min(p[1]) - k * std), min(high, max(p[1]) + k * std)

    return Branch(weight, log_p, loss, min(std, std * std), cut)


def gaussian(std: float, distance: float = 1.0) -> Pair:
    """Returns the pair of the Gaussian mechanism."""
    return Pair((branch([(1.0, distance)], [(1.0, 0.0)], std),))


def mixture(std: float, probabilities: Sequence[float], direction: str, weight=1.0) -> Branch:
    """Returns sum_k p_k N(k, std^2) against N(0, std^2) ("remove"), or the other way ("add")."""
    if direction == "remove":
        return branch(
            [(p, float(k)) for k, p in enumerate(probabilities)], [(1.0, 0.0)], std, weight=weight
        )
    return branch(
        [(1.0, 0.0)], [(p, -float(k)) for k, p in enumerate(probabilities)], std, weight=weight
    )


def poisson(std: float, rate: float, direction: str) -> Pair:
    """Returns the pair of a Poisson-sampled Gaussian."""
    return Pair((mixture(std, (1 - rate, rate), direction),))


def parallel_poisson(std: float, rate: float, workers: int, direction: str) -> Pair:
    """Returns the pair of `workers` independent draws: the record takes part Bin(W, q) times."""
    probabilities = stats.binom.pmf(np.arange(workers + 1), workers, rate)
    return Pair((mixture(std, list(probabilities), direction),))


def replace_one(std: float, rate: float, weight: float = 1.0) -> Branch:
    """Returns (1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1)."""
    return branch(
        [(1 - rate, 0.0), (rate, 1.0)], [(1 - rate, 0.0), (rate, -1.0)], std, weight=weight
    )


def truncated_poisson(
    std: float, rate: float, cap: int, size: int, direction: str, *, zero_out: bool
) -> Pair:
    """Returns the pair of Poisson sampling that keeps a random `cap` of those drawn.

    The formulas of accounting.md: with U the others drawn, p = Pr[Bin(n-1, q) >= B] is the
    probability of overflow and q' = B Pr[Bin(n, q) > B] / (n p) the record's own rate in it.
    """
    overflow = stats.binom.sf(cap - 1, size - 1, rate)
    plain = mixture(std, (1 - rate, rate), direction, weight=1 - overflow)
    if overflow == 0:
        return Pair((plain,))
    kept = cap * stats.binom.sf(cap, size, rate) / (size * overflow)
    if zero_out:
        return Pair((plain, replace_one(std / 2, kept, weight=overflow)))
    return Pair((plain, mixture(std / 2, (1 - kept, kept), direction, weight=overflow)))


def fixed_size(std: float, rate: float) -> Pair:
    """Returns the one pair of sampling without replacement under REPLACE_ONE (distance 2).

    Zhu, Dong and Wang 2022 (arXiv 2106.08567): losses above 0 come from (1-q) N(0) + q N(2) against
    N(0), losses below 0 from N(2) against (1-q) N(2) + q N(0); both change sign at x = 1, and what
    mass is left has loss 0.
    """
    above = branch([(1 - rate, 0.0), (rate, 2.0)], [(1.0, 0.0)], std, low=1.0)
    # N(2) against (1-q) N(2) + q N(0), seen from 2: N(0) against (1-q) N(0) + q N(-2).
    below = branch([(1.0, 0.0)], [(1 - rate, 0.0), (rate, -2.0)], std, high=-1.0)
    tail = stats.norm.sf(1.0, scale=std)
    taken = (1 - rate) * tail + rate * (1 - tail) + tail
    return Pair((above, below), ((0.0, 1.0 - taken),))


def laplace(scale: float) -> Pair:
    """Returns the pair of the Laplace mechanism of unit sensitivity."""
    middle = Branch(
        1.0,
        lambda x: -(1 - x) / scale - math.log(2 * scale),
        lambda x: (2 * x - 1) / scale,
        min(scale, 1.0),
        lambda log_tail: (0.0, 1.0),
    )
    return Pair((middle,), ((1 / scale, 0.5), (-1 / scale, 0.5 * math.exp(-1 / scale))))


def randomised_response(truth: float) -> Pair:
    """Returns the pair of binary randomised response."""
    log_odds = math.log(truth / (1 - truth))
    return Pair((), ((log_odds, truth), (-log_odds, 1 - truth)))


# --- One step on the lattice -------------------------------------------------------------------


@dataclass(frozen=True)
class _Masses:
    """P-masses at losses (start + k) h; `lost` is what was cut above."""

    start: int
    masses: np.ndarray
    lost: float = 0.0
    offset: np.ndarray | None = None  # exact loss less lattice loss (lower pair)


def _ranges(pair: Pair, log_tail: float) -> list[tuple[float, float]]:
    return [b.cut(log_tail) for b in pair.branches]


def _one_step_moments(pair: Pair, log_tail: float) -> tuple[float, float, float]:
    """Returns the least and largest loss, and the loss's standard deviation under P."""
    low, high, total, first, second = math.inf, -math.inf, 0.0, 0.0, 0.0
    for b, (x0, x1) in zip(pair.branches, _ranges(pair, log_tail), strict=True):
        x = np.linspace(x0, x1, 4001)
        loss = b.loss(x)
        p = b.weight * np.exp(b.log_p(x)) * (x[1] - x[0])
        low, high = min(low, float(loss[0])), max(high, float(loss[-1]))
        total, first = total + p.sum(), first + (p * loss).sum()
        second += (p * loss * loss).sum()
    for loss, p in pair.atoms:
        low, high = min(low, loss), max(high, loss)
        total, first, second = total + p, first + p * loss, second + p * loss * loss
    return low, high, math.sqrt(max(second / total - (first / total) ** 2, 1e-300))


def lattice_step(steps: Steps, log_tail: float, fineness: float, limit: int) -> float:
    """Returns h: `fineness` of one step's standard deviation, or as fine as `limit` points allow."""
    moments = [_one_step_moments(pair, log_tail) for pair, _ in steps]
    least = min(std for _, _, std in moments)
    span = max(high - low for low, high, _ in moments)
    h = max(fineness * least, span / limit)
    for pair, _ in steps:  # atoms are kept exact where they share a unit with h
        for loss, _ in pair.atoms:
            if loss > 0:
                h = loss / math.ceil(loss / h)
    return h


def _edges(b: Branch, losses: np.ndarray, x0: float, x1: float) -> np.ndarray:
    """Returns where the branch's loss passes each of the increasing `losses`, within [x0, x1]."""
    count = int(np.clip((x1 - x0) / b.scale * 50, 2001, 400001))
    table = np.linspace(x0, x1, count)
    values = np.maximum.accumulate(b.loss(table))
    x = np.interp(losses, values, table)
    inside = (losses > values[0]) & (losses < values[-1])
    gap = table[1] - table[0]
    left = table[np.clip(np.searchsorted(values, losses) - 1, 0, count - 2)]
    # Two secant corrections inside the table's cell: an error of the table squared twice.
    a, c = left, left + gap
    fa, fc = b.loss(a) - losses, b.loss(c) - losses
    for _ in range(4):
        with np.errstate(divide="ignore", invalid="ignore"):
            new = a - fa * (c - a) / (fc - fa)
        new = np.where(np.isfinite(new), np.clip(new, a, c), (a + c) / 2)
        f = b.loss(new) - losses
        below = f <= 0
        a, fa = np.where(below, new, a), np.where(below, f, fa * 0.5)
        c, fc = np.where(below, c, new), np.where(below, fc * 0.5, f)
        x = np.where(inside, new, x)
    return np.maximum.accumulate(np.clip(x, x0, x1))


def _integrate(b: Branch, edges: np.ndarray, reference: np.ndarray) -> tuple[Any, Any]:
    """Returns, for each cell between edges, its P-mass and the integral of p (1 - e^(reference - L))."""
    x0, x1 = edges[0], edges[-1]
    uniform = np.linspace(x0, x1, max(2, math.ceil((x1 - x0) / (0.1 * b.scale)) + 1))
    fine = np.unique(np.concatenate([edges, uniform]))
    middle, half = (fine[1:] + fine[:-1]) / 2, (fine[1:] - fine[:-1]) / 2
    cell = np.clip(np.searchsorted(edges, middle, side="right") - 1, 0, len(edges) - 2)
    mass, excess = np.zeros(len(fine) - 1), np.zeros(len(fine) - 1)
    for node, weight in zip(NODES, WEIGHTS, strict=True):
        x = middle + half * node
        p = b.weight * np.exp(b.log_p(x)) * half * weight
        mass += p
        excess -= p * np.expm1(reference[cell] - b.loss(x))
    cells = len(edges) - 1
    return np.bincount(cell, mass, cells), np.bincount(cell, excess, cells)


def discretise(pair: Pair, h: float, log_tail: float) -> tuple[_Masses, _Masses]:
    """Returns one step's upper and lower masses on the multiples of h."""
    low, high, _ = _one_step_moments(pair, log_tail)
    start = math.floor(low / h) - 1
    count = math.ceil(high / h) + 1 - start + 1
    losses = np.arange(start, start + count) * h
    upper, lower, shortfall = np.zeros(count), np.zeros(count), np.zeros(count)
    lost = 0.0
    for b, (x0, x1) in zip(pair.branches, _ranges(pair, log_tail), strict=True):
        lost += 2 * b.weight * math.exp(log_tail)
        mass, excess = _integrate(b, _edges(b, losses, x0, x1), losses[:-1])
        to_right = np.clip(excess / -math.expm1(-h), 0, mass)
        upper[1:] += to_right
        upper[:-1] += mass - to_right
        halves = np.concatenate([[x0], _edges(b, losses[1:] - h / 2, x0, x1), [x1]])
        mass, excess = _integrate(b, halves, losses)
        lower += mass
        shortfall += excess  # P-mass less Q-mass times e^(lattice loss)
    for loss, mass in pair.atoms:
        k = loss / h - start
        below = math.floor(k + 1e-9)
        right = -math.expm1(-(k - below) * h) / -math.expm1(-h) if k - below > 1e-9 else 0.0
        upper[below] += mass * (1 - right)
        upper[below + 1] += mass * right
        lower[round(k)] += mass
        shortfall[round(k)] -= mass * math.expm1((round(k) - k) * h)
    offset = -np.log1p(-shortfall / np.where(lower > 0, lower, 1.0))
    return _Masses(start, upper, lost), _Masses(start, lower, 0.0, offset)


# --- Composition -------------------------------------------------------------------------------


def _cumulant(losses: np.ndarray, masses: np.ndarray, tilt: float) -> float:
    exponent = tilt * losses
    top = exponent.max()
    return top + math.log(np.dot(masses, np.exp(exponent - top)))


def _coarse(losses: np.ndarray, masses: np.ndarray, cells: int = 4096) -> tuple[Any, Any]:
    """Returns masses merged into `cells` at their mean loss: good enough to choose a tilt by."""
    keep = masses > 0
    losses, masses = losses[keep], masses[keep]
    block = max(1, -(-len(losses) // cells))
    starts = np.arange(0, len(losses), block)
    total = np.add.reduceat(masses, starts)
    return np.add.reduceat(masses * losses, starts) / total, total


@dataclass(frozen=True)
class _Composed:
    """The composed loss: P-masses at `losses`, accurate around `reference` and above it."""

    losses: np.ndarray
    masses: np.ndarray
    lost: float
    reference: float

    def delta(self, epsilon: float) -> float:
        above = self.losses > epsilon
        return self.lost + float(
            np.dot(self.masses[above], -np.expm1(epsilon - self.losses[above]))
        )

    def epsilon(self, delta: float, beneath: float | None = None) -> float:
        """Returns epsilon; where it lies beneath the window, that (None: the window's lower end)."""
        if delta <= self.lost:
            return math.inf
        target = delta - self.lost
        weight = np.exp(np.clip(self.reference - self.losses, -700, 700))
        A = np.cumsum(self.masses[::-1])[::-1]
        with np.errstate(over="ignore", invalid="ignore"):  # far below the query only
            B = np.cumsum((self.masses * weight)[::-1])[::-1]
            values = A - B / weight  # delta at each lattice loss
        reached = np.flatnonzero(values >= target)
        if len(reached) == 0:
            return max(0.0, float(self.losses[0])) if beneath is None else beneath
        i = min(int(reached[-1]) + 1, len(A) - 1)
        if A[i] <= target or B[i] <= 0:
            return max(0.0, float(self.losses[i]))
        return max(0.0, float(self.reference + math.log((A[i] - target) / B[i])))


def _compose(
    parts: Sequence[tuple[_Masses, float]], h: float, log_delta: float | None, epsilon: float | None
) -> _Composed:
    """Returns the composed loss, accurate where the query looks."""
    grids = [(h * (m.start + np.arange(len(m.masses))), m.masses, T) for m, T in parts]
    coarse = [(*_coarse(g, p), T) for g, p, T in grids]
    tilts = np.geomspace(1e-4, 5000, 60)
    rough = np.array([sum(T * _cumulant(g, p, t) for g, p, T in coarse) for t in tilts])
    # delta <= e^(K - t epsilon) t^t / (1 + t)^(1 + t), for every tilt t > 0.
    rough += tilts * np.log(tilts) - (1 + tilts) * np.log1p(tilts)
    if log_delta is not None:
        tilt = float(tilts[np.argmin((rough - log_delta) / tilts)])
    else:
        best = int(np.argmin(rough - tilts * epsilon))
        tilt = 0.0 if best == 0 else float(tilts[best])

    log_scale, first, tilted = 0.0, 0, []
    for (m, T), (g, p, _) in zip(parts, grids, strict=True):
        k = _cumulant(g, p, tilt)
        tilted.append(np.where(p > 0, p, 0.0) * np.exp(np.clip(tilt * g - k, -745, 700)))
        log_scale += T * k
        first += int(T) * m.start
    mean = sum(T * np.dot(t, g) / t.sum() for t, (g, _, T) in zip(tilted, grids, strict=True))
    variance = sum(
        T * (np.dot(t, g * g) / t.sum() - (np.dot(t, g) / t.sum()) ** 2)
        for t, (g, _, T) in zip(tilted, grids, strict=True)
    )
    rates = np.geomspace(0.02, 60, 24) / math.sqrt(max(variance, h * h))

    # What is dropped here weighs less than e^-WINDOW_NATS after T steps.
    kept = [(g[t > 1e-32], t[t > 1e-32], T) for t, (g, _, T) in zip(tilted, grids, strict=True)]

    def reach(sign: float) -> float:
        best = math.inf
        for r in rates:
            log_moment = sum(T * _cumulant(g, t, sign * r) for g, t, T in kept)
            best = min(best, (log_moment - sign * r * mean + WINDOW_NATS) / r)
        return best

    down, up = reach(-1.0), reach(1.0)
    size = max(int((up + down) / h) + 16, max(len(g) for g, _, _ in grids))
    size = fft.next_fast_len(size, real=True)
    if size > MAX_FFT:
        raise MemoryError(f"the composed lattice has {size} points")
    spectrum = np.ones(size // 2 + 1, complex)
    for t, (_, _, T) in zip(tilted, grids, strict=True):
        spectrum *= fft.rfft(t, size) ** T
    y = np.maximum(fft.irfft(spectrum, size), 0.0)
    begin = math.floor((mean - down) / h)
    order = (np.arange(size) + begin - first) % size
    losses = h * (begin + np.arange(size))
    # Far below the query the tilt undone magnifies rounding: a mass is at most 1.
    masses = np.minimum(y[order] * np.exp(np.clip(log_scale - tilt * losses, -745, 700)), 1.0)
    lost = -math.expm1(sum(T * math.log1p(-m.lost) for m, T in parts))
    return _Composed(losses, masses, lost, mean)


def _certified_shift(parts: Sequence[tuple[_Masses, float]], log_failure: float) -> float:
    """Returns s with Pr[sum of the offsets < s] <= e^log_failure, by Chernoff's bound."""
    mean, variance, tables = 0.0, 1e-300, []
    for m, T in parts:
        total = m.masses.sum()
        center = float(np.dot(m.masses, m.offset) / total)
        residual = m.offset - center
        mean += T * center
        variance += T * float(np.dot(m.masses, residual**2))
        tables.append((m.masses, residual, T))
    best = -math.inf
    for rate in np.geomspace(1e-3, 1e3, 61) / math.sqrt(variance):
        if any(rate * -float(d.min()) > 600 for _, d, _ in tables):
            continue
        moment = sum(T * math.log1p(float(np.dot(p, np.expm1(-rate * d)))) for p, d, T in tables)
        best = max(best, (log_failure - moment) / rate)
    return mean + best


def _bracket(
    steps: Steps,
    fineness: float,
    limit: int,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
) -> tuple[float, float]:
    steps = [(pair, T) for pair, T in steps if T > 0]
    total = sum(T for _, T in steps)
    log_tail = (math.log(min(delta, 1e-9)) if delta else -140.0) - math.log(total) - 16.0
    h = lattice_step(steps, log_tail, fineness, limit)
    both = [(discretise(pair, h, log_tail), T) for pair, T in steps]
    uppers = [(pair[0], T) for pair, T in both]
    lowers = [(pair[1], T) for pair, T in both]
    if delta is not None:
        upper = _compose(uppers, h, math.log(delta), None).epsilon(delta)
        shift = _certified_shift(lowers, math.log(delta) - 14)
        composed = _compose(lowers, h, math.log(delta), None)
        return max(0.0, composed.epsilon(delta * (1 + 1e-6), -math.inf) + shift), upper
    upper = _compose(uppers, h, None, epsilon).delta(epsilon)
    if upper < 1e-250:
        return 0.0, upper
    shift = _certified_shift(lowers, math.log(upper) - 14)
    composed = _compose(lowers, h, None, epsilon - shift)
    return max(0.0, composed.delta(epsilon - shift) - upper * math.exp(-14)), upper


def epsilon_bracket(
    directions: Sequence[Steps], delta: float, *, fineness: float = 0.02, limit: int = 2**16
) -> tuple[float, float]:
    """Returns (lower, upper) of epsilon at `delta`: the worst direction's."""
    values = [_bracket(steps, fineness, limit, delta=delta) for steps in directions]
    return max(v[0] for v in values), max(v[1] for v in values)


def delta_bracket(
    directions: Sequence[Steps], epsilon: float, *, fineness: float = 0.02, limit: int = 2**16
) -> tuple[float, float]:
    """Returns (lower, upper) of delta at `epsilon`: the worst direction's."""
    values = [_bracket(steps, fineness, limit, epsilon=epsilon) for steps in directions]
    return max(v[0] for v in values), max(v[1] for v in values)
