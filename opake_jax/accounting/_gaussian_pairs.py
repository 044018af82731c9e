"""Atoms of mixtures of Gaussians: Gaussian, Poisson-subsampled, parallel, replace-one, fixed-size.

P and Q are mixtures of N(m, sigma^2), with means m >= 0 in P and m <= 0 in Q, so that the loss l(x) =
log p(x)/q(x) increases in x. The line is cut at dots x_0 < ... < x_{M-1}. In one cell [x_j, x_j + d], with t = x - x_j,

    phi(x)/phi(x_j) = exp(-t (2 x_j + t)/(2 sigma^2)) =: e(t),
    r_P(x)/r_P(x_j) = 1 + U_P(t),   U_P(t) = sum_k pi_k expm1(m_k t/sigma^2),

where phi is the density of N(0, sigma^2), r_P = p/phi, and pi_k are the posterior probabilities of the components
at x_j; likewise Q. U_P >= 0 >= U_Q, so that their difference never cancels. With
A = integral of e (U_P - U_Q), m_Q = integral of e (1 + U_Q), m_P = m_Q + A:

Lower atoms (garbling). The cell as a whole has masses P_j = p(x_j) m_P and Q_j = q(x_j) m_Q; reporting only the
cell is a post-processing of x, so that the pair (P_j), (Q_j) is dominated by (P, Q). Its loss is l(x_j) +
log1p(A/m_Q).

Upper atoms (connect the dots; Doroshenko et al. 2022, arXiv:2207.04380). h(a) = H_a(P || Q) is convex in a
and determines everything; its chords between the dots a_j = e^l(x_j) lie above it. The pair whose h is
piecewise linear splits the mass of a cell between its two ends such that the P-mass and the Q-mass of the
cell both stay: with D = e^(l(x_{j+1}) - l(x_j)) - 1, the right end gets A/D of Q and (1 + D) A/D
of P, the left one m_Q - A/D of both (in units of q(x_j) and p(x_j)). P-mass left of x_0 moves up to l(x_0).
P-mass right of the last dot moves up to the supremum of the loss, or to an infinite one.

The pair (Q, P) uses the same cells with -l and the other masses.

Quadrature. Gauss-Legendre with n nodes on f errs by f^(2n) d^(2n+1) (n!)^4/((2n+1) (2n)!^3). For a Gaussian f,
f^(2n) = sigma^-2n He_2n(z) f and |He_2n(z)| = |E (z + iN)^2n| <= (|z| + (E N^2n)^(1/2n))^2n. A and D
are integrals over s in [0, m] of t e(t) e^(s t/sigma^2), whose derivative of order 2n is that with one factor t, plus 2n
times one order less. With y = (d/sigma)(max |z| + 2), at both ends and all components, the relative error of each
integral is at most C (y^2n + 2n y^(2n-1)) e^(2y), C = 2 (n!)^4/((2n+1) (2n)!^3). It is added outward.
Cells too wide for this (y > 3) get, above, width times the largest density, at their right end, and nothing below.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from opake_jax._numerics import log_ndtr, logsumexp, tail_quantile, xp
from opake_jax.accounting._pairs import ULP, Atoms, Tails

__all__ = ["GaussianMixturePair", "JointPair", "Mixtures", "limit_of", "mixtures_of", "ratios"]

_COUNT = 5
_NODES, _WEIGHTS = (a / 2 for a in np.polynomial.legendre.leggauss(_COUNT))
_NODES = _NODES + 0.5
_N2 = 2 * _COUNT
_QUADRATURE = 2 * math.factorial(_COUNT) ** 4 / ((_N2 + 1) * math.factorial(_N2) ** 3)
_HERMITE = 2.0  # (E N^10)^(1/10) = (9!!)^(1/10) = 1.98
_WIDEST = 3.0  # there the quadrature's relative error is bounded by 1e-4
_NEAR = 0.1  # of the supremum: with q/sigma below it, as much again of the tilt's exponent
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class Mixtures(NamedTuple):
    """P and Q over one list of means: log weights [2, 1+K] (row 0: P), the unshifted component first."""

    log_weights: xp.Array
    means: xp.Array  # [1+K]
    sigma: xp.Array
    unsure: xp.Array  # [2]: by how much the unshifted weight may be wrong


class _Cells(NamedTuple):
    """Dots and cells of (P, Q), in logs; the masses are bounded outward."""

    loss: xp.Array  # [M], at the dots
    loss_error: xp.Array  # [M]
    up: xp.Array  # [S, M], connect-the-dots masses under the chosen sides (0: P, 1: Q)
    cell_loss: xp.Array  # [M-1]
    cell_error: xp.Array  # [M-1]
    low: xp.Array  # [S, M-1], cell masses


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GaussianMixturePair:
    """Two mixtures of Gaussians of one width, the mixture under P to the right.

    P = (1 - sum_k p_weights[k]) N(0, sigma^2) + sum_k p_weights[k] N(p_means[k], sigma^2), Q likewise.

    Attributes:
      p_weights: [K], probabilities of the shifted components; their sum is at most 1.
      p_means: [K], at least 0.
      q_weights: [J], the same under Q (J = 0: Q = N(0, sigma^2)).
      q_means: [J], at most 0.
      sigma: positive standard deviation.
      reverse: 0, or 1 for the pair (Q, P). A number, so that both directions share one compilation.
      log_rest: [2], logs of the unshifted weights of P and Q; None: what is missing to 1, as far as the sum's rounding
        tells.
    """

    p_weights: Any
    p_means: Any
    q_weights: Any
    q_means: Any
    sigma: Any
    reverse: Any = 0.0
    log_rest: Any = None

    def reversed(self) -> "GaussianMixturePair":
        """Returns the pair (Q, P)."""
        return dataclasses.replace(self, reverse=1.0 - self.reverse)

    def atoms(self, size: int, tails: Tails) -> Atoms:
        """Returns `size - 1` dots and a supremum above, `size - 2` cells below; see the head of this file."""
        mixtures = mixtures_of(self)
        back = xp.asarray(self.reverse) > 0.5
        sign = xp.where(back, -1.0, 1.0)
        first = xp.where(back, mixtures.log_weights[1], mixtures.log_weights[0])
        # The loss is bounded at its high end where the outermost components of P and Q there agree: then
        # nothing needs an infinite loss.
        top = sign * limit_of(mixtures, sign)
        levels = xp.stack([xp.asarray(tails.high), xp.asarray(tails.low)])
        sides = xp.stack([sign, -sign])  # high losses, low losses
        ends = _edges(first, mixtures, levels, sides)
        above, below = _masses_beyond(first, mixtures, ends, sides)
        left, right = xp.min(ends), xp.max(ends)
        dots = left + (right - left) * xp.linspace(0.0, 1.0, size - 1)
        cells = _cells(mixtures, dots, xp.where(back, 1, 0)[None])
        # Low losses beyond the end join the lowest atom; high ones the supremum, or infinity.
        mass = cells.up[0]
        # Infinity is the better one where the supremum is far off (large sigma: it is -log(1-q), the losses are of
        # order q/sigma, and e^(tilt loss) would make the little mass there all that counts); either dominates.
        highest = xp.max(sign * cells.loss)
        bounded = xp.isfinite(top) & (top - highest <= _NEAR * xp.abs(top))
        lowest = xp.where(back, size - 2, 0)
        mass = xp.set_at(mass, lowest, xp.logaddexp(mass[lowest], below) + ULP)
        up_mass = xp.append(mass, xp.where(bounded, above, -xp.inf))
        up_loss = xp.append(sign * cells.loss + cells.loss_error, xp.where(bounded, top, 0.0))
        low_mass = cells.low[0]
        low_loss = sign * cells.cell_loss - cells.cell_error
        return Atoms(
            xp.stack([up_mass, _pad(low_mass, size, -xp.inf)]),
            xp.stack([up_loss, _pad(low_loss, size, 0.0)]),
            xp.where(bounded, -xp.inf, above),
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class JointPair:
    """Both directions at once: H_a of a pair for a >= 1, of its reverse for a < 1.

    For sampling without replacement under REPLACE_ONE (Zhu, Dong, Wang 2022): composing the directions apart and
    taking the maximum is not a bound. The pair has one shifted component, (1-q) N(0) + q N(m) against
    N(0); its loss is 0 at x = m/2. Right of m/2 lie the losses above 0 with their masses under P, and the
    losses below 0 of the reverse with their masses under N(0). The slope of H_a jumps at a = 1 by (1-q)
    (Phi(m/2 sigma) - Phi(-m/2 sigma)): an atom of loss 0.

    Attributes:
      pair: GaussianMixturePair with K = 1 and J = 0, not reversed.
    """

    pair: GaussianMixturePair

    def atoms(self, size: int, tails: Tails) -> Atoms:
        """Returns `size` atoms: half for each sign of the loss, and one at 0."""
        mixtures = mixtures_of(self.pair)
        share = (size - 1) // 2
        sigma, middle = mixtures.sigma, mixtures.means[1] / 2
        level = xp.minimum(tails.high, tails.low)[None]
        right = _edges(mixtures.log_weights[0], mixtures, level, xp.ones(1))
        right = xp.maximum(right, middle + 8 * sigma)
        dots = middle + (right - middle) * xp.linspace(0.0, 1.0, share)
        cells = _cells(mixtures, dots, xp.arange(2))
        above = _masses_beyond(mixtures.log_weights[0], mixtures, right, xp.ones(1))[0]
        below = log_ndtr(-right[0] / sigma) + 8 * ULP  # the reverse's lowest losses, under N(0)
        reverse_up = xp.set_at(cells.up[1], -1, xp.logaddexp(cells.up[1, -1], below) + ULP)
        rest = mixtures.log_weights[0, 0]
        jump = rest + xp.log(xp.erf(middle / sigma / math.sqrt(2.0)))
        error = 16 * ULP * (1 + xp.where(rest > -xp.inf, xp.abs(rest), 0.0))
        up_mass = xp.concatenate([cells.up[0], reverse_up, (jump + error)[None]])
        up_loss = xp.concatenate([cells.loss, -cells.loss]) + xp.tile(cells.loss_error, 2)
        low_mass = xp.concatenate([cells.low[0], cells.low[1], (jump - error)[None]])
        low_loss = xp.concatenate([cells.cell_loss, -cells.cell_loss]) - xp.tile(
            cells.cell_error, 2
        )
        return Atoms(
            xp.stack([_pad(up_mass, size, -xp.inf), _pad(low_mass, size, -xp.inf)]),
            xp.stack([_pad(up_loss, size, 0.0), _pad(low_loss, size, 0.0)]),
            above,
        )


def mixtures_of(pair: GaussianMixturePair) -> Mixtures:
    p, p_means, q, q_means, sigma = (
        xp.asarray(leaf, xp.float64)
        for leaf in (pair.p_weights, pair.p_means, pair.q_weights, pair.q_means, pair.sigma)
    )
    weights = xp.stack(
        [xp.concatenate([p, xp.zeros_like(q)]), xp.concatenate([xp.zeros_like(p), q])]
    )
    total = xp.sum(weights, 1)
    small = total < 0.5
    rest = _log(xp.maximum(1 - total, 0.0))
    log_rest = xp.where(small, xp.log1p(-xp.where(small, total, 0.0)), rest)
    # A sum of weights is off by an ulp of each but one.
    unsure = ULP * xp.maximum(xp.sum(weights > 0, 1) - 1.0, 0.0)
    if pair.log_rest is not None:
        log_rest, unsure = xp.asarray(pair.log_rest, xp.float64), xp.zeros(2)
    means = xp.concatenate([xp.zeros(1), p_means, q_means])
    log_weights = xp.concatenate([log_rest[:, None], _log(weights)], 1)
    return Mixtures(log_weights, means, sigma, unsure)


def _log(x: xp.Array) -> xp.Array:
    """Returns log x, -inf at 0 with a derivative of 0; NaN stays."""
    zero = x == 0
    return xp.where(zero, -xp.inf, xp.log(xp.where(zero, 1.0, x)))


def _pad(values: xp.Array, size: int, fill: float) -> xp.Array:
    return xp.pad(values, size - values.shape[0], fill)


def _edges(log_weights: Any, mixtures: Mixtures, levels: Any, sides: Any) -> xp.Array:
    """Returns x beyond which, on its side, the mixture has at most about e^level of mass; [S] each."""
    there = log_weights > -xp.inf
    share = math.log(mixtures.means.shape[0])
    z = tail_quantile(levels[:, None] - xp.where(there, log_weights, 0.0) - share)
    ends = xp.where(there, sides[:, None] * mixtures.means + mixtures.sigma * z, -xp.inf)
    return sides * xp.max(ends, 1)


def _masses_beyond(log_weights: Any, mixtures: Mixtures, x: Any, sides: Any) -> xp.Array:
    """Returns the logs of the mixture's masses beyond x on their sides, rounded up; [S] each."""
    z = sides[:, None] * (x[:, None] - mixtures.means) / mixtures.sigma
    terms = log_weights + log_ndtr(-z)
    far = (xp.abs(x) + xp.max(xp.abs(mixtures.means))) / mixtures.sigma
    size = xp.max(xp.where(log_weights > -xp.inf, -log_weights, 0.0))
    return logsumexp(terms) + ULP * (64 + 4 * size + 8 * far * far)


