"""The loss of one step as a function on a line: nodes, moments, and what they leave out.

P and Q are mixtures of N(m, sigma^2), with means in [0, M_P] in P and in [-M_Q, 0] in Q; M is the larger of M_P and M_Q.
With phi the density of N(0, sigma^2), r_P = p/phi and r_Q = q/phi, the loss is l = log r_P - log r_Q, and the law
of x tilted by s is f(x) = phi r_P^b r_Q^c up to its total E: (b, c) = (1 + s, -s) where x is drawn from P, (-s, 1 + s)
for the pair (Q, P), whose loss is -l. mu_P, in [0, M_P], is the posterior mean of the shift under P, mu_Q, in [-M_Q,
0], that under Q:

    (log f)' = (-x + b mu_P + c mu_Q)/sigma^2,      l' = (mu_P - mu_Q)/sigma^2 > 0.

Quadrature. The trapezoidal rule of step h, on all of h Z, errs by at most 2 A/(e^(2 pi y/h) - 1) with A the integral of
|f(x + iy)|, for every y within a strip where f is analytic (Trefethen and Weideman 2014, "The exponentially
convergent trapezoidal rule", SIAM Review 56, Thm 5.1). Here r_P(x + iy) is a sum of numbers whose arguments lie
in [0, y M_P/sigma^2]. For y M_P/sigma^2 < pi/2 so does its own argument, and r_P cos(y M_P/sigma^2) <= |r_P(x + iy)| <=
r_P; likewise r_Q. With |phi(x + iy)| = phi e^(y^2/(2 sigma^2)), at s = t + iw,

    A/E <= e^(y^2/(2 sigma^2) + |w| y (M_P + M_Q)/sigma^2) cos(y M_P/sigma^2)^min(b, 0) cos(y M_Q/sigma^2)^min(c, 0).

Ends. Right of R = b+ M_P + c- M_Q (positive and negative parts, at t) the slope of log f is at most -(x - R)/sigma^2, left
of -L = -(b- M_P + c+ M_Q) at least -(x + L)/sigma^2. A line reaches 9 sigma beyond both, and what it leaves out, as
an integral or as a sum of further nodes, is at most (sigma/9) (f at its first node + f at its last).
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from opake_jax._numerics import logsumexp
from opake_jax.accounting._gaussian_pairs import GaussianMixturePair, limit_of, mixtures_of
from opake_jax.accounting._pairs import ULP, MixturePair
from opake_jax.accounting._pld_tilt import Query

__all__ = [
    "Branch",
    "Line",
    "Moment",
    "beyond_ends",
    "branches_of",
    "coarse_line",
    "fine_step",
    "is_reverse",
    "line_of",
    "moment_of",
    "most_tilt",
    "supremum",
]

_FAR = 9.0  # standard deviations between the last mode and the end of the line
_COARSE = 0.1  # of min(sigma, sigma^2/M): width of the cells of the bounds
_NARROW = 0.7  # of the width of the integrand's peak in a strip: exp(-2 pi^2/0.7^2) = 3e-18
_MOST_CELLS = 2**16
_DIGITS = 33.0  # e^-33: what quadrature aims at
_HEAVY = 6.0  # (M/sigma)^2: above, rare large losses rule the variance
_WIDEST = 1.55  # of y M/sigma^2, below pi/2
_TINY = 1e-60
_UNIT = np.linspace(0.0, 1.0, 24)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class Mixture(NamedTuple):
    """A mixture of Gaussians of one width: the components that occur."""

    log_rest: float  # log weight of the unshifted one, perhaps -inf
    unsure: float  # by how much that weight may be wrong
    log_weights: np.ndarray  # [K]
    means: np.ndarray  # [K]


class Branch(NamedTuple):
    """One of the pairs a step may be, with its log probability."""

    pair: GaussianMixturePair
    p: Mixture
    q: Mixture
    log_weight: float
    back: bool  # the pair is (Q, P)
    reach_p: float  # M_P
    reach_q: float  # M_Q
    sigma: float
    excess: np.ndarray  # [2]: by how much log mass and loss may be above the truth

    @property
    def reach(self) -> float:
        return max(self.reach_p, self.reach_q)

    def exponents(self, tilt: float) -> tuple[float, float]:
        """Returns (b, c)."""
        return (-tilt, 1 + tilt) if self.back else (1 + tilt, -tilt)


class Strip(NamedTuple):
    """Half-widths y of strips, [Y], and what each makes of the rule's error."""

    decay: np.ndarray  # log(2 A/E) - 2 pi y/h, but for the factors that follow
    angle: np.ndarray  # y (M_P + M_Q)/sigma^2: times w
    log_cos_p: np.ndarray  # times a negative b
    log_cos_q: np.ndarray  # times a negative c

    def error(self, exponents: tuple[float, float], w: float = 0.0) -> float:
        """Returns a bound on the rule's error for frequencies up to w, relative to E."""
        b, c = exponents
        each = self.decay + w * self.angle
        if b < 0:
            each = each + b * self.log_cos_p
        if c < 0:
            each = each + c * self.log_cos_q
        return math.exp(min(float(np.min(each)), 700.0))


