"""What does it cost, where losses have a density? Inversion of the law itself, without atoms.

Atoms bound a pair from both sides, but their characteristic function never dies out, and the smoothing that cuts
it off costs width. The loss l(x) = log p(x)/q(x) of two mixtures of Gaussians, x drawn from P, has a density:
its characteristic function can be computed to the last digits, and beyond some frequency bounded once for all. Both
ends of the bracket then come from one function and differ by its errors alone: 1e-6 instead of 1e-4, in a fraction
of the time. Where the bounds below do not suffice (few steps, rare jumps) there is no answer, and
`_pld_levels` asks the atoms.

With phi the density of N(0, sigma^2), r_P = p/phi and r_Q = q/phi, the tilted law is f(x) = phi r_P^b r_Q^c, up to its
total E: (b, c) = (1 + s, -s), or (-s, 1 + s) for the pair (Q, P). mu_P is the posterior mean of the shift under P,
in [0, M_P], mu_Q that under Q, in [-M_Q, 0]; M is the larger of M_P and M_Q.

    (log f)' = (-x + b mu_P + c mu_Q)/sigma^2,      l' = (mu_P - mu_Q)/sigma^2 > 0.

Quadrature. The trapezoidal rule of step h, on all of h Z, errs by at most 2 A/(e^(2 pi y/h) - 1) with A = integral of
|f(x + iy)|, for every y within the strip where f is analytic (Trefethen and Weideman 2014, "The exponentially
convergent trapezoidal rule", SIAM Review 56). Here r_P(x + iy) is a sum of numbers whose arguments lie in [0,
y M_P/sigma^2]: for y M/sigma^2 < pi it is not 0, its own argument lies there, |r_P| <= r_P(x), and |r_P| >=
r_P(x) cos(y M_P/sigma^2) for less than pi/2, which is needed where an exponent is negative. At s = t + iw,
A <= E e^(y^2/(2 sigma^2) + w y (M_P + M_Q)/sigma^2) cos(..)^(negative exponents).

Beyond the last frequency. Integrating by parts over x >= c, with the density g = f/l' of the loss,

    |integral over x >= c of f e^(iwl)| <= V_c/w,   V_c = g(c) + integral over x >= c of |g'|;

to the left of c there is at most the mass. So |E e^(iwL)| <= B(w) = 1 - R_c + V_c/w for every c, R_c the mass right of
c: decreasing in w. Moreover 1 - cos 2z <= 4 (1 - cos z), so that every characteristic function has 1 - |.|^2 at w of
at least a quarter of that at 2w, a sixteenth of that at 4w: |E e^(ivL)|^2 <= 1 - (1 - B(2^k w)^2)/4^k for all v >= w.
Of many steps a little less than 1 is enough: after few frequencies the T-th power is 0 to all purposes. R_c is bounded from below and V_c from above by sums over
cells of width h: in a cell log f and log g move away from the nearer end by at most (h/2) (the larger slope at its
ends + (h/2) times a bound on the second derivative). |l''/l'| <= M/sigma^2 and |l'''/l'| <= M^2/sigma^4, since
variance and third central moment of a posterior on [0, M] are at most M and M^2 times its mean.

Ends. Right of b+ M_P + c- M_Q (positive and negative parts) + M the slopes of f and g are negative, at least as the
distance over sigma^2; left of -(b- M_P + c+ M_Q) that of f is positive: the line is cut 9 sigma further out, and what
is left out is at most (sigma/9) f(end) on each side.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from opake_jax._numerics import NUFFT_ERROR, nufft
from opake_jax.accounting._gaussian_pairs import (
    GaussianMixturePair,
    Mixtures,
    limit_of,
    mixtures_of,
    ratios,
)
from opake_jax.accounting._pairs import ULP, MixturePair
from opake_jax.accounting._pld_fourier import Bounds, Law, StepSpectrum, bounds_on, compose
from opake_jax.accounting._pld_tilt import COARSE, Contour, Query, contour_on, rough_of

__all__ = ["Smooth", "is_reverse", "smooth_of"]

_FAR = 9.0  # standard deviations between the last mode and the end of the line
_COARSE = 0.1  # of min(sigma, sigma^2/M): width of the cells of the bounds
_NARROW = 0.7  # of the width of the integrand's peak in a strip: exp(-2 pi^2/0.7^2) = 3e-18
_MOST_CELLS, _MOST_NODES, _MOST_FREQUENCIES = 8192, 8192, 8192
_CUT = 1e-16  # of the tilted mass: what the fine nodes may leave out
_DIGITS = 33.0  # e^-33: what quadrature aims at
_DOUBLINGS, _PLACES = 12, 150  # factors 2^k that are tried, and places c
_BAND = 1e-6  # relative budget of delta for what lies beyond the last frequency
_HEAVY = 6.0  # (M/sigma)^2: above, rare large losses rule the variance
_FEWEST = 4  # steps: of fewer the characteristic function dies out too slowly
# Numbers of frequencies whose multiples have a fast Fourier transform.
_SIZES = [64 * k for k in (2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 20, 24, 30, 36, 40, 48, 60, 72)]
_SIZES += [64 * k for k in (80, 96, 108, 128)]
_ROUND = 1e-9  # allowance for rounding in the cells' sums, which are bounds to a few percent
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class _Branch(NamedTuple):
    """One of the pairs a step may be, with its log probability."""

    mixtures: Mixtures
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


class _Line(NamedTuple):
    """Nodes x, [J], of distance h; under P, times the branch's probability."""

    x: np.ndarray
    step: float
    loss: np.ndarray
    log_mass: np.ndarray  # of h times the density
    loss_error: np.ndarray
    mass_error: np.ndarray
    mean: np.ndarray  # [2, J]: mu_P, mu_Q
    variance: np.ndarray  # [2, J], of the posteriors
    strip: "_Strip"