def limit_of(mixtures: Mixtures, side: Any) -> xp.Array:
    """Returns log p/q for x -> side * infinity, rounded away from P's end: finite if both end alike."""
    log_weights, means = mixtures.log_weights, mixtures.means
    there = log_weights > -xp.inf
    far = xp.max(xp.where(there, side * means, -xp.inf), 1, keepdims=True)
    ends = logsumexp(xp.where(side * means == far, log_weights, -xp.inf))
    # The unshifted weight may be nothing but rounding.
    unsure = xp.where(far[:, 0] == 0, mixtures.unsure * xp.exp(xp.minimum(-ends, 700.0)), 0.0)
    error = 16 * ULP * xp.sum(xp.abs(ends)) + 2 * xp.sum(unsure)
    loss = ends[0] - ends[1] + side * xp.where(error < 0.1, error, xp.inf)
    return xp.where(far[0, 0] == far[1, 0], loss, side * xp.inf)


def _cells(mixtures: Mixtures, x: xp.Array, sides: xp.Array) -> _Cells:
    """Returns dots and cells for increasing dots x, and their masses under some sides (0: P, 1: Q)."""
    sigma = mixtures.sigma
    means, s2 = mixtures.means[1:], sigma * sigma
    log_ratio, posterior, rounding, spread = ratios(mixtures, x)
    away = xp.max(xp.abs(x[:, None] - mixtures.means), 1)
    width = x[1:] - x[:-1]
    steep = width / sigma * (xp.maximum(away[1:], away[:-1]) / sigma + _HERMITE)
    wide = ~(steep <= _WIDEST)
    width = xp.where(wide, 0.0, width)  # such a cell is not integrated

    # Nodes of each cell, and its right end last.
    t = width[:, None] * xp.asarray(np.append(_NODES, 1.0))
    lift = xp.expm1(means * t[..., None] / s2)
    change = xp.stack([xp.sum(each[:-1, None] * lift, 2) for each in posterior])
    e = xp.exp(-t * (2 * x[:-1, None] + t) / (2 * s2)) * xp.asarray(np.append(_WEIGHTS, 0.0))
    area = xp.sum(e * (change[0] - change[1]), 1)
    m_q = xp.sum(e * (1 + change[1]), 1)
    whole = xp.stack([m_q + area, m_q])
    rise = (change[0, :, -1] - change[1, :, -1]) / (1 + change[1, :, -1])
    # Where the loss is flat to the last bits of the smallest numbers, all goes to the right end.
    flat = ~(rise > 1e-290)
    share = area / xp.where(flat, 1.0, rise)
    right = xp.where(flat, whole, xp.stack([(1 + rise) * share, share]))
    left = xp.where(flat, 0.0, m_q - share)

    y = xp.minimum(steep, _WIDEST)
    quadrature = _QUADRATURE * (y**_N2 + _N2 * y ** (_N2 - 1)) * xp.exp(2 * y)
    # Relative error of the integrals. The left share is a difference: its error is relative to the whole.
    relative = 2 * quadrature + ULP * (64 + 2 * xp.sum(spread, 0)[:-1])
    slack = relative * whole[0]
    log_phi = -x * x / (2 * s2) - _LOG_SQRT_2PI
    log_width = xp.log(xp.where(wide, 1.0, width / sigma))
    base = log_phi + log_ratio[sides]
    error = ULP * (32 + 4 * xp.abs(log_phi) + rounding[sides])
    cell_error = error[:, :-1] + 4 * ULP * xp.abs(log_width)
    cell = base[:, :-1] + log_width
    leaves = xp.log(xp.maximum(left, 0.0) + slack) + cell + cell_error
    arrives = xp.log(right[sides] + slack) + cell + cell_error
    arrives = xp.shortcut(
        ~xp.any(wide),
        lambda: arrives,
        lambda: xp.where(wide, _largest(mixtures, x, wide, sides), arrives),
    )
    none = xp.full((sides.shape[0], 1), -xp.inf)
    leaves = xp.concatenate([xp.where(wide, -xp.inf, leaves), none], 1)
    up = xp.logaddexp(leaves, xp.concatenate([none, arrives], 1)) + 2 * ULP
    low = xp.log(whole[sides]) + cell - cell_error - relative
    low = xp.where(wide, -xp.inf, low)

    loss = log_ratio[0] - log_ratio[1]
    loss_error = ULP * (xp.sum(rounding, 0) + xp.abs(loss))
    step = xp.log1p(area / m_q)
    return _Cells(
        loss, loss_error, up, loss[:-1] + step, loss_error[:-1] + 2 * relative * step, low
    )