class Line(NamedTuple):
    """Nodes x, [J], of distance h; under P, times the branch's probability."""

    x: np.ndarray
    step: float
    loss: np.ndarray
    log_mass: np.ndarray  # of h times the density
    loss_error: np.ndarray
    mass_error: np.ndarray
    mean: tuple[Any, Any]  # mu_P, mu_Q: [J], or 0
    variance: tuple[Any, Any]  # of the posteriors
    strip: Strip


class Moment(NamedTuple):
    """log E e^(tilt L) of one step, a bound on its error, and the same of each branch."""

    log: float
    error: float
    branches: list[float]


def branches_of(pair: Any) -> list[Branch]:
    """Returns the branches of a pair of mixtures of Gaussians, or of several such; none for another pair."""
    if isinstance(pair, MixturePair):
        some = []
        for b, inner in enumerate(pair.pairs):
            weight = float(pair.weights[b])
            if weight == 0:
                continue
            one = branches_of(inner)
            if len(one) != 1:
                return []
            excess = np.asarray(pair.excess, np.float64)[:, b]
            some.append(one[0]._replace(log_weight=math.log(weight), excess=excess))
        return some
    if not isinstance(pair, GaussianMixturePair):
        return []
    known = (None, None) if pair.log_rest is None else pair.log_rest
    p = _mixture(pair.p_weights, pair.p_means, known[0])
    q = _mixture(pair.q_weights, pair.q_means, known[1])
    reach_p = float(np.max(p.means, initial=0.0))
    reach_q = float(np.max(-q.means, initial=0.0))
    sigma = float(pair.sigma)
    # (Squares and fourth powers of these are taken.)
    fits = _TINY < max(reach_p, reach_q) < 1 / _TINY and _TINY < sigma < 1 / _TINY
    back = float(pair.reverse) > 0.5
    branch = Branch(pair, p, q, 0.0, back, reach_p, reach_q, sigma, np.zeros(2))
    return [branch] if fits else []


def _mixture(weights: Any, means: Any, log_rest: Any) -> Mixture:
    weights, means = np.asarray(weights, np.float64), np.asarray(means, np.float64)
    there = weights != 0  # a NaN stays
    weights, total = weights[there], float(weights.sum())
    if log_rest is not None:
        return Mixture(float(log_rest), 0.0, np.log(weights), means[there])
    log_rest = math.log1p(-total) if total < 1 else -math.inf
    return Mixture(log_rest, ULP * max(len(weights) - 1, 0), np.log(weights), means[there])


def is_reverse(pair: Any, other: Any) -> bool:
    """Returns True if the other pair is this one exchanged, or has its losses (Gaussians of one distance do)."""
    if isinstance(pair, MixturePair) and isinstance(other, MixturePair):
        same = np.array_equal(pair.weights, other.weights)
        return same and all(map(is_reverse, pair.pairs, other.pairs))
    if not (isinstance(pair, GaussianMixturePair) and isinstance(other, GaussianMixturePair)):
        return False
    if pair is other:  # one pair for both directions: is it its own reverse?
        p, q = (pair.p_weights, pair.p_means), (pair.q_weights, pair.q_means)
        alike = all(np.array_equal(a, b) for a, b in zip(p, (q[0], -np.asarray(q[1])), strict=True))
        return alike or (np.shape(q[0]) == (0,) and np.array_equal(p[0], [1.0]))
    back = pair.reversed()
    leaves = zip(jax.tree.leaves(back), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in leaves)


def supremum(branch: Branch) -> float:
    """Returns the largest loss of a branch, rounded up."""
    side = -1.0 if branch.back else 1.0
    return side * float(limit_of(mixtures_of(branch.pair), side))