class _Strip(NamedTuple):
    """Half-widths y of strips, [Y], where the integrand is analytic whatever the exponents' signs."""

    decay: np.ndarray  # log(2 A/E) - 2 pi y/h, but for the factors that follow
    angle: np.ndarray  # y (M_P + M_Q)/sigma^2: times w
    log_cos_p: np.ndarray  # times a negative b
    log_cos_q: np.ndarray  # times a negative c

    def log_error(self, exponents: tuple[float, float], w: float = 0.0) -> float:
        """Returns the log of a bound on the rule's relative error."""
        b, c = exponents
        each = self.decay + w * self.angle
        if b < 0:
            each = each + b * self.log_cos_p
        if c < 0:
            each = each + c * self.log_cos_q
        return float(each.min())


class _Moment(NamedTuple):
    """log E e^(tilt L) of one step, a bound on its error, and the same of each branch."""

    log: float
    error: float
    branches: list[float]


class _Cells(NamedTuple):
    """Bounds over the cells of a coarse line, from each dot to the right, relative to the total E: [J]."""

    mass: np.ndarray  # R_c, from below
    variation: np.ndarray  # V_c, from above
    whole: float  # the branch's share of E
    ends: tuple[float, float]  # between them lies all but about _CUT
    left_out: float  # bound on what lies beyond them, as an integral or as a sum of nodes


