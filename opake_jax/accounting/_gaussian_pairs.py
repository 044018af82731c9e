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
times one order less. With y = (d/sigma)(max |z| + 2.5), at both ends and all components, the relative error of each
integral is at most C (y^2n + 2n y^(2n-1)) e^(2y), C = 2 (n!)^4/((2n+1) (2n)!^3). It is added outward.
Cells too wide for this (y > 6) get, above, width times the largest density, at their right end, and nothing below.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax._numerics import log_ndtr, logsumexp, tail_quantile
from opake_jax.accounting._pairs import ULP, Atoms, Tails

__all__ = ["GaussianMixturePair", "JointPair"]

_NODES, _WEIGHTS = (a / 2 for a in np.polynomial.legendre.leggauss(8))
_NODES = _NODES + 0.5
_N2 = 2 * len(_NODES)
_QUADRATURE = 2 * math.factorial(8) ** 4 / (17 * math.factorial(16) ** 3)
_HERMITE = 2.5  # (E N^16)^(1/16) = (15!!)^(1/16) = 2.48
_WIDEST = 6.0  # there the quadrature's relative error is bounded by 2e-5
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


class _Side(NamedTuple):
    """One of P, Q at the dots: log r, posterior of each shifted component, size of rounding errors."""

    log_ratio: jax.Array  # [M]
    posterior: jax.Array  # [M, K]
    rounding: jax.Array  # [M], bound on the error of log_ratio in ulp
    spread: jax.Array  # [M], bound on the relative error of a posterior in ulp