def most_tilt(kinds: list[list[Branch]], counts: np.ndarray, query: Query) -> float:
    """Returns about the largest tilt that a query needs: beyond the saddle point, not far past a phase transition.

    Below it the loss is about normal, of variance v = E_Q (r_P - r_Q)^2 a step. Where one step's largest shift
    takes over, K turns up steeply, and tilts beyond are of no use.
    """
    variance, heavy = 0.0, False
    for kind, count in zip(kinds, counts, strict=True):
        for branch in kind:
            heavy |= (branch.reach / branch.sigma) ** 2 > _HEAVY
            rest = math.exp(branch.p.log_rest) - math.exp(branch.q.log_rest)
            shares = np.exp(branch.p.log_weights), -np.exp(branch.q.log_weights)
            change = np.concatenate([[rest], *shares])
            means = np.concatenate([[0.0], branch.p.means, branch.q.means])
            each = change @ np.exp(np.outer(means, means) / branch.sigma**2) @ change
            variance += count * math.exp(branch.log_weight) * float(each)
    small = -query.log_delta if query.solve else 50.0
    smooth = math.inf
    if 0 < variance < math.inf:
        spread = math.sqrt(variance)
        far = math.sqrt(2 * small + 10) / spread if query.solve else query.epsilon / variance
        smooth = 1.3 * far + 4 / spread
    steep = math.inf
    for kind, count in zip(kinds, counts, strict=True):
        for branch in kind:
            reach = branch.reach_q if branch.back else branch.reach_p
            if reach == 0:
                continue
            row = branch.q if branch.back else branch.p
            top = float(row.log_weights[np.argmax(np.abs(row.means))])
            a = reach * reach / (2 * branch.sigma**2)
            room = 4 * a * (max(small - math.log(count), 0.0) + 10)
            turn = (a - top + math.sqrt((a - top) ** 2 + room)) / (2 * a) - 1
            steep = min(steep, max(turn, 0.0))
    return steep if heavy and steep < math.inf else min(smooth, steep)


def line_of(branch: Branch, low: float, high: float, step: float) -> Line:
    x = low + step * np.arange(int((high - low) / step) + 2)
    p, q = _ratio(branch.p, x, branch.sigma), _ratio(branch.q, x, branch.sigma)
    first, sign = (q, -1.0) if branch.back else (p, 1.0)
    loss = sign * (p.log - q.log)
    gauss = (0.5 / branch.sigma**2) * x * x
    log_mass = (
        first.log - gauss + (math.log(step / branch.sigma) - _LOG_SQRT_2PI + branch.log_weight)
    )
    return Line(
        x=x,
        step=step,
        loss=loss,
        log_mass=log_mass,
        loss_error=ULP * (p.rounding + q.rounding + np.abs(loss)),
        mass_error=ULP * (16 + 4 * gauss + first.rounding + 2 * np.abs(log_mass)),
        mean=(p.mean, q.mean),
        variance=(p.variance, q.variance),
        strip=_strip(branch, step),
    )


class _Ratio(NamedTuple):
    """log r of one mixture at x, [J]; its rounding, in ulp; mean and variance of the posterior of the shift."""

    log: Any
    rounding: Any
    mean: Any
    variance: Any


def _ratio(mixture: Mixture, x: np.ndarray, sigma: float) -> _Ratio:
    """Returns log r = log sum_k w_k e^(y_k), y_k = m_k (2x - m_k)/(2 sigma^2): see `_gaussian_pairs.ratios`."""
    if len(mixture.means) == 0:
        return _Ratio(0.0, 0.0, 0.0, 0.0)
    log_w, m = mixture.log_weights[:, None], mixture.means[:, None]
    y = (x * (1 / sigma**2) - m * (0.5 / sigma**2)) * m
    terms = y + log_w
    changes = np.expm1(np.minimum(y, 50.0)) * np.exp(log_w)
    excess = changes.sum(0)
    near = (np.abs(excess) < 0.5) & (y.max(0) < 50.0)
    top = np.maximum(terms.max(0), mixture.log_rest)
    total = np.exp(terms - top).sum(0) + np.exp(mixture.log_rest - top)
    log = np.where(near, np.log1p(excess), top + np.log(total))
    posterior = np.exp(terms - log)
    mean = mixture.means @ posterior
    variance = np.maximum((mixture.means**2) @ posterior - mean * mean, 0.0)
    # y is off by 4 ulp of its larger term, a log weight by 2 of itself; each moves log r by its posterior, but near 1
    # a weight moves it by its change only.
    larger = (np.abs(x) * (4 / sigma**2) + np.abs(m) * (2 / sigma**2)) * np.abs(m)
    weighing = 2 * np.abs(mixture.log_weights) + 8
    moved = (posterior * larger).sum(0)
    far = moved + weighing @ posterior + 4 + _rest_error(mixture, terms, log)
    close = moved + (weighing + 8) @ np.abs(changes)
    return _Ratio(log, 4 * np.abs(log) + np.where(near, close, far), mean, variance)


