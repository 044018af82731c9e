"""What can a test achieve? The trade-off function beta(alpha), symmetrised over both directions.

With delta the larger of the directions' deltas (Dong, Roth, Su 2019, arXiv:1905.02383, Prop. 6),

    beta(alpha) = sup over t of G(t),   G(t) = 1 - delta(t) - e^t alpha              for t >= 0,
                                       G(t) = e^t (1 - delta(-t) - alpha)           for t < 0,

where G is concave in a = e^t (each half is a minimum over directions of 1 - H_a - a alpha). Any t gives a
lower bound. Three points give an upper one: a concave function lies below its chords extended, so that
with a_1 < a_2 < a_3 and G(a_2) at least as large as both others, G(a) <= G_2 + (a_2 - a)/(a_3 - a_2) (G_2 - G_3) on
[a_1, a_2], and likewise on [a_2, a_3].

One direction is searched on one contour: G is stationary where Q(L > t) = alpha (t > 0) or P(L <= -t) = alpha (t < 0);
Q(L > t) = -delta'(t) e^-t, P(L <= t) = 1 - delta(t) + delta'(t). The search is not certified and need not be.
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from opake_jax._numerics import log1mexp, logsumexp, xp
from opake_jax.accounting._pairs import ULP
from opake_jax.accounting._pld_fourier import (
    Law,
    Spectrum,
    alias_of,
    chernoff_tails,
    evaluate,
    integral,
    law_of,
    spectrum_of,
)
from opake_jax.accounting._pld_tilt import (
    Contour,
    Rough,
    Steps,
    expected_size,
    look_around,
    pick_tilt,
    roughen,
)

__all__ = [
    "APART",
    "BISECTIONS",
    "Binding",
    "beta_bounds",
    "combine",
    "complement_alias",
    "line_of",
    "rest_on",
]

_ALIAS = 1e-9  # relative to the integral: 1 - delta is asked for more digits than delta
BISECTIONS = 14  # of 12 spreads: G is flat at its top, 1e-3 of a spread costs 1e-6
APART = 0.01  # of a spread, between the three points
_WIDE = 2.0  # spread from which 1 - delta can be small: then it is computed itself


class _Line(NamedTuple):
    """Where one direction is evaluated: delta (sign 1) or 1 - delta (sign -1)."""

    contour: Contour
    sign: Any


class _Atoms(NamedTuple):
    """One direction as atoms: a source of spectra, as `Smooth` is one (`_pld_beta`)."""

    steps: Steps
    frequencies: int
    most: float = math.inf
    inside: tuple[float, float] = (-math.inf, math.inf)

    def rough(self) -> Rough:
        return roughen(self.steps)

    def law(self) -> Law:
        return law_of(self.steps)

    def spectrum_on(self, contour: Contour, sign: Any) -> Spectrum:
        return spectrum_of(self.steps, contour, self.frequencies, sign)

    def mass_errors(self) -> tuple[xp.Array, xp.Array]:
        """Returns (over, missing): by how much the masses of all steps exceed 1 above, and fall short below.

        Padded masses make delta larger, which is right, but also E min(1, e^(eps-L)), which is not; the
        composed difference is at most (1 + over)^T - 1. Missing mass adds at most itself to 1 - delta.
        """
        steps = self.steps
        total = logsumexp(xp.concatenate([steps.log_mass[:, 0], steps.log_infinity[:, None]], 1))
        over = xp.expm1(steps.counts @ (xp.maximum(total, 0.0) + steps.loss.shape[2] * ULP))
        held = logsumexp(steps.log_mass[:, 1])
        missing = -xp.expm1(steps.counts @ (xp.minimum(held, 0.0) - steps.loss.shape[2] * ULP))
        return over, missing


class Binding(NamedTuple):
    """The point t that gave the lower bound, and the direction whose delta binds there."""

    point: xp.Array
    direction: xp.Array
    line: _Line


def line_of(source: Any, log_alpha: Any, points: Any, search: Any) -> _Line:
    """Returns a contour for 1 - delta near where Q(L > t) is alpha, or near the points."""
    rough = source.rough()

    def goal(tilts: Any, value: Any, variance: Any) -> Any:
        del variance  # not a saddle point's
        return xp.where(search, (value - log_alpha) / (1 + tilts), xp.abs(points[1]))

    tilt, spread = pick_tilt(rough, goal, source.most)
    law = look_around(rough, tilt, spread, source.inside)
    end = goal(tilt, law.value, 0.0)
    size = expected_size(tilt, law.spread)
    small = law.value - tilt * end + xp.log(size) < math.log(0.3)  # delta is small there
    half = rough.spread_at(xp.asarray(-0.5))
    complement = ~small & (half > _WIDE)
    # delta itself, near epsilon 0: a tilt that makes e^(-tilt u) short enough for the window.
    tilt = xp.where(small, tilt, xp.maximum(tilt, 1.5 / rough.spread))
    tilt = xp.where(complement, -0.5, tilt)
    law = look_around(rough, tilt, xp.where(complement, half, law.spread), source.inside)
    spread = law.spread
    # At tilt -1/2 the transform at 0 is 4.
    whole = xp.minimum(4 / (math.sqrt(2 * math.pi) * spread), 1.0)
    size = xp.where(complement, whole, expected_size(xp.abs(tilt), spread))
    log_alias = xp.log(_ALIAS * size)
    start = xp.where(complement, xp.maximum(law.mean, 0.0), end)
    centre = xp.where(search, start, xp.abs(points[1]))
    right, left, right_tilt, left_tilt = law.ends(log_alias)
    decayed = -log_alias / xp.abs(tilt)
    reach = xp.maximum(right - centre + xp.where(complement, decayed, 0.0), centre - left + decayed)
    window = 1.03 * (reach + 3 * spread)  # the search may move this far
    contour = Contour(tilt, spread, window, centre, size, right_tilt, left_tilt)
    return _Line(contour, xp.where(complement, -1.0, 1.0))


def complement_alias(epsilon: Any, contour: Contour, tails: Any) -> xp.Array:
    """Returns the bound on the periodisation terms of 1 - delta, tilt in (-1, 0)."""
    decay = xp.minimum(-contour.tilt, 1 + contour.tilt)
    budget = xp.log(_ALIAS * contour.size)
    right_end = (tails.log_right - budget) / contour.right
    left_end = (budget - tails.log_left) / contour.left
    c = contour.window - xp.maximum(right_end - epsilon, epsilon - left_end)
    c = xp.maximum(c, 0.0)
    edge = contour.window - c
    right = xp.exp(xp.minimum(tails.log_right - contour.right * (epsilon + edge), 0.0))
    left = xp.exp(xp.minimum(tails.log_left + contour.left * (epsilon - edge), 0.0))
    wrapped = -xp.expm1(-decay * contour.window)
    return 2 * (right + left + xp.exp(-decay * c)) / wrapped


def _look(source: Any, log_alpha: Any, points: Any, search: Any) -> Any:
    """Returns (points, lower, upper, line): bounds on log(1 - delta) of one direction at three points t.

    Args:
      log_alpha: where `search`, the points are put about the maximum of this direction's G.
      points: [3], used where not `search`.
    """
    line = line_of(source, log_alpha, points, search)
    contour, sign = line
    spectrum = source.spectrum_on(contour, sign)
    law = source.law()
    tails = [chernoff_tails(law, row, contour, spectrum.smoothing) for row in (0, 1)]
    lowest = jax.tree.map(lambda a, b: xp.where(sign < 0, a, b), *tails)
    infinite = law.log_infinity
    over, missing = source.mass_errors()

    def alias(epsilon: Any) -> xp.Array:
        plain = alias_of(epsilon, contour, lowest)
        return xp.where(sign < 0, complement_alias(epsilon, contour, lowest), plain)

    def bounds(epsilon: xp.Array) -> tuple[xp.Array, xp.Array]:
        offset = epsilon - contour.centre - spectrum.shift * np.array([1.0, -1.0])
        value, _, holds = evaluate(offset, contour, spectrum, alias(epsilon), sign)
        # 1 - delta from delta
        largest = xp.logaddexp(value[0], infinite) + 4 * ULP
        down = xp.where(holds[0] & (largest < 0), log1mexp(xp.minimum(largest, -1e-300)), -xp.inf)
        up = xp.where(holds[1] & (value[1] < 0), log1mexp(xp.minimum(value[1], -1e-300)), 0.0)
        # 1 - delta itself
        direct_down = xp.exp(value[0]) * (1 - 8 * ULP) - over
        direct_down = xp.where(holds[0] & (direct_down > 0), direct_down, 0.0)
        direct_up = xp.minimum(xp.exp(value[1]) * (1 + 8 * ULP) + missing, 1.0)
        direct_up = xp.where(holds[1], direct_up, 1.0)
        return (
            xp.where(sign < 0, _log(direct_down), down),
            xp.where(sign < 0, xp.log(direct_up), up),
        )

    def profile(epsilon: xp.Array) -> tuple[xp.Array, xp.Array]:
        """Q(L > epsilon) and P(L <= epsilon), roughly, of the upper row."""
        offset = xp.broadcast_to(epsilon - contour.centre, (2,))
        value, slope = integral(offset, spectrum)
        front = xp.exp(spectrum.log_front[0] - contour.tilt * epsilon)
        amount = front * value[0]
        change = front * (slope[0] - contour.tilt * value[0])
        delta = xp.where(sign < 0, 1 - amount, amount)
        delta_slope = sign * change
        return -delta_slope * xp.exp(-epsilon), xp.where(sign < 0, amount, 1 - delta) + delta_slope

    alpha = xp.exp(log_alpha)
    q0, p0 = profile(xp.zeros(()))
    forwards = alpha < q0
    backwards = ~forwards & (alpha > p0)
    far = xp.maximum(contour.centre, 0.0) + 6 * contour.spread

    def halve(_: Any, ends: Any) -> Any:
        low, high = ends
        middle = (low + high) / 2
        q, p = profile(middle)
        right = xp.where(forwards, q > alpha, p < alpha)
        return xp.where(right, middle, low), xp.where(right, high, middle)

    rounds = xp.where(search, BISECTIONS, 0)
    low, high = xp.loop(rounds, halve, (xp.zeros(()), far))
    best = xp.where(forwards, 1.0, xp.where(backwards, -1.0, 0.0)) * (low + high) / 2
    found = best + APART * contour.spread * np.array([-1.0, 0.0, 1.0])
    points = xp.where(search, found, points)
    lower, upper = xp.map_over(bounds, xp.abs(points))
    return points, lower, upper, line


def _log(x: xp.Array) -> xp.Array:
    return xp.where(x > 0, xp.log(xp.where(x > 0, x, 1.0)), -xp.inf)


def combine(alpha: Any, points: Any, lower: Any, upper: Any) -> tuple[Any, Any]:
    """Returns (lower, upper) for beta(alpha).

    Args:
      points: [3], increasing.
      lower, upper: [3], bounds on log(1 - delta), the least over the directions.
    """
    a = xp.exp(points)
    forwards = points >= 0

    def gain(log_rest: Any, side: float) -> Any:
        rest = xp.exp(log_rest)
        value = xp.where(forwards, rest - a * alpha, a * (rest - alpha))
        size = xp.where(forwards, rest + a * alpha, a * (rest + alpha))
        return value + side * 8 * ULP * (1 + xp.abs(points)) * size

    low, up = gain(lower, -1.0), gain(upper, 1.0)
    peak = (low[1] >= up[0]) & (low[1] >= up[2])
    to_left = (a[1] - a[0]) / (a[2] - a[1]) * (up[1] - low[2])
    to_right = (a[2] - a[1]) / (a[1] - a[0]) * (up[1] - low[0])
    most = up[1] + xp.maximum(to_left, to_right) * (1 + 1e-12)
    return xp.maximum(xp.max(low), 0.0), xp.where(peak, most, 1.0)


def beta_bounds(steps: Steps, first: Any, alpha: Any, frequencies: int) -> tuple[Any, Any, Binding]:
    """Returns (lower, upper) for beta(alpha), alpha in (0, 1), and what the lower bound rests on.

    Args:
      steps: both directions, one leading axis more.
      first: the direction (0 or 1) that chooses the points; the other one is evaluated there.
    """
    log_alpha = xp.log(alpha)

    def one(points: Any, turn: Any) -> Any:
        direction = xp.where(turn == 0, first, 1 - first)
        chosen = jax.tree.map(lambda leaf: leaf[direction], steps)
        points, *found = _look(_Atoms(chosen, frequencies), log_alpha, points, turn == 0)
        return points, (direction, *found)

    points, (directions, lower, upper, lines) = xp.scan(one, xp.zeros(3), xp.arange(2))
    low, up = combine(alpha, points, lower.min(0), upper.min(0))
    # The first direction alone is no smaller than the minimum of both.
    _, alone = combine(alpha, points, lower[0], upper[0])
    turn = xp.where(lower[1, 1] < lower[0, 1], 1, 0)
    line = jax.tree.map(lambda leaf: leaf[turn], lines)
    upper_end = xp.minimum(xp.minimum(up, alone), 1 - alpha)
    return low, upper_end, Binding(points[1], directions[turn], line)


def rest_on(steps: Steps, line: _Line, epsilon: Any, frequencies: int) -> xp.Array:
    """Returns 1 - delta of one direction's upper row, uncertified: what is differentiated."""
    contour, sign = xp.fixed(line)
    spectrum = spectrum_of(steps, contour, frequencies, sign)
    value, _ = integral(xp.broadcast_to(epsilon - contour.centre, (2,)), spectrum)
    amount = xp.exp(spectrum.log_front[0] - contour.tilt * epsilon) * value[0]
    return xp.where(sign < 0, amount, 1 - amount)