def smooth_of(kinds: Any, counts: np.ndarray, query: Query) -> "Smooth | None":
    """Returns the composition of these pairs, one for each kind of step; None where it is of no use here.

    The query only tells how far the lines must reach.
    """
    if counts.sum() < _FEWEST:
        return None
    branches = [_branches(pair) for pair in kinds]
    if not all(branches):
        return None
    most = _most_tilt(branches, counts, query)
    if not 0 < most < math.inf:
        return None
    known = -most - 1, 1.5 * most
    lines = [[_coarse_line(branch, known) for branch in kind] for kind in branches]
    if any(line is None for kind in lines for line in kind):
        return None
    return Smooth(branches, counts, lines, most, known)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Smooth:
    """A composition of steps whose losses have densities.

    Attributes:
      branches: of each kind of step.
      counts: [R], how often each kind is taken.
      lines: coarse nodes of each branch.
      most: the largest tilt of use.
      known: the lines reach far enough for tilts between these.
      cache: moments found so far.
    """

    branches: list[list[_Branch]]
    counts: np.ndarray
    lines: list[list[_Line]]
    most: float
    known: tuple[float, float]
    cache: dict[float, list[_Moment | None]] = dataclasses.field(default_factory=dict)

    def answer(self, query: Query) -> tuple[Bounds, Contour] | None:
        """Returns the bounds and their contour; None where they would not be worth their while."""
        contour = self.contour(query)
        found = self.spectrum(contour)
        if found is None:
            return None
        return bounds_on(self.law(), query, contour, compose(found, self.counts, contour)), contour

    def contour(self, query: Query) -> Contour:
        """Returns a contour for a query about delta."""
        size = max(sum(len(line.x) for line in kind) for kind in self.lines)
        stride = -(-size // COARSE)
        mass = np.full((len(self.lines), -(-size // stride) + 4), -np.inf)
        loss = np.zeros(mass.shape)
        for r, kind in enumerate(self.lines):
            some = np.concatenate([line.log_mass[::stride] for line in kind])
            mass[r, : len(some)] = some + math.log(stride)
            loss[r, : len(some)] = np.concatenate([line.loss[::stride] for line in kind])
        return contour_on(
            rough_of(mass, loss, self.counts),
            query,
            self.most,
            (self.known[0] * (1 - 1e-9), self.known[1] * (1 - 1e-9)),
        )

    def spectrum(self, contour: Contour) -> StepSpectrum | None:
        """Returns what the inversion on this contour needs; None where it would not be worth its while."""
        tilt, window = float(contour.tilt), float(contour.window)
        low, high = self.known
        if not (low <= tilt - contour.left and tilt + contour.right <= high and window > 0):
            return None
        moments = self._moments(tilt)
        if not all(found is not None and found.error < 1e-10 for found in moments):
            return None
        cells = [
            _cells_of(*each, tilt) for each in zip(self.branches, self.lines, moments, strict=True)
        ]
        found = self._band(cells, window, float(contour.size))
        if found is None:
            return None
        frequencies, log_beyond = found
        w = (2 * math.pi / window) * np.arange(frequencies)
        rows = []
        for kind, some in zip(self.branches, cells, strict=True):
            row = _characteristic(kind, some, tilt, window, w)
            if row is None:
                return None
            rows.append(row)
        both: Any = [np.repeat(np.stack(x)[:, None], 2, axis=1) for x in zip(*rows, strict=True)]
        # Less mass by the same factor for all branches and less loss by the same amount are below the truth.
        excess = np.array([np.max([b.excess for b in kind], axis=0) for kind in self.branches])
        return StepSpectrum(*both, w, log_beyond, excess)

    def law(self) -> Law:
        """Returns what the answer needs beside the characteristic function; one law serves for both rows."""
        return Law(
            lambda tilt, side, row: self._moment(float(tilt), side), -math.inf, self._largest()
        )

    def reverse_law(self) -> Law:
        """Returns the same of the pairs (Q, P): E_Q e^(-t l) = E_P e^(-(1+t) l)."""
        return Law(
            lambda tilt, side, row: self._moment(-1 - float(tilt), side), -math.inf, math.inf
        )

    def _moments(self, tilt: float) -> list[_Moment | None]:
        if tilt not in self.cache:
            pairs = zip(self.branches, self.lines, strict=True)
            self.cache[tilt] = [_moment_of(kind, some, tilt) for kind, some in pairs]
        return self.cache[tilt]

    def _moment(self, tilt: float, side: float) -> float:
        """Returns log E e^(tilt L), rounded to one side."""
        total = 0.0
        for found, count in zip(self._moments(tilt), self.counts, strict=True):
            if found is None or not self.known[0] <= tilt <= self.known[1]:
                return side * math.inf
            total += count * (found.log + side * (found.error + 8 * ULP * abs(found.log)))
        return total + side * 8 * ULP * abs(total)

    def _largest(self) -> float:
        """Returns the largest loss of all steps together."""
        total = 0.0
        for kind, count in zip(self.branches, self.counts, strict=True):
            total += count * max(_supremum(branch) for branch in kind)
        return total * (1 + 8 * ULP) if total > 0 else total

    def _band(self, cells: Any, window: float, size: float) -> tuple[int, np.ndarray] | None:
        """Returns how many frequencies are enough, and the logs of the bounds beyond them, [R]."""
        last = (2 * math.pi / window) * (np.array(_SIZES) - 1.0)
        logs = np.stack([_log_beyond(some, last) for some in cells])
        enough = self.counts @ logs <= np.log(_BAND * size * math.pi * last)
        if not enough.any():
            return None
        index = int(np.argmax(enough))
        return _SIZES[index], logs[:, index]


def is_reverse(pair: Any, other: Any) -> bool:
    """Returns True if the other pair is this one exchanged, or has its losses (Gaussians of one distance do)."""
    if isinstance(pair, MixturePair) and isinstance(other, MixturePair):
        same = np.array_equal(pair.weights, other.weights)
        return same and all(map(is_reverse, pair.pairs, other.pairs))
    if not (isinstance(pair, GaussianMixturePair) and isinstance(other, GaussianMixturePair)):
        return False
    if pair is other:  # one pair for both directions
        return True
    back = pair.reversed()
    leaves = zip(jax.tree.leaves(back), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in leaves)


def _branches(pair: Any) -> list[_Branch]:
    """Returns the branches of a pair of mixtures of Gaussians, or of several such; none for another pair."""
    if isinstance(pair, MixturePair):
        some = []
        for b, inner in enumerate(pair.pairs):
            weight = float(pair.weights[b])
            if weight == 0:
                continue
            one = _branches(inner)
            if len(one) != 1:
                return []
            excess = np.asarray(pair.excess, np.float64)[:, b]
            some.append(one[0]._replace(log_weight=math.log(weight), excess=excess))
        return some
    if not isinstance(pair, GaussianMixturePair):
        return []
    mixtures = mixtures_of(pair)
    there = mixtures.log_weights > -np.inf
    reach_p = float(np.max(np.where(there[0], mixtures.means, 0.0)))
    reach_q = float(np.max(np.where(there[1], -mixtures.means, 0.0)))
    sigma = float(mixtures.sigma)
    fits = 0 < max(reach_p, reach_q) < math.inf and 0 < sigma < math.inf
    back = float(pair.reverse) > 0.5
    branch = _Branch(mixtures, 0.0, back, reach_p, reach_q, sigma, np.zeros(2))
    return [branch] if fits else []


def _supremum(branch: _Branch) -> float:
    """Returns the largest loss of a branch, rounded up."""
    side = -1.0 if branch.back else 1.0
    return side * float(limit_of(branch.mixtures, side))


def _line(branch: _Branch, low: float, high: float, step: float) -> _Line:
    x = low + step * np.arange(int((high - low) / step) + 2)
    log_ratio, posterior, rounding, _ = ratios(branch.mixtures, x)
    first, sign = (1, -1.0) if branch.back else (0, 1.0)
    loss = sign * (log_ratio[0] - log_ratio[1])
    gauss = 0.5 * (x / branch.sigma) ** 2
    log_mass = log_ratio[first] - gauss + math.log(step / branch.sigma) - _LOG_SQRT_2PI
    log_mass = log_mass + branch.log_weight
    means = branch.mixtures.means[1:]
    mean = posterior @ means
    return _Line(
        x=x,
        step=step,
        loss=loss,
        log_mass=log_mass,
        loss_error=ULP * (rounding.sum(0) + np.abs(loss)),
        mass_error=ULP * (16 + 4 * gauss + rounding[first] + 2 * np.abs(log_mass)),
        mean=mean,
        variance=np.maximum(posterior @ (means * means) - mean * mean, 0.0),
        strip=_strip(branch, step),
    )


def _most_tilt(kinds: list[list[_Branch]], counts: np.ndarray, query: Query) -> float:
    """Returns about the largest tilt that a query needs: beyond the saddle point, not far past a phase transition.

    Below it the loss is about normal, of variance v = E_Q (r_P - r_Q)^2 a step. Where one step's largest shift
    takes over, K turns up steeply, and tilts beyond are of no use.
    """
    variance, heavy = 0.0, False
    for kind, count in zip(kinds, counts, strict=True):
        for branch in kind:
            heavy |= (branch.reach / branch.sigma) ** 2 > _HEAVY
            weights, means = np.exp(branch.mixtures.log_weights), branch.mixtures.means
            change = weights[0] - weights[1]
            each = change @ np.exp(np.outer(means, means) / branch.sigma**2) @ change
            variance += count * math.exp(branch.log_weight) * float(each)
    small = -query.log_delta if query.solve else 50.0
    tilt = math.inf
    if not heavy and 0 < variance < math.inf:
        spread = math.sqrt(variance)
        far = math.sqrt(2 * small + 10) / spread if query.solve else query.epsilon / variance
        tilt = 1.3 * far + 4 / spread
    for kind, count in zip(kinds, counts, strict=True):
        for branch in kind:
            reach = branch.reach_q if branch.back else branch.reach_p
            if reach == 0:
                continue
            row = branch.mixtures.log_weights[1 if branch.back else 0]
            top = float(row[np.argmax(np.abs(branch.mixtures.means) * (row > -np.inf))])
            a = reach * reach / (2 * branch.sigma**2)
            room = 4 * a * (max(small - math.log(count), 0.0) + 10)
            turn = (a - top + math.sqrt((a - top) ** 2 + room)) / (2 * a) - 1
            tilt = min(tilt, max(turn, 0.0))
    return tilt


def _coarse_line(branch: _Branch, tilts: tuple[float, float]) -> _Line | None:
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
    return _line(branch, -left - far, right + far, step)


_UNIT = np.linspace(0.0, 1.0, 24)


def _strip(branch: _Branch, step: float) -> _Strip:
    s2 = branch.sigma**2
    top = 1.55 * s2 / branch.reach
    low = 0.5 * min(branch.sigma, top)
    y = low * (top / low) ** _UNIT
    angle_p, angle_q = y * (branch.reach_p / s2), y * (branch.reach_q / s2)
    # 1/(e^z - 1) <= 2 e^-z for z >= log 2, which any useful one exceeds.
    decay = 2 * math.log(2.0) + y * y / (2 * s2) - (2 * math.pi / step) * y
    return _Strip(decay, angle_p + angle_q, np.log(np.cos(angle_p)), np.log(np.cos(angle_q)))


def _fine_step(branch: _Branch, tilt: float, w: float) -> float:
    """Returns a step at which the rule's error is about e^-_DIGITS for frequencies up to w."""
    unit = _strip(branch, 1.0)
    y = unit.angle * branch.sigma**2 / (branch.reach_p + branch.reach_q)
    b, c = branch.exponents(tilt)
    log_a = unit.decay + 2 * math.pi * y + w * unit.angle
    log_a = log_a + min(b, 0.0) * unit.log_cos_p + min(c, 0.0) * unit.log_cos_q
    return float(np.max(2 * math.pi * y / (log_a + _DIGITS)))


def _beyond_ends(branch: _Branch, line: _Line, log_f: np.ndarray) -> float:
    """Returns a bound on the mass that a line of full length leaves out, f in units of its nodes' masses."""
    share = branch.sigma / (_FAR * line.step)
    return share * float(np.exp(log_f[0]) + np.exp(log_f[-1]))


def _moment_of(kind: list[_Branch], lines: list[_Line], tilt: float) -> _Moment | None:
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
        outside = _beyond_ends(branch, line, log_f - log_size)
        quadrature = math.exp(min(line.strip.log_error(branch.exponents(tilt)), 0.0))
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
    return _Moment(top + math.log(float(share.sum())), 1.1 * error, logs)


def _cells_of(kind: list[_Branch], lines: list[_Line], total: _Moment, tilt: float) -> list[_Cells]:
    """Returns the bounds over cells, for each branch."""
    log_total = total.log
    every = []
    for branch, line, log_size in zip(kind, lines, total.branches, strict=True):
        b, c = branch.exponents(tilt)
        s2, half = branch.sigma**2, line.step / 2
        slope_f = (-line.x + b * line.mean[0] + c * line.mean[1]) / s2
        # l'; where it underflows g is not bounded, and no cell to the left of there is used.
        rate = (line.mean[0] - line.mean[1]) / s2
        bend = (line.variance[0] - line.variance[1]) / (s2 * s2)
        slope_g = slope_f - bend / np.where(rate > 0, rate, np.nan)
        second = (
            1 + (abs(b) * branch.reach_p**2 + abs(c) * branch.reach_q**2) / (4 * s2)
        ) / s2 + 2 * (branch.reach / s2) ** 2
        f = np.exp(line.log_mass + tilt * line.loss - log_total)
        g = f / (line.step * rate)
        steep_f = half * (_larger(np.abs(slope_f)) + half * second)
        steep_g = half * (_larger(np.abs(slope_g)) + half * second)
        lower = np.minimum(f[1:], f[:-1]) * np.exp(-steep_f)
        upper = _larger(f) * np.exp(np.minimum(steep_f, 700.0))
        varies = 2 * steep_g * _larger(g) * np.exp(np.minimum(steep_g, 700.0))
        mass = np.append(np.cumsum(lower[::-1])[::-1], 0.0) * (1 - _ROUND)
        variation = np.append(np.cumsum(varies[::-1])[::-1], 0.0) + g + g[-1]
        spill = _beyond_ends(branch, line, np.log(f))
        whole = math.exp(log_size - log_total) * (1 + _ROUND) + _ROUND
        ends, left_out = _ends(line, upper, spill)
        every.append(_Cells(mass, variation * (1 + _ROUND), whole, ends, left_out))
    return every


def _larger(values: np.ndarray) -> np.ndarray:
    """Returns the larger value at the two ends of each cell."""
    return np.maximum(values[1:], values[:-1])


def _ends(line: _Line, upper: np.ndarray, spill: float) -> tuple[tuple[float, float], float]:
    """Returns dots between which all but about _CUT of the mass lies, and what may be beyond them."""
    left = spill + np.append(0.0, np.cumsum(upper))  # left of each dot
    right = spill + np.append(np.cumsum(upper[::-1])[::-1], 0.0)
    first = max(int(np.searchsorted(left, _CUT)) - 1, 0)
    last = min(len(right) - int(np.searchsorted(right[::-1], _CUT)), len(right) - 1)
    # Nodes at distance h <= H in a cell of width H: at most H/h + 1 of them.
    return (float(line.x[first]), float(line.x[last])), 2 * float(left[first] + right[last])


def _log_beyond(kind: list[_Cells], w: np.ndarray) -> np.ndarray:
    """Returns the log of a bound on |E e^(iv L)| under the tilted law, for all v >= w: [W] each, at most 0."""
    scales = 2.0 ** np.arange(_DOUBLINGS)
    at = np.outer(scales, w).ravel()
    total = np.zeros(at.shape)
    for cells in kind:
        places = np.flatnonzero(np.isfinite(cells.variation))
        places = places[:: 1 + len(places) // _PLACES]
        left = np.maximum(cells.whole - cells.mass[places], 0.0)
        reach = left + cells.variation[places] / at[:, None]
        total += np.min(reach, axis=1, initial=cells.whole)
    short = np.maximum(1 - total * total, 0.0).reshape(len(scales), len(w))
    return 0.5 * np.log1p(-np.max(short / scales[:, None] ** 2, axis=0) * (1 - _ROUND))


def _characteristic(
    kind: list[_Branch], cells: list[_Cells], tilt: float, window: float, w: np.ndarray
) -> Any:
    """Returns the row of a `StepSpectrum` for one kind of step; None if there would be too many nodes."""
    last, lines = float(w[-1]), []
    for branch, some in zip(kind, cells, strict=True):
        step = _fine_step(branch, tilt, last)
        low, high = some.ends
        if not high - low <= _MOST_NODES * step:
            return None
        lines.append(_line(branch, low, high, step))
    loss, log_mass, loss_error, mass_error = (
        np.concatenate([getattr(line, name) for line in lines])
        for name in ("loss", "log_mass", "loss_error", "mass_error")
    )
    log_f = log_mass + tilt * loss
    top = float(np.max(log_f))
    log_total = top + math.log(float(np.exp(log_f - top).sum()))
    weights = np.exp(log_f - log_total)
    mean = float(weights @ loss)
    away = loss - mean
    real, imag = nufft(weights[None], (away / window)[None], len(w))
    quadrature = max(
        math.exp(min(line.strip.log_error(branch.exponents(tilt), last), 0.0))
        for branch, line in zip(kind, lines, strict=True)
    )
    # What the line leaves out: as an integral, and as a sum of the rule's nodes.
    error = 2 * quadrature + 2 * sum(some.left_out for some in cells) + len(weights) * ULP
    error += float(weights @ (mass_error + abs(tilt) * loss_error))
    moved = float(weights @ loss_error) + 4 * ULP * float(weights @ np.abs(away))
    off = NUFFT_ERROR + 2 * error + moved * w
    modulus = np.hypot(real[0], imag[0]) + off
    return (
        log_total,
        mean,
        2 * error,
        np.log(modulus),
        np.arctan2(imag[0], real[0]),
        2 * off / modulus,
    )