def _rest_error(mixture: Mixture, terms: np.ndarray, log: np.ndarray) -> Any:
    """Returns what the unshifted weight adds to the error of log r, in ulp: see `_gaussian_pairs._moved`."""
    if mixture.log_rest == -math.inf and mixture.unsure == 0:
        return 0.0
    error = -2 * max(mixture.log_rest, -1e300) * np.exp(mixture.log_rest - log)
    if mixture.unsure == 0:
        return error
    rest, shifted = math.exp(mixture.log_rest), logsumexp(terms, 0)
    low, high = max(rest - mixture.unsure, 0.0), rest + mixture.unsure
    ends = [np.logaddexp(shifted, math.log(end) if end > 0 else -math.inf) for end in (low, high)]
    return error + (ends[1] - ends[0]) / ULP


def coarse_line(branch: Branch, tilts: tuple[float, float]) -> Line | None:
    """Returns a line long enough for tilts between these; None if it has too many nodes."""
    sigma, far = branch.sigma, _FAR * branch.sigma
    exponents = [branch.exponents(t) for t in tilts]
    p, q = branch.reach_p, branch.reach_q
    right = max(max(b, 0.0) * p + max(-c, 0.0) * q for b, c in exponents) + branch.reach
    left = max(max(-b, 0.0) * p + max(c, 0.0) * q for b, c in exponents)
    # As fine as the cells want it, and as the rule does where a large negative exponent narrows the strip.
    ratio = (branch.reach / sigma) ** 2
    exponent = 1 + max(map(abs, tilts))
    step = sigma * min(
        _COARSE, _COARSE * sigma / branch.reach, _NARROW / math.sqrt(1 + exponent * ratio)
    )
    if not right + left + 2 * far <= _MOST_CELLS * step:
        return None
    return line_of(branch, -left - far, right + far, step)


def _strip(branch: Branch, step: float) -> Strip:
    s2 = branch.sigma**2
    top = _WIDEST * s2 / branch.reach
    low = 0.5 * min(branch.sigma, top)
    y = low * (top / low) ** _UNIT
    angle_p, angle_q = y * (branch.reach_p / s2), y * (branch.reach_q / s2)
    # 1/(e^z - 1) <= 2 e^-z for z >= log 2, which any useful one exceeds.
    decay = 2 * math.log(2.0) + y * y / (2 * s2) - (2 * math.pi / step) * y
    return Strip(decay, angle_p + angle_q, np.log(np.cos(angle_p)), np.log(np.cos(angle_q)))


def fine_step(branch: Branch, tilt: float, w: float) -> float:
    """Returns a step at which the rule's error is about e^-_DIGITS for frequencies up to w."""
    unit = _strip(branch, 1.0)
    y = unit.angle * branch.sigma**2 / (branch.reach_p + branch.reach_q)
    b, c = branch.exponents(tilt)
    log_a = unit.decay + 2 * math.pi * y + w * unit.angle
    log_a = log_a + min(b, 0.0) * unit.log_cos_p + min(c, 0.0) * unit.log_cos_q
    return float(np.max(2 * math.pi * y / (log_a + _DIGITS)))


def beyond_ends(branch: Branch, line: Line, log_f: np.ndarray) -> float:
    """Returns a bound on the mass that a line of full length leaves out, f in units of its nodes' masses."""
    share = branch.sigma / (_FAR * line.step)
    return share * float(np.exp(log_f[0]) + np.exp(log_f[-1]))


def moment_of(kind: list[Branch], lines: list[Line], tilt: float) -> Moment | None:
    """Returns the moment of one kind of step; None where it is not well known."""
    logs, errors = [], []
    for branch, line in zip(kind, lines, strict=True):
        log_f = line.log_mass + tilt * line.loss
        top = float(np.max(log_f))
        if not math.isfinite(top):
            return None
        f = np.exp(log_f - top)
        total = float(f.sum())
        rounding = float(f @ (line.mass_error + abs(tilt) * line.loss_error))
        log_size = top + math.log(total)
        outside = beyond_ends(branch, line, log_f - log_size)
        quadrature = line.strip.error(branch.exponents(tilt))
        if not quadrature < 1e-3:
            return None
        logs.append(log_size)
        errors.append(1.1 * quadrature + rounding / total + outside + len(f) * ULP)
    log_sizes = np.array(logs)
    top = float(log_sizes.max())
    share = np.exp(log_sizes - top)
    error = float(share @ np.array(errors)) / float(share.sum())
    if not error < 1e-3:
        return None
    return Moment(top + math.log(float(share.sum())), 1.1 * error, logs)