class _Cells(NamedTuple):
    """Dots and cells, in logs; masses already bounded outward (`up` or `low`)."""

    loss: jax.Array  # [M], at the dots
    loss_error: jax.Array  # [M]
    p_up: jax.Array  # [M], connect-the-dots P-masses
    q_up: jax.Array  # [M], the same pair's Q-masses
    cell_loss: jax.Array  # [M-1]
    cell_error: jax.Array  # [M-1]
    p_low: jax.Array  # [M-1], cell masses
    q_low: jax.Array  # [M-1]


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
    """

    p_weights: Any
    p_means: Any
    q_weights: Any
    q_means: Any
    sigma: Any
    reverse: Any = 0.0

    def reversed(self) -> "GaussianMixturePair":
        """Returns the pair (Q, P)."""
        return dataclasses.replace(self, reverse=1.0 - self.reverse)

    def atoms(self, size: int, tails: Tails) -> Atoms:
        """Returns `size` dots above and `size - 1` cells below; see the head of this file."""
        self = _as_float64(self)
        back = self.reverse > 0.5
        p, q = _components(self.p_weights, self.p_means), _components(self.q_weights, self.q_means)
        # The loss of the chosen direction is bounded at its high end where the outermost components of
        # P and Q there agree: then nothing needs an infinite loss.
        top = jnp.where(back, -_limit(p, q, -1.0), _limit(p, q, 1.0))
        bounded = jnp.isfinite(top)
        high = jnp.where(bounded, tails.low, tails.high)
        left = jnp.where(
            back, _edge(q, self.sigma, high, -1.0), _edge(p, self.sigma, tails.low, -1.0)
        )
        right = jnp.where(
            back, _edge(q, self.sigma, tails.low, 1.0), _edge(p, self.sigma, high, 1.0)
        )
        dots = left + (right - left) * jnp.linspace(0.0, 1.0, size - 1)
        cells = _cells(self, dots)
        # Beyond the ends, P-mass of the chosen direction: low losses join the lowest atom; high ones the
        # supremum, or infinity.
        below = jnp.where(back, _tail(q, self.sigma, right, 1.0), _tail(p, self.sigma, left, -1.0))
        above = jnp.where(back, _tail(q, self.sigma, left, -1.0), _tail(p, self.sigma, right, 1.0))
        mass = jnp.where(back, cells.q_up, cells.p_up)
        lowest = jnp.where(back, size - 2, 0)
        mass = mass.at[lowest].set(jnp.logaddexp(mass[lowest], below) + ULP)
        up_mass = jnp.append(mass, jnp.where(bounded, above, -jnp.inf))
        sign = jnp.where(back, -1.0, 1.0)
        up_loss = jnp.append(sign * cells.loss + cells.loss_error, jnp.where(bounded, top, 0.0))
        low_mass = jnp.where(back, cells.q_low, cells.p_low)
        low_loss = sign * cells.cell_loss - cells.cell_error
        return Atoms(
            jnp.stack([up_mass, _pad(low_mass, size, -jnp.inf)]),
            jnp.stack([up_loss, _pad(low_loss, size, 0.0)]),
            jnp.where(bounded, -jnp.inf, above),
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class JointPair:
    """Both directions at once: H_a of a pair for a >= 1, of its reverse for a < 1.

    For sampling without replacement under REPLACE_ONE (Zhu, Dong, Wang 2022): composing the directions apart and
    taking the maximum is not a bound. The pair has one shifted component, (1-q) N(0) + q N(m) against
    N(0); its loss is 0 at x = m/2. Right of m/2 lie the losses above 0 with their masses under P, and,
    by the symmetry x -> m - x, the losses below 0 of the reverse with their masses under N(0). The slope of
    H_a jumps at a = 1 by (1-q) (Phi(m/2 sigma) - Phi(-m/2 sigma)): an atom of loss 0.

    Attributes:
      pair: GaussianMixturePair with K = 1 and J = 0, not reversed.
    """

    pair: GaussianMixturePair

    def atoms(self, size: int, tails: Tails) -> Atoms:
        """Returns `size` atoms: half for each sign of the loss, and one at 0."""
        pair = _as_float64(self.pair)
        share = (size - 1) // 2
        p = _components(pair.p_weights, pair.p_means)
        mean, weight = pair.p_means[0], pair.p_weights[0]
        middle = mean / 2
        high = jnp.minimum(tails.high, tails.low)
        right = jnp.maximum(_edge(p, pair.sigma, high, 1.0), middle + 8 * pair.sigma)
        dots = middle + (right - middle) * jnp.linspace(0.0, 1.0, share)
        cells = _cells(pair, dots)
        above = _tail(p, pair.sigma, right, 1.0)
        below = log_ndtr(-right / pair.sigma) + 8 * ULP  # the reverse's lowest losses, under N(0)
        q_up = cells.q_up.at[-1].set(jnp.logaddexp(cells.q_up[-1], below) + ULP)
        half = middle / pair.sigma / math.sqrt(2.0)
        jump = jnp.log1p(-weight) + jnp.log(jax.lax.erf(half))
        pad = 16 * ULP * (1 + jnp.abs(jnp.where(weight < 1, jnp.log1p(-weight), 0.0)))
        up_mass = jnp.concatenate([cells.p_up, q_up, (jump + pad)[None]])
        up_loss = jnp.concatenate([cells.loss, -cells.loss]) + jnp.tile(cells.loss_error, 2)
        low_mass = jnp.concatenate([cells.p_low, cells.q_low, (jump - pad)[None]])
        low_loss = jnp.concatenate([cells.cell_loss, -cells.cell_loss]) - jnp.tile(
            cells.cell_error, 2
        )
        return Atoms(
            jnp.stack([_pad(up_mass, size, -jnp.inf), _pad(low_mass, size, -jnp.inf)]),
            jnp.stack([_pad(up_loss, size, 0.0), _pad(low_loss, size, 0.0)]),
            above,
        )


def _as_float64(pair: GaussianMixturePair) -> GaussianMixturePair:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), pair)


def _pad(values: jax.Array, size: int, fill: float) -> jax.Array:
    return jnp.pad(values, (0, size - values.shape[0]), constant_values=fill)


def _components(weights: jax.Array, means: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns log weights and means of all components, the unshifted one first."""
    rest = jnp.log1p(-jnp.minimum(jnp.sum(weights), 1.0))
    log_weights = jnp.concatenate([rest[None], jnp.log(weights)])
    return log_weights, jnp.concatenate([jnp.zeros(1), means])


def _edge(components: Any, sigma: jax.Array, level: Any, side: float) -> jax.Array:
    """Returns x beyond which, on that side, the mixture has at most about e^level of mass."""
    log_weights, means = components
    there = log_weights > -jnp.inf
    z = tail_quantile(level - jnp.where(there, log_weights, 0.0) - math.log(means.shape[0]))
    ends = jnp.where(there, side * means + sigma * z, -jnp.inf)
    return side * jnp.max(ends)