def _moved(log_shifted: xp.Array, log_rest: xp.Array, unsure: xp.Array) -> xp.Array:
    """Returns by how much log(shifted + rest) may be wrong if rest is: by all that rest adds, where rest is rounding."""
    rest = xp.exp(log_rest)
    ends = [
        xp.logaddexp(log_shifted, _log(end))
        for end in (xp.maximum(rest - unsure, 0.0), rest + unsure)
    ]
    return xp.where(unsure > 0, ends[1] - ends[0], 0.0)


def ratios(mixtures: Mixtures, x: xp.Array) -> tuple[xp.Array, xp.Array, xp.Array, xp.Array]:
    """Returns log r = log sum_k w_k e^(y_k), y_k = m_k (2x - m_k)/(2 sigma^2), for P and Q at the dots.

    Also the posteriors of the shifted components, [2, M, K]; a bound on the error of log r, [2, M], and one on the
    relative error of the posteriors, [2, M], in ulp.
    """
    means, s2 = mixtures.means[1:], mixtures.sigma * mixtures.sigma
    rest, log_weights = mixtures.log_weights[:, :1], mixtures.log_weights[:, None, 1:]
    y = means * (2 * x[:, None] - means) / (2 * s2)
    there = log_weights > -xp.inf
    # Near r = 1: log1p(sum_k w_k (e^(y_k) - 1)), which knows nothing of the unshifted weight.
    changes = xp.exp(log_weights) * xp.expm1(xp.minimum(y, 50.0))
    excess = xp.sum(changes, 2)
    near = (xp.abs(excess) < 0.5) & (xp.max(xp.where(there, y, -xp.inf), 2) < 50.0)
    shape = (2, x.shape[0], 1)
    terms = xp.concatenate([xp.broadcast_to(rest[:, None], shape), log_weights + y], 2)
    log_ratio = xp.where(near, xp.log1p(xp.where(near, excess, 0.0)), logsumexp(terms))
    posterior = xp.exp(log_weights + y - log_ratio[:, :, None])
    # y is off by 4 ulp of its larger term, a log weight by 2 of itself; each moves log r by its posterior, but near 1
    # a weight moves it by its change only.
    larger = xp.abs(means) * (2 * xp.abs(x[:, None]) + xp.abs(means)) / (2 * s2)
    weighing = 2 * xp.abs(xp.where(there, log_weights, 0.0)) + 8
    each = xp.where(there, 4 * larger + weighing, 0.0)
    rest_error = 4 + 2 * xp.where(rest > -xp.inf, -rest, 0.0) * xp.exp(rest - log_ratio)
    if means.shape[0] > 1:  # else the unshifted weight is sure
        rest_error = (
            rest_error + _moved(logsumexp(log_weights + y), rest, mixtures.unsure[:, None]) / ULP
        )
    far = xp.sum(posterior * each, 2) + rest_error
    close = xp.sum(posterior * 4 * larger + xp.abs(changes) * (weighing + 8), 2)
    rounding = 4 * xp.abs(log_ratio) + xp.where(near, close, far)
    return log_ratio, posterior, rounding, xp.max(each, 2) + rounding


def _largest(mixtures: Mixtures, x: xp.Array, wide: xp.Array, sides: xp.Array) -> xp.Array:
    """Returns the logs, [S, M-1], of a bound on the masses of wide cells: width times largest density."""
    a = (x[:-1, None] - mixtures.means) / mixtures.sigma
    b = (x[1:, None] - mixtures.means) / mixtures.sigma
    nearest = xp.where((a < 0) & (b > 0), 0.0, xp.minimum(xp.abs(a), xp.abs(b)))
    log_width = xp.log(xp.where(wide[:, None], b - a, 1.0))
    most = xp.minimum(log_width - nearest * nearest / 2 - _LOG_SQRT_2PI, 0.0)
    most = most + ULP * (64 + 4 * nearest * nearest)
    return logsumexp(mixtures.log_weights[sides][:, None] + most) + 64 * ULP
