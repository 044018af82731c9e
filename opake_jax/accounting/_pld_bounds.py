"""Where is a bound certain? From the integrand on one contour to a bracket of epsilon or delta.

A root is sought by Newton's method. Whatever it looks at tells, for certain, that a bound lies above or below its
goal there: the bracket holds however the search ends. Known numbers are searched row by row with Python's floats, which
costs a tenth of what arrays of two do; traced ones together.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from opake_jax._numerics import xp
from opake_jax.accounting._pairs import ULP
from opake_jax.accounting._pld_fourier import (
    SIDE,
    Curve,
    Law,
    Spectrum,
    alias_of,
    chernoff_tails,
    curves_of,
    evaluate,
    law_of,
    spectrum_of,
)
from opake_jax.accounting._pld_tilt import (
    Contour,
    Query,
    Steps,
    choose_contour,
    log_peak,
    renyi_epsilon,
)

__all__ = ["Bounds", "answer", "at_most", "bounds_on", "look"]

_ROOT_STEPS = (
    8  # Newton's steps: 6 suffice from the saddle point; every step's bracket is certified
)
_NEAR_ZERO = 5.0  # spreads: an epsilon further off than that is not 0
_AIM = 1e-10  # the root is sought this far (in log delta) on the safe side, so that it ends there


class Bounds(NamedTuple):
    """Answer of one pair: `lower` and `upper` bound epsilon (where solved) or log delta.

    `size` is what `Query.size` should have been.
    """

    lower: Any
    upper: Any
    size: Any


def answer(steps: Steps, query: Query, frequencies: int) -> tuple[Bounds, Contour]:
    """Returns certified bounds for one pair: epsilon at `log_delta`, or log delta at `epsilon`."""
    contour = choose_contour(steps, query)
    spectrum = spectrum_of(steps, contour, frequencies)
    return bounds_on(law_of(steps), query, contour, spectrum), contour


def at_most(law: Law, query: Query, tilts: Any, enough: float = -math.inf) -> float:
    """Returns Chernoff's bound from above on epsilon (or log delta), the least over the known tilts.

    The first tilt whose bound is at most `enough` ends the search.
    """
    infinite = law.log_infinity
    if query.solve and not infinite < query.log_delta:
        return np.inf
    best = np.inf
    for tilt in tilts:
        moment = law.moment(tilt, 1.0, 0)
        if query.solve:
            room = query.log_delta + np.log1p(-np.exp(infinite - query.log_delta))
            found = renyi_epsilon(tilt, moment, room)
            found = found + 16 * ULP * (1 + abs(moment) + abs(room)) / tilt
        else:
            found = moment - tilt * query.epsilon + log_peak(tilt)
            found = np.logaddexp(found, infinite)
            found = found + 32 * ULP * (1 + abs(moment) + tilt * query.epsilon)
        best = min(best, found) if found == found else best
        if best <= enough:
            break
    return float(max(best, 0.0) if query.solve else best)


def bounds_on(law: Law, query: Query, contour: Contour, spectrum: Spectrum) -> Bounds:
    """Returns the certified bounds that one contour gives.

    Whatever fails its check becomes the trivially valid side: 0 (or -inf) below; above, Chernoff's bound.
    """
    if type(spectrum.real) is not np.ndarray:
        return _traced_bounds(law, query, contour, spectrum)
    alias = _alias(law, contour, spectrum)
    curves = curves_of(spectrum)
    if query.solve:
        return _known_epsilon(law, query, contour, curves, alias)
    return _known_log_delta(law, query, contour, curves, alias)


def _alias(law: Law, contour: Contour, spectrum: Spectrum) -> Any:
    tails = chernoff_tails(law, 1, contour, spectrum.smoothing)
    return lambda epsilon: float(alias_of(epsilon, contour, tails))


class Look(NamedTuple):
    """The bound of one row at one place: on log delta, with its slope; NaN where it does not hold."""

    value: float
    slope: float


def look(curve: Curve, contour: Contour, offset: float, side: float, alias: float) -> Look:
    """Returns a bound from above (side +1) or below (-1) at centre + offset, where periodisation may have added `alias`."""
    value, slope = curve.integral(offset)
    value += side * (curve.error + curve.error_slope * abs(offset)) - alias
    if not 1e-12 * float(contour.size) < value < math.inf:
        return Look(math.nan, math.nan)
    tilt = float(contour.tilt)
    front = curve.log_front - tilt * (float(contour.centre) + offset)
    return Look(front + math.log(value) + side * curve.log_error, -tilt + slope / value)


def _known_epsilon(
    law: Law, query: Query, contour: Contour, curves: tuple[Curve, Curve], alias: Any
) -> Bounds:
    tilt, centre, log_delta = float(contour.tilt), float(contour.centre), float(query.log_delta)
    infinite = float(law.log_infinity)
    # The finite part of delta may be as large as delta less the infinite part.
    share = math.exp(min(infinite - log_delta, 0.0))
    room = log_delta + math.log1p(-share) if share < 1 else -math.inf
    start = 0.0
    ends: list[float] = []
    for curve, side, goal in zip(curves, SIDE, (room, log_delta), strict=True):

        def at(x: float, curve: Curve = curve, side: float = side) -> Look:
            return look(curve, contour, x, side, alias(centre + x) if side < 0 else 0.0)

        low, high, start = _root(at, goal, goal - side * _AIM, start, contour)
        ends.append(high if side > 0 else low)
    moment = float(law.moment(tilt, 1.0, 0))
    slack = 8 * ULP * (1 + abs(moment) + abs(room)) / np.float64(tilt)  # which may be 0
    known = [
        float(_rounded_up(centre + ends[0] + curves[0].shift)),
        float(_rounded_up(renyi_epsilon(tilt, moment, room) + slack)),
    ]
    upper = math.inf  # also where the infinite part is no number
    if infinite < log_delta:
        upper = min((x for x in known if not math.isnan(x)), default=math.inf)
    if infinite == log_delta or (infinite < log_delta and not ends[0] < math.inf):
        most = float(law.largest())
        upper = min(upper, math.inf if math.isnan(most) else most)
    lower = centre + ends[1] - curves[1].shift
    found = room - curves[0].log_front + tilt * (centre + ends[0])
    return Bounds(
        lower * (1 - 4 * ULP) if lower > 0 else 0.0,
        max(upper, 0.0),
        np.float64(math.exp(min(found, 700.0))) / contour.size * query.size,
    )


def _root(
    at: Any, goal: float, aim: float, start: float, contour: Contour
) -> tuple[float, float, float]:
    """Returns (low, high, last): offsets where the bound is certainly above its goal, below it, and the last one tried."""
    low, high = -math.inf, math.inf
    centre, spread = float(contour.centre), float(contour.spread)
    within = spread * 1e6
    x = start
    # Epsilon 0 first, if that may be all that is needed.
    near_zero = centre <= _NEAR_ZERO * spread
    for turn in range(0 if near_zero else 1, _ROOT_STEPS + 1):
        here = -centre if turn == 0 else x
        value, slope = at(here)
        if value >= goal:
            low = max(low, here)
        if value <= goal:
            high = min(high, here)
        if abs(value - aim) <= _AIM:
            return low, high, here  # on the safe side of its goal, and close
        if turn == 0:
            continue
        newton = x - (value - aim) / slope if slope < 0 else math.nan
        if low <= newton <= high:
            x = newton
        elif math.isfinite(low + high):
            x = (low + high) / 2
        else:
            x = x + spread if value >= goal else x - spread
        x = min(max(x, -within), within)
    return low, high, x


def _known_log_delta(
    law: Law, query: Query, contour: Contour, curves: tuple[Curve, Curve], alias: Any
) -> Bounds:
    tilt, centre, epsilon = float(contour.tilt), float(contour.centre), float(query.epsilon)
    ends = []
    for curve, side in zip(curves, SIDE, strict=True):
        # The rounding of the centre is taken off beforehand.
        offset = -curve.shift * side
        ends.append(
            look(curve, contour, offset, side, alias(centre + offset) if side < 0 else 0.0).value
        )
    moment = float(law.moment(tilt, 1.0, 0))
    chernoff = moment - tilt * epsilon + float(log_peak(tilt))
    chernoff += ULP * 16 * (abs(moment) + tilt * abs(epsilon))
    finite = min(x for x in (ends[0], chernoff, 0.0) if not math.isnan(x))
    if math.isnan(ends[0]) and epsilon >= float(law.largest()):
        finite = -math.inf
    upper = min(float(np.logaddexp(finite, law.log_infinity)) + 8 * ULP, 0.0)
    found = ends[0] - curves[0].log_front + tilt * epsilon
    size = math.nan if math.isnan(found) else math.exp(min(found, 700.0))
    return Bounds(
        -math.inf if math.isnan(ends[1]) else ends[1],
        0.0 if math.isnan(upper) else upper,
        np.float64(size) / contour.size * query.size,
    )


def _traced_bounds(law: Law, query: Query, contour: Contour, spectrum: Spectrum) -> Bounds:
    """Returns `bounds_on` of traced numbers: both rows at once, and nothing branches."""
    tails = chernoff_tails(law, 1, contour, spectrum.smoothing)
    infinite = law.log_infinity
    tilt = contour.tilt
    moment = law.moment(tilt, 1.0, 0)

    # epsilon: the finite part of delta may be as large as delta less the infinite part.
    share = xp.exp(xp.minimum(infinite - query.log_delta, 0.0))
    room = query.log_delta + xp.log1p(-share)
    goal = xp.stack([room, query.log_delta])
    aim = goal - _AIM * np.array(SIDE)
    within = contour.spread * 1e6

    def step(state: Any) -> Any:
        turn, x, low, high, _, _ = state
        alias = alias_of(contour.centre + x[1], contour, tails)
        value, slope, holds = evaluate(x, contour, spectrum, alias)
        # low: the largest offset where the bound is certainly above its goal; high: below. Row 0 needs the
        # latter, row 1 the former, to be certain.
        below = holds & (value <= goal)
        above = holds & (value >= goal)
        low = xp.where(above, xp.maximum(low, x), low)
        high = xp.where(below, xp.minimum(high, x), high)
        newton = x - (value - aim) / xp.where(slope < 0, slope, -tilt)
        inside = holds & (slope < 0) & (newton >= low) & (newton <= high)
        middle = xp.where(
            xp.isfinite(low + high),
            (low + high) / 2,
            xp.where(above, x + contour.spread, x - contour.spread),
        )
        following = xp.clip(xp.where(inside, newton, middle), -within, within)
        following = xp.where(turn == 0, 0.0, following)
        found = xp.where(holds, value, np.array([np.inf, -np.inf]))
        near = xp.all(
            holds & (xp.abs(value - aim) <= _AIM)
        )  # on the safe side of its goal, and close
        return turn + 1, following, low, high, found, near

    # Turn 0 looks at epsilon 0, if that may be all that is needed; turn 1 at the centre. For delta at a fixed epsilon
    # one look is enough; the rounding of the centre is taken off beforehand.
    near_zero = xp.asarray(query.solve) & (contour.centre <= _NEAR_ZERO * contour.spread)
    centred = xp.where(near_zero, -contour.centre, 0.0)
    start = xp.where(query.solve, centred, -spectrum.shift * np.array(SIDE))
    rounds = xp.where(query.solve, 1 + _ROOT_STEPS, 2)
    unknown = np.full(2, np.inf)

    def going(state: Any) -> Any:
        return (state[0] < rounds) & ~state[5]

    turn = xp.where(near_zero, xp.zeros_like(rounds), xp.ones_like(rounds))
    first = (turn, start, -unknown, unknown, unknown, turn < 0)
    _, _, low, high, found, _ = xp.while_loop(going, step, first)
    most = law.largest()
    slack = 8 * ULP * (1 + xp.abs(moment) + xp.abs(room)) / tilt
    upper = xp.least(
        _rounded_up(contour.centre + high[0] + spectrum.shift[0]),
        _rounded_up(renyi_epsilon(tilt, moment, room) + slack),
        most,
    )
    upper = xp.where(
        infinite < query.log_delta, upper, xp.where(infinite == query.log_delta, most, xp.inf)
    )
    lower = contour.centre + low[1] - spectrum.shift[1]
    lower = xp.where(lower > 0, lower * (1 - 4 * ULP), 0.0)

    # delta at epsilon
    chernoff = moment - tilt * query.epsilon + log_peak(tilt)
    chernoff = chernoff + ULP * 16 * (xp.abs(moment) + tilt * xp.abs(query.epsilon))
    finite_part = xp.least(found[0], chernoff, 0.0)
    finite_part = xp.where(query.epsilon >= most, -xp.inf, finite_part)
    upper_delta = xp.minimum(xp.logaddexp(finite_part, infinite) + 8 * ULP, 0.0)

    epsilon = xp.where(query.solve, contour.centre + high[0], query.epsilon)
    log_delta = xp.where(query.solve, room, found[0])
    size = xp.exp(log_delta - spectrum.log_front[0] + tilt * epsilon) / contour.size
    return Bounds(
        lower=xp.where(query.solve, xp.where(xp.isnan(lower), 0.0, lower), found[1]),
        upper=xp.where(
            query.solve, xp.maximum(xp.where(xp.isnan(upper), xp.inf, upper), 0.0), upper_delta
        ),
        size=size * query.size,
    )


def _rounded_up(value: xp.Array) -> xp.Array:
    return value + 4 * ULP * xp.abs(value)