def _tail(components: Any, sigma: jax.Array, x: jax.Array, side: float) -> jax.Array:
    """Returns the log of the mixture's mass beyond x, rounded up."""
    log_weights, means = components
    terms = log_weights + log_ndtr(-side * (x - means) / sigma)
    finite = jnp.where(terms > -jnp.inf, terms, 0.0)
    z = (jnp.abs(x) + jnp.max(jnp.abs(means))) / sigma
    return logsumexp(terms) + ULP * (64 + 4 * jnp.max(-finite) + 4 * z * z)


def _limit(p: Any, q: Any, side: float) -> jax.Array:
    """Returns the loss's limit for x -> side * infinity: finite where the outermost means agree."""
    ends = []
    for log_weights, means in (p, q):
        there = log_weights > -jnp.inf
        far = jnp.max(jnp.where(there, side * means, -jnp.inf))
        ends.append((far, logsumexp(jnp.where(side * means == far, log_weights, -jnp.inf))))
    (p_far, p_weight), (q_far, q_weight) = ends
    loss = p_weight - q_weight
    pad = 16 * ULP * (1e-300 + jnp.abs(p_weight) + jnp.abs(q_weight))
    return jnp.where(p_far == q_far, loss + side * pad, side * jnp.inf)


def _side(weights: jax.Array, means: jax.Array, sigma: jax.Array, x: jax.Array) -> _Side:
    """Returns log r = log sum_k w_k e^(y_k), y_k = m_k (2x - m_k)/(2 sigma^2), at the dots."""
    if weights.shape[0] == 0:
        zero = jnp.zeros_like(x)
        return _Side(zero, jnp.zeros((x.shape[0], 0)), zero, zero)
    s2 = sigma * sigma
    y = means * (2 * x[:, None] - means) / (2 * s2)
    log_weights = jnp.log(weights)
    rest = jnp.log1p(-jnp.minimum(jnp.sum(weights), 1.0))
    # Near r = 1: log1p(sum_k w_k (e^(y_k) - 1)), which knows nothing of the unshifted weight.
    changes = weights * jnp.expm1(jnp.minimum(y, 50.0))
    excess = jnp.sum(changes, 1)
    near = (jnp.abs(excess) < 0.5) & (jnp.max(y, 1) < 50.0)
    terms = jnp.concatenate([jnp.broadcast_to(rest, (x.shape[0], 1)), log_weights + y], 1)
    far = logsumexp(terms)
    log_ratio = jnp.where(near, jnp.log1p(jnp.where(near, excess, 0.0)), far)
    posterior = jnp.exp(log_weights + y - log_ratio[:, None])
    # y is off by 4 ulp of its larger term, a log weight by 2 of itself; each moves log r by its posterior.
    # 1 - sum_k w_k is off by an ulp of each w_k but one (and nothing if there is one).
    larger = jnp.abs(means) * (2 * jnp.abs(x[:, None]) + jnp.abs(means)) / (2 * s2)
    each = 4 * larger + 2 * jnp.where(weights > 0, jnp.abs(log_weights), 0.0) + 8
    rest_error = (weights.shape[0] - 1) * jnp.exp(jnp.minimum(-log_ratio, 700.0))
    summing = jnp.where(near, 8 * jnp.sum(jnp.abs(changes), 1), 4 + rest_error)
    rounding = 4 * jnp.abs(log_ratio) + jnp.sum(posterior * each, 1) + summing
    return _Side(log_ratio, posterior, rounding, jnp.max(each, 1) + rounding)


