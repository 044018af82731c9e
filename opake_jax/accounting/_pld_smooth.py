"""What does it cost, where losses have a density? Inversion of the law itself, without atoms.

Atoms bound a pair from both sides, but their characteristic function never dies out, and the smoothing that cuts
it off costs width. The loss of two mixtures of Gaussians has a density (`_smooth_lines`, whose letters are used
here): its characteristic function can be computed to the last digits, and beyond some frequency bounded once for
all. Both ends of the bracket then come from one function and differ by its errors alone: 1e-6 instead of 1e-4,
in a third of the time. Where the bounds below do not suffice (very few steps, rare jumps) there is no answer,
and `_pld_levels` asks the atoms.

Beyond the last frequency. Integrating by parts over x >= c, with the density g = f/l' of the loss,

    |integral over x >= c of f e^(iwl)| <= V_c/w,   V_c = g(c) + integral over x >= c of |g'|;

to the left of c there is at most the mass. So |E e^(iwL)| <= B(w) = 1 - R_c + V_c/w for every c, R_c the mass right of
c, and B falls with w. Moreover 1 - cos 2z <= 4 (1 - cos z): 1 - |E e^(iwL)|^2, a mean of 1 - cos w(L - L'), is at
least a quarter of itself at 2w, a sixteenth at 4w. Hence |E e^(ivL)|^2 <= 1 - (1 - B(2^k w)^2)/4^k for all v >= w
and every k. Of many steps a little less than 1 is enough: soon the T-th power is 0 to all purposes.

R_c is bounded from below and V_c from above by sums over cells of width h, in which log f and log g move away from
their values at the nearer end by at most (h/2) (the larger slope at the ends + (h/2) D), D a bound on their second
derivatives. With (log g)' = (log f)' - l''/l': variance and third central moment of a posterior on [0, M] are at
most M and M^2 times its mean, so that |l''/l'| <= M/sigma^2 and |(l''/l')'| <= 2 M^2/sigma^4. Right of the line, whose
end lies M further out than f asks for, g falls as well.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from opake_jax._numerics import NUFFT_ERROR, nufft
from opake_jax.accounting._pairs import ULP
from opake_jax.accounting._pld_bounds import Bounds, bounds_on
from opake_jax.accounting._pld_fourier import Law, Spectrum, StepSpectrum, compose
from opake_jax.accounting._pld_tilt import (
    Contour,
    Query,
    Rough,
    contour_on,
    follow_contour,
    rough_of,
)
from opake_jax.accounting._smooth_lines import (
    Branch,
    Line,
    Moment,
    beyond_ends,
    branches_of,
    coarse_line,
    fine_step,
    line_of,
    moment_of,
    most_tilt,
    supremum,
)

__all__ = ["Smooth", "smooth_of"]

_RARE = math.log(1e-9)  # of delta: what the branches may cost that hardly ever happen
_FEWEST = 4  # steps: of fewer the characteristic function dies out too slowly
_MOST_NODES = 2**15
_SOME, _NEAR = 128, 0.8  # nodes of which a contour is chosen, and how near, in sigma, they must be
_CUT = 1e-16  # of the tilted mass: what the fine nodes may leave out
_CLOSE = 1e-7  # of a divergence: its bracket's width
_BAND = 1e-6  # relative budget of delta for what lies beyond the last frequency
_DOUBLINGS, _PLACES = 8, 75  # factors 2^k that are tried, and places c
# Numbers of frequencies whose multiples have a fast Fourier transform.
_SIZES = [64 * k for k in (2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 20, 24, 30, 36, 40, 48, 60, 72)]
_SIZES += [64 * k for k in (80, 96, 108, 128)]
_ROUND = 1e-9  # allowance for rounding in the cells' sums, which are bounds to a few percent


class _Cells(NamedTuple):
    """Bounds over the cells of a coarse line, from each dot to the right, relative to the total E: [J]."""

    mass: np.ndarray  # R_c, from below
    variation: np.ndarray  # V_c, from above
    whole: float  # the branch's share of E
    ends: tuple[float, float]  # between them lies all but about _CUT
    left_out: float  # bound on what lies beyond them
    width: float  # of a cell


def smooth_of(kinds: Any, counts: np.ndarray, query: Query) -> "Smooth | None":
    """Returns the composition of these pairs, one for each kind of step; None where it is of no use here.

    The query only tells how far the lines must reach.
    """
    if counts.sum() < _FEWEST:
        return None
    branches = [branches_of(pair) for pair in kinds]
    if not all(branches):
        return None
    # A branch that hardly ever happens is an infinite loss: at the tilt that serves the others it would be all that counts.
    rare = query.log_delta + _RARE if query.solve else -math.inf
    log_infinity = -math.inf
    for r, (kind, count) in enumerate(zip(branches, counts, strict=True)):
        logs = [branch.log_weight + math.log(count) for branch in kind]
        branches[r] = [branch for branch, log in zip(kind, logs, strict=True) if log > rare]
        log_infinity = functools.reduce(np.logaddexp, [x for x in logs if x <= rare], log_infinity)
    if not all(branches):
        return None
    most = most_tilt(branches, counts, query)
    if not 0 < most < math.inf:
        return None
    known = -most - 1, 1.5 * most
    lines: list[list[Line]] = []
    for kind in branches:
        found = [coarse_line(branch, known) for branch in kind]
        lines.append([line for line in found if line is not None])
        if len(lines[-1]) < len(kind):
            return None
    return Smooth(
        branches, counts, lines, most, known, _some_nodes(branches, lines), float(log_infinity)
    )


def _some_nodes(
    branches: list[list[Branch]], lines: list[list[Line]], fewer: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Returns log masses and losses of every so many nodes, of which a contour is chosen, or of all."""
    kinds = []
    for kind, some in zip(branches, lines, strict=True):
        masses, losses = [], []
        for branch, line in zip(kind, some, strict=True):
            # Few, but as near as a trapezoid of the law needs them.
            stride = min(len(line.x) * len(some) // _SOME, int(_NEAR * branch.sigma / line.step))
            stride = max(stride, 1) if fewer else 1
            masses.append(line.log_mass[::stride] + math.log(stride))
            losses.append(line.loss[::stride])
        kinds.append((np.concatenate(masses), np.concatenate(losses)))
    size = max(len(mass) for mass, _ in kinds)
    mass, loss = np.full((len(kinds), size), -np.inf), np.zeros((len(kinds), size))
    for r, (some_mass, some_loss) in enumerate(kinds):
        mass[r, : len(some_mass)], loss[r, : len(some_loss)] = some_mass, some_loss
    return mass, loss


@dataclasses.dataclass(frozen=True)
class Smooth:
    """A composition of steps whose losses have densities.

    Attributes:
      branches: of each kind of step.
      counts: [R], how often each kind is taken.
      lines: coarse nodes of each branch.
      most: the largest tilt of use.
      known: the lines reach far enough for tilts between these.
      nodes: log masses and losses, [R, about _SOME] each.
      log_infinity: log of what all steps together leave out, an infinite loss.
      cache: moments found so far.
    """

    branches: list[list[Branch]]
    counts: np.ndarray
    lines: list[list[Line]]
    most: float
    known: tuple[float, float]
    nodes: tuple[np.ndarray, np.ndarray]
    log_infinity: float
    cache: dict[float, list[Moment | None]] = dataclasses.field(default_factory=dict)

    def answer(self, query: Query) -> tuple[Bounds, Contour] | None:
        """Returns the bounds and their contour; None where they would not be worth their while."""
        contour = self.contour(query)
        spectrum = self.spectrum_on(contour, 1.0)
        return (
            None if spectrum is None else (bounds_on(self.law(), query, contour, spectrum), contour)
        )

    def together(self, times: Any, query: Query) -> "list[Bounds] | None":
        """Returns the bounds after `times` repetitions, the largest first and no less than 1; one contour serves all."""
        first = self.repeated(times[0]).contour(query)
        found = self.spectrum(first)
        if found is None:
            return None
        answers = []
        for some in map(self.repeated, times):
            contour = follow_contour(first, some.rough(), query)
            spectrum = compose(found, some.counts, contour)
            answers.append(bounds_on(some.law(), query, contour, spectrum))
        return answers

    def repeated(self, times: float) -> "Smooth":
        """Returns `times` repetitions of all of it."""
        infinite = self.log_infinity + math.log(times)
        return dataclasses.replace(self, counts=self.counts * times, log_infinity=infinite)

    def rough(self) -> Rough:
        """Returns every so many nodes, of which a contour is chosen."""
        return rough_of(*self.nodes, self.counts)

    def fine(self) -> Rough:
        """Returns all nodes."""
        return rough_of(*_some_nodes(self.branches, self.lines, fewer=False), self.counts)

    def contour(self, query: Query) -> Contour:
        """Returns a contour for a query about delta."""
        return contour_on(self.rough(), query, self.most, self.inside)

    @property
    def inside(self) -> tuple[float, float]:
        """The tilts between which a contour may look."""
        return self.known[0] * (1 - 1e-9), self.known[1] * (1 - 1e-9)

    def spectrum_on(self, contour: Contour, sign: Any) -> Spectrum | None:
        """Returns the integrand for delta (sign 1) or 1 - delta (sign -1); None where it would not be worth it."""
        found = self.spectrum(contour)
        return None if found is None else compose(found, self.counts, contour, sign)

    def mass_errors(self) -> tuple[float, float]:
        """Returns by how much the mass exceeds 1 above, and falls short below."""
        return 0.0, math.exp(self.log_infinity) * (1 + _ROUND)

    @property
    def is_exact(self) -> bool:
        """Whether no mass and no loss was rounded up."""
        return not any(np.any(branch.excess > 0) for kind in self.branches for branch in kind)

    def spectrum(self, contour: Contour) -> StepSpectrum | None:
        """Returns what the inversion on this contour needs; None where it would not be worth its while."""
        tilt, window = float(contour.tilt), float(contour.window)
        low, high = self.known
        if not (low <= tilt - contour.left and tilt + contour.right <= high and window > 0):
            return None
        moments = [found for found in self._moments(tilt) if found and found.error < 1e-10]
        if len(moments) < len(self.branches):
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
        both: Any = [np.stack(x)[:, None] for x in zip(*rows, strict=True)]
        # Less mass by the same factor for all branches and less loss by the same amount are below the truth.
        excess = np.array([np.max([b.excess for b in kind], axis=0) for kind in self.branches])
        return StepSpectrum(*[*both, w, log_beyond, excess])

    def law(self) -> Law:
        """Returns what the answer needs beside the characteristic function; one law serves for both rows."""
        return Law(
            lambda tilt, side, row: self._moment(float(tilt), side),
            self.log_infinity + 8 * ULP,
            self._largest,
        )

    def reverse_law(self) -> Law:
        """Returns the same of the pairs (Q, P): E_Q e^(-t l) = E_P e^(-(1+t) l)."""
        return Law(
            lambda tilt, side, row: self._moment(-1 - float(tilt), side),
            self.log_infinity + 8 * ULP,
            lambda: math.inf,
        )

    def _moments(self, tilt: float) -> list[Moment | None]:
        if tilt not in self.cache:
            pairs = zip(self.branches, self.lines, strict=True)
            self.cache[tilt] = [moment_of(kind, some, tilt) for kind, some in pairs]
        return self.cache[tilt]

    def _moment(self, tilt: float, side: float) -> float:
        """Returns log E e^(tilt L), rounded to one side."""
        total = 0.0
        for found, count in zip(self._moments(tilt), self.counts, strict=True):
            if found is None or not self.known[0] <= tilt <= self.known[1]:
                return side * math.inf
            total += count * (found.log + side * (found.error + 8 * ULP * abs(found.log)))
        return total + side * 8 * ULP * abs(total)

    def larger_divergence(self, tilt: float) -> float | None:
        """Returns the Renyi divergence of order 1 + tilt, rounded up, of this law or its reverse, which is larger.

        None where it isn't known to _CLOSE of itself: a mass was rounded, an infinite loss left out, digits lost.
        """
        if not self.is_exact or self.log_infinity > -math.inf:
            return None
        low, up = (
            max(self._moment(tilt, side), self._moment(-1 - tilt, side)) for side in (-1.0, 1.0)
        )
        return up / tilt if up - low <= _CLOSE * low < math.inf else None

    def _largest(self) -> float:
        """Returns the largest loss of all steps together."""
        total = 0.0
        for kind, count in zip(self.branches, self.counts, strict=True):
            total += count * max(supremum(branch) for branch in kind)
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


def _cells_of(kind: list[Branch], lines: list[Line], total: Moment, tilt: float) -> list[_Cells]:
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
        spill = beyond_ends(branch, line, np.log(f))
        whole = math.exp(log_size - log_total) * (1 + _ROUND) + _ROUND
        ends, left_out = _ends(line, upper, spill)
        every.append(_Cells(mass, variation * (1 + _ROUND), whole, ends, left_out, line.step))
    return every


def _larger(values: np.ndarray) -> np.ndarray:
    """Returns the larger value at the two ends of each cell."""
    return np.maximum(values[1:], values[:-1])


def _ends(line: Line, upper: np.ndarray, spill: float) -> tuple[tuple[float, float], float]:
    """Returns dots between which all but about _CUT of the mass lies, and what may be beyond them, over whole cells."""
    left = spill + np.append(0.0, np.cumsum(upper))  # left of each dot
    right = spill + np.append(np.cumsum(upper[::-1])[::-1], 0.0)
    first = max(int(np.searchsorted(left, _CUT)) - 1, 0)
    last = min(len(right) - int(np.searchsorted(right[::-1], _CUT)), len(right) - 1)
    return (float(line.x[first]), float(line.x[last])), float(left[first] + right[last])


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
    kind: list[Branch], cells: list[_Cells], tilt: float, window: float, w: np.ndarray
) -> Any:
    """Returns the row of a `StepSpectrum` for one kind of step; None if there would be too many nodes."""
    last, lines = float(w[-1]), []
    for branch, some in zip(kind, cells, strict=True):
        step = fine_step(branch, tilt, last)
        low, high = some.ends
        if not high - low <= _MOST_NODES * step:
            return None
        lines.append(line_of(branch, low, high, step))
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
        line.strip.error(branch.exponents(tilt), last)
        for branch, line in zip(kind, lines, strict=True)
    )
    # What a line leaves out: as an integral, and as a sum of nodes, of which a cell of width H holds H/h + 1.
    left_out = sum(
        some.left_out * (2 + line.step / some.width)
        for some, line in zip(cells, lines, strict=True)
    )
    error = 2 * quadrature + left_out + len(weights) * ULP
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