def _cells(pair: GaussianMixturePair, x: jax.Array) -> _Cells:
    """Returns dots and cells for increasing dots x."""
    sigma = pair.sigma
    s2 = sigma * sigma
    p = _side(pair.p_weights, pair.p_means, sigma, x)
    q = _side(pair.q_weights, pair.q_means, sigma, x)
    width = x[1:] - x[:-1]
    start = x[:-1, None]
    means = jnp.concatenate([jnp.zeros(1), pair.p_means, pair.q_means])
    away = jnp.maximum(
        jnp.max(jnp.abs(x[:-1, None] - means), 1), jnp.max(jnp.abs(x[1:, None] - means), 1)
    )
    steep = width / sigma * (away / sigma + _HERMITE)
    wide = steep > _WIDEST
    width = jnp.where(wide, 0.0, width)  # such a cell is not integrated
    t = width[:, None] * jnp.asarray(_NODES)
    e = jnp.exp(-t * (2 * start + t) / (2 * s2)) * jnp.asarray(_WEIGHTS)

    def change(side: _Side, shifts: jax.Array, t: jax.Array) -> jax.Array:
        """U(t) of the head, for t of shape [M-1, nodes]."""
        if shifts.shape[0] == 0:
            return jnp.zeros_like(t)
        return jnp.sum(side.posterior[:-1, None] * jnp.expm1(shifts * t[..., None] / s2), -1)

    u_p, u_q = change(p, pair.p_means, t), change(q, pair.q_means, t)
    end = width[:, None]
    end_p, end_q = change(p, pair.p_means, end)[:, 0], change(q, pair.q_means, end)[:, 0]
    area = jnp.sum(e * (u_p - u_q), 1)
    m_q = jnp.sum(e * (1 + u_q), 1)
    m_p = m_q + area
    rise = (end_p - end_q) / (1 + end_q)
    # Where the loss is flat to the last bits of the smallest numbers, all goes to the right end.
    flat = ~(rise > 1e-290)
    to_right = jnp.where(flat, m_p, area / jnp.where(flat, 1.0, rise))
    to_left = jnp.where(flat, 0.0, m_q - to_right)
    to_right_p = jnp.where(flat, m_p, (1 + rise) * to_right)

    y = jnp.minimum(steep, _WIDEST)
    quadrature = _QUADRATURE * (y**_N2 + _N2 * y ** (_N2 - 1)) * jnp.exp(2 * y)
    log_phi = -x * x / (2 * s2) - _LOG_SQRT_2PI
    log_scale = jnp.log(jnp.where(wide, 1.0, width) / sigma)
    exponents = 4 * (jnp.abs(log_phi) + jnp.abs(jnp.append(log_scale, 0.0)))
    # Relative error of the integrals. The left share is a difference: its error is relative to the whole.
    relative = 2 * quadrature + ULP * (64 + 2 * (p.spread + q.spread)[:-1])
    slack = relative * m_p

    def masses(side: _Side, components: Any, left: Any, right: Any, whole: Any) -> tuple[Any, Any]:
        base = log_phi + side.log_ratio
        error = ULP * (32 + exponents + side.rounding)
        cell = base[:-1] + log_scale
        bound = _largest(components, sigma, x, wide)
        leaves = jnp.where(
            wide, -jnp.inf, jnp.log(jnp.maximum(left, 0.0) + slack) + cell + error[:-1]
        )
        arrives = jnp.where(wide, bound, jnp.log(right + slack) + cell + error[:-1])
        none = jnp.full((1,), -jnp.inf)
        up = jnp.logaddexp(jnp.append(leaves, none), jnp.append(none, arrives)) + 2 * ULP
        low = jnp.where(wide, -jnp.inf, jnp.log(whole) + cell - error[:-1] - relative)
        return up, low

    p_up, p_low = masses(p, _components(pair.p_weights, pair.p_means), to_left, to_right_p, m_p)
    q_up, q_low = masses(q, _components(pair.q_weights, pair.q_means), to_left, to_right, m_q)
    loss = p.log_ratio - q.log_ratio
    loss_error = ULP * (p.rounding + q.rounding + jnp.abs(loss))
    step = jnp.log1p(area / m_q)
    cell_error = loss_error[:-1] + 2 * relative * step
    return _Cells(loss, loss_error, p_up, q_up, loss[:-1] + step, cell_error, p_low, q_low)


def _largest(components: Any, sigma: jax.Array, x: jax.Array, wide: jax.Array) -> jax.Array:
    """Returns the log of width times the largest density in each wide cell."""
    log_weights, means = components
    a, b = (x[:-1, None] - means) / sigma, (x[1:, None] - means) / sigma
    a, b = jnp.where(wide[:, None], a, 0.0), jnp.where(wide[:, None], b, 1.0)
    nearest = jnp.where((a < 0) & (b > 0), 0.0, jnp.minimum(jnp.abs(a), jnp.abs(b)))
    terms = log_weights + jnp.minimum(jnp.log(b - a) - nearest * nearest / 2 - _LOG_SQRT_2PI, 0.0)
    return logsumexp(terms) + ULP * (64 + 4 * jnp.max(nearest, 1) ** 2)
