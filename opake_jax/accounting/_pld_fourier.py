"""What does the composition cost? Certified inversion of the characteristic function.

Let L be the sum of all losses under P (a measure of total mass at most 1), K(s) = log E e^(sL), and s = lam + i w
with lam > 0. Since the transform of e^(-lam u) (1 - e^-u)_+ is 1/(s(s+1)),

    delta(eps) = E (1 - e^(eps-L))_+ = e^(K(lam) - lam eps) I,
    I = (1/2 pi) integral of phi(w) e^(-i w eps)/(s(s+1)) dw,   phi(w) = e^(K(s) - K(lam)).

phi is the characteristic function of the tilted law; for one step it is a non-uniform FFT, for all of them a
product of powers. What is computed is the sum over w_k = 2 pi k/W, |k| < N, of N frequencies, and these are the
errors, each added outward (row 0 is the upper bound, row 1 the lower):

Band limit. Both rows are composed with a Gaussian mechanism of mu^2 = a, which multiplies phi by e^(-a w^2/2 +
...) and makes what lies beyond Omega = w_{N-1} small. Above: releasing more costs more, delta <= delta_a. Below:
delta >= delta_a - kappa d(delta_a)/da, kappa = 2 sqrt(2 pi a) e^(a/8) erf(sqrt(a/8)). Proof: for one loss l and
x = eps - l, f_s(x) = delta of the Gaussian mechanism of mu^2 = s obeys d f_s/ds = (8 pi s)^(-1/2) exp(-s/8 + x/2 -
x^2/(2s)). Hence (f_a - f_0)/(d f_a/da) = integral_0^a sqrt(a/s) exp((a-s)/8 - (x^2/2)(1/s - 1/a)) ds, which falls
with |x| and is kappa at x = 0; f_a(0) - f_0(0) = erf(sqrt(a/8)). Take the mean over l. In the integrand d/da
is a factor s(s+1)/2.

Truncation. |phi| <= 1 and |s(s+1)| >= w^2, so that the frequencies from N on add at most (1/pi) integral over w >
Omega of e^(-a w^2/2) (1/w^2 + kappa/2) <= e^(-z^2/2)/(pi Omega) (1/z^2 + kappa/(2a)), z^2 = a Omega^2.

Periodisation. By Poisson's formula the full sum is sum_m E g(L - eps + mW), g(u) = e^(-lam u) (1 - e^-u)_+ under the
tilted law: the terms m != 0 are >= 0, free above. Below they are subtracted: with B = 1/(1+lam) + r, r = e^(-lam
W)/(1 - e^(-lam W)), they are at most B (P(L > eps+W) + P(L < eps-W+c)) + e^(-lam c)/(1 - e^(-lam W)) for every c,
because g <= 1/(1+lam) and g(u) <= e^(-lam u). Both probabilities by Chernoff on the *full* lower atoms
(coarse ones understate tails) with the Gaussian included. (The periodised kappa term, a density, is
over-counted, which only lowers.)

Complement. For -1 < lam < 0 the integral of -1/(s(s+1)) gives 1 - delta(eps) = E min(1, e^(eps-L)) instead, with
relative accuracy where delta is near 1. Everything above holds with sides exchanged: row 0 now bounds
the integral from below. There g(u) = e^(-lam u) min(1, e^-u) <= e^(-gamma |u|), gamma = min(-lam, 1+lam), and
the periodisation terms are at most 2/(1 - e^(-gamma W)) (P(|L - eps| > W-c) + e^(-gamma c)).

Rounding. One step's computed phi is off by at most e_k = NUFFT_ERROR + (rounding of the weights) + (rounding of the
positions) w_k; with m = |computed| + e_k >= |phi|, the T-th power m^T e^(iT arg) is off by at most T m^(T-1) 2 e_k.
"""

from typing import Any, NamedTuple

import numpy as np

from opake_jax._numerics import NUFFT_ERROR, logsumexp, nufft, xp
from opake_jax.accounting._pairs import ULP
from opake_jax.accounting._pld_tilt import (
    ALIAS,
    Contour,
    Steps,
)

__all__ = [
    "SIDE",
    "ChernoffTails",
    "Curve",
    "Law",
    "Spectrum",
    "StepSpectrum",
    "alias_of",
    "chernoff_tails",
    "compose",
    "curves_of",
    "evaluate",
    "integral",
    "law_of",
    "log_delta_on",
    "log_infinite_delta",
    "spectrum_of",
    "step_spectrum",
]

_BAND = 3e-5  # relative budget of delta for what lies beyond the band limit
SIDE = (1.0, -1.0)


class Spectrum(NamedTuple):
    """The integrand about the centre, [2, N/64, 64] (row, k // 64, k % 64), and its errors, [2].

    An axis of rows has one entry where both are the same.
    """

    log_front: xp.Array
    real: xp.Array
    imag: xp.Array
    frequency: xp.Array
    error: xp.Array
    error_slope: xp.Array
    shift: xp.Array
    log_error: xp.Array
    smoothing: xp.Array


def _log_moment(steps: Steps, row: int, tilt: Any, side: float) -> xp.Array:
    """Returns sum_r T_r log E e^(tilt l_r) of a row, rounded to one side."""
    mass, shift = steps.log_mass[:, row], tilt * steps.loss[:, row]
    size = xp.where(mass > -xp.inf, xp.abs(mass), 0.0) + xp.abs(shift)
    each = logsumexp(mass + shift + side * ULP * (8 + mass.shape[1] + 2 * size))
    return steps.counts @ each + side * 8 * ULP * (steps.counts @ xp.abs(each))


def _rounding_of_weights(steps: Steps, tilt: Any, weights: xp.Array) -> xp.Array:
    """Returns the summed absolute error of the tilted weights: [R, 2]."""
    size = xp.where(weights > 0, xp.abs(steps.log_mass), 0.0) + 2 * xp.abs(tilt * steps.loss)
    return ULP * (4 + (weights * (4 + 2 * size)).sum(2))


class StepSpectrum(NamedTuple):
    """The tilted characteristic function of each kind of step, whatever its count: [R, 2] or [R, 2, N].

    With one law for both rows: [R, 1] or [R, 1, N].
    """

    log_moment: xp.Array
    mean: xp.Array
    weight_error: xp.Array
    log_modulus: xp.Array  # of a bound, never below the exact one
    angle: xp.Array
    relative: xp.Array  # bound on the error of one power, relative to the modulus
    frequency: xp.Array  # [N]
    # Where one law serves for both rows: the log of a bound on its modulus from the last frequency on, [R], and by how
    # much log mass and loss of a step may be above the truth, [R, 2].
    log_beyond: Any = None
    excess: Any = 0.0


def step_spectrum(steps: Steps, tilt: Any, window: Any, frequencies: int) -> StepSpectrum:
    """Returns the characteristic functions of the steps; the counts do not enter."""
    kinds, _, count = steps.loss.shape
    log_moment = logsumexp(steps.log_mass + tilt * steps.loss)
    weights = xp.exp(steps.log_mass + tilt * steps.loss - log_moment[:, :, None])
    mean = (weights * steps.loss).sum(2)
    away = steps.loss - mean[:, :, None]
    deviation = (weights * xp.abs(away)).sum(2)
    real, imag = nufft(
        weights.reshape(2 * kinds, count), (away / window).reshape(2 * kinds, count), frequencies
    )
    w = (2 * xp.pi / window) * xp.arange(frequencies)
    real, imag = real.reshape(kinds, 2, -1), imag.reshape(kinds, 2, -1)
    weight_error = _rounding_of_weights(steps, tilt, weights)
    step_error = (NUFFT_ERROR + weight_error)[:, :, None] + 4 * ULP * deviation[:, :, None] * w
    modulus = xp.sqrt(real * real + imag * imag) + step_error
    return StepSpectrum(
        log_moment,
        mean,
        weight_error,
        xp.log(modulus),
        xp.arctan2(imag, real),
        2 * step_error / modulus,
        w,
    )


def spectrum_of(steps: Steps, contour: Contour, frequencies: int, sign: Any = 1.0) -> Spectrum:
    """Returns the integrand for delta (sign 1) or 1 - delta (sign -1, tilt in (-1, 0))."""
    step = step_spectrum(steps, contour.tilt, contour.window, frequencies)
    return compose(step, steps.counts, contour, sign)


def compose(step: StepSpectrum, counts: Any, contour: Contour, sign: Any = 1.0) -> Spectrum:
    """Returns the integrand of the composition: `step` was made at the contour's tilt and window."""
    tilt, window, w = contour.tilt, contour.window, step.frequency
    frequencies = w.shape[0]
    last = w[-1]
    grown = xp.exp(xp.minimum(counts @ step.weight_error, 50.0))
    a, kappa, truncation = _band_limit(step, counts, contour, last)
    times = counts[:, None, None]
    power = (times * step.log_modulus).sum(0) - 0.5 * a * w * w
    relative = (times * step.relative).sum(0)
    centre = counts @ step.mean + 0.5 * a * (1 + 2 * tilt)
    phase = (times * step.angle).sum(0) + w * (centre - contour.centre)[:, None]
    # 1/(s(s+1)), s(s+1) = tilt (tilt + 1) - w^2 + i w (2 tilt + 1); row 1 less kappa/2.
    down_real, down_imag = tilt * (tilt + 1) - w * w, w * (2 * tilt + 1)
    norm = down_real * down_real + down_imag * down_imag
    kernel_real = sign * down_real / norm
    kernel_imag = (-sign * down_imag / norm)[None]
    if step.log_beyond is not None:  # one law for both rows
        kernel_real = kernel_real[None]
    else:
        kernel_real = xp.stack([kernel_real, kernel_real - sign * kappa / 2])
    density = xp.exp(power) * np.where(np.arange(frequencies) > 0, 2.0, 1.0) / window
    cosine, sine = density * xp.cos(phase), density * xp.sin(phase)
    # Two arrays, not one of both: each cosine is then computed once.
    shape = (-1, frequencies // 64, 64)
    real = (cosine * kernel_real - sine * kernel_imag).reshape(shape)
    imag = (cosine * kernel_imag + sine * kernel_real).reshape(shape)
    size = density * xp.sqrt(kernel_real**2 + kernel_imag**2)
    # The sums over k have two stages of 64 and N/64 terms.
    rounding = relative + ULP * (64 + frequencies / 64 + 4 * xp.abs(power))
    slope = 8 * ULP * (size * w).sum(1)
    front = counts @ step.log_moment
    log_excess, shift_excess = (counts @ step.excess) if np.ndim(step.excess) else (0.0, 0.0)
    return Spectrum(
        log_front=front + 0.5 * a * tilt * (1 + tilt),
        real=real,
        imag=imag,
        frequency=w,
        error=grown * truncation
        + (size * rounding).sum(1)
        + slope * xp.abs(centre - contour.centre),
        error_slope=slope,
        shift=shift_excess + 8 * ULP * (counts @ xp.abs(step.mean) + xp.abs(contour.centre)),
        log_error=log_excess
        + 8 * ULP * (1 + counts @ xp.abs(step.log_moment) + xp.abs(tilt * contour.centre)),
        smoothing=a,
    )


def _band_limit(step: StepSpectrum, counts: Any, contour: Contour, last: Any) -> Any:
    """Returns the smoothing a, its kappa, and a bound on what lies beyond the last frequency, [2] or scalar."""
    if step.log_beyond is not None:  # it dies out by itself
        return 0.0, 0.0, np.exp(counts @ step.log_beyond) / (np.pi * last)
    z2 = xp.clip(-2 * xp.log(_BAND * contour.size * xp.pi * last), 9.0, 60.0)
    a = z2 / (last * last)
    kappa = 2 * xp.sqrt(2 * xp.pi * a) * xp.exp(a / 8) * xp.erf(xp.sqrt(a / 8))
    beyond = 1 / z2 + np.array([0.0, 1.0]) * kappa / (2 * a)
    return a, kappa, xp.exp(-z2 / 2) / (xp.pi * last) * beyond


def integral(offset: xp.Array, spectrum: Spectrum) -> tuple[xp.Array, xp.Array]:
    """Returns the integral I and dI/d eps for both rows at eps = centre + offset, offset of shape [2].

    e^(-i w offset) is an outer product of 64 and N/64 values: two matrix products instead of N cosines.
    """
    outer = spectrum.real.shape[1]
    step = spectrum.frequency[1]
    inner_index, outer_index = xp.arange(64.0), 64 * xp.arange(outer * 1.0)
    inner_angle = offset[:, None] * (step * inner_index)
    outer_angle = offset[:, None] * (step * outer_index)
    c, s = xp.cos(inner_angle), xp.sin(inner_angle)
    basis = xp.stack([c, s, inner_index * c, inner_index * s], -1)
    re = spectrum.real @ basis
    im = spectrum.imag @ basis
    sum_re, sum_im = re[..., 0] + im[..., 1], im[..., 0] - re[..., 1]
    slope_im = im[..., 2] - re[..., 3]
    slope_re = re[..., 2] + im[..., 3]
    c, s = xp.cos(outer_angle), xp.sin(outer_angle)
    value = sum_re * c + sum_im * s
    # d/d offset of Re(C e^(-i w offset)) = w Im(C e^(-i w offset))
    value_im = sum_im * c - sum_re * s
    inner_im = slope_im * c - slope_re * s
    return value.sum(1), step * (outer_index * value_im + inner_im).sum(1)


class Curve(NamedTuple):
    """One row of a spectrum, all of it known."""

    table: np.ndarray  # [2, N/64, 64], complex: the integrand C, and -i w C
    inner: np.ndarray  # -i w_k, k < 64
    outer: np.ndarray  # -i w_k, k = 0, 64, 128, ...
    log_front: float
    error: float
    error_slope: float
    shift: float
    log_error: float

    def integral(self, offset: float) -> tuple[float, float]:
        """Returns I and dI/d eps at eps = centre + offset: see `integral`."""
        found = (self.table @ np.exp(offset * self.inner)) @ np.exp(offset * self.outer)
        return float(found[0].real), float(found[1].real)


def curves_of(spectrum: Spectrum) -> tuple[Curve, Curve]:
    """Returns both rows of a known spectrum."""
    turn = -1j * spectrum.frequency
    values = spectrum.real + 1j * spectrum.imag
    tables = np.stack([values, values * turn.reshape(values.shape[1:])], 1)
    numbers = (spectrum.log_front, spectrum.error, spectrum.error_slope, spectrum.shift)
    each = np.stack([np.broadcast_to(x, 2) for x in (*numbers, spectrum.log_error)])
    upper, lower = (
        Curve(table, turn[:64], turn[::64], *each[:, row].tolist())
        for row, table in enumerate((tables[0], tables[-1]))
    )
    return upper, lower


class Law(NamedTuple):
    """What the answer needs to know of the composed law beside its characteristic function.

    moment: (tilt, side, row) -> log E e^(tilt L), rounded to one side (+1 or -1), of a row (0 is the upper law).
    log_infinity: log of the delta of infinite losses, rounded up.
    largest: () -> an epsilon at which delta is that of the infinite losses alone.
    """

    moment: Any
    log_infinity: Any
    largest: Any


def law_of(steps: Steps) -> Law:
    """Returns the law of composed atoms."""
    return Law(
        lambda tilt, side, row: _log_moment(steps, row, tilt, side),
        log_infinite_delta(steps),
        lambda: _largest_epsilon(steps),
    )


class ChernoffTails(NamedTuple):
    """log P(L > y) <= log_right - right y, log P(L < y) <= log_left + left y, under the tilted law."""

    log_right: xp.Array
    log_left: xp.Array


def chernoff_tails(law: Law, row: int, contour: Contour, a: xp.Array) -> ChernoffTails:
    """Returns bounds on the tails of one row, the Gaussian of mu^2 = a included."""

    def moment(tilt: Any, side: float) -> Any:
        return law.moment(tilt, side, row) + 0.5 * a * tilt * (1 + tilt)

    tilt = contour.tilt
    middle = moment(tilt, -1.0)
    return ChernoffTails(
        moment(tilt + contour.right, 1.0) - middle, moment(tilt - contour.left, 1.0) - middle
    )


def alias_of(epsilon: xp.Array, contour: Contour, tails: ChernoffTails) -> xp.Array:
    """Returns the bound on the periodisation terms, tilt > 0."""
    tilt, window = contour.tilt, contour.window
    # c: where Chernoff's bound on the left tail has fallen to the contour's budget.
    budget = xp.log(ALIAS * contour.size)
    left_end = (budget - tails.log_left) / contour.left
    c = xp.maximum(window - xp.maximum(epsilon - left_end, 0.0), 0.0)
    left = xp.exp(xp.minimum(tails.log_left + contour.left * (epsilon - window + c), 0.0))
    right = xp.exp(xp.minimum(tails.log_right - contour.right * (epsilon + window), 0.0))
    wrapped = -xp.expm1(-tilt * window)
    most = 1 / (1 + tilt) + xp.exp(-tilt * window) / wrapped
    return most * (left + right) + xp.exp(-tilt * c) / wrapped


def evaluate(
    offset: xp.Array, contour: Contour, spectrum: Spectrum, alias: xp.Array, sign: Any = 1.0
) -> tuple[xp.Array, xp.Array, xp.Array]:
    """Returns, per row at centre + offset: log of the bound, its slope, whether it holds.

    The bound is on delta (sign 1: row 0 above, row 1 below) or on 1 - delta (sign -1: below, above). `alias`
    is what periodisation may have added; it is taken off the row that bounds from below.
    """
    value, slope = integral(offset, spectrum)
    side = sign * np.array(SIDE)
    error = spectrum.error + spectrum.error_slope * xp.abs(offset)
    value = value + side * error - xp.where(side < 0, alias, 0.0)
    holds = value > 1e-12 * contour.size
    safe = xp.where(holds, value, contour.size)
    log_bound = (
        spectrum.log_front
        - contour.tilt * (contour.centre + offset)
        + xp.log(safe)
        + side * spectrum.log_error
    )
    return log_bound, -contour.tilt + slope / safe, holds & xp.isfinite(log_bound)


def log_infinite_delta(steps: Steps) -> xp.Array:
    """Returns the log of 1 - prod_r (1 - m_r)^T_r: the delta of infinite losses, rounded up."""
    missing = xp.exp(xp.minimum(steps.log_infinity, 0.0))
    total = steps.counts @ xp.log1p(-missing)
    small = logsumexp(
        steps.log_infinity + xp.log(steps.counts)
    )  # T m bounds it, and cannot underflow
    exact = xp.log(-xp.expm1(xp.where(small > -30.0, total, -1.0)))
    return xp.where(small > -30.0, exact, small) + 16 * ULP


def _largest_epsilon(steps: Steps) -> xp.Array:
    """Returns an epsilon at which delta is that of the infinite losses alone."""
    there = ~(steps.log_mass[:, 0] == -xp.inf)  # a mass that is no number is one
    top = xp.max(xp.where(there, steps.loss[:, 0], -xp.inf), 1)
    total = steps.counts @ xp.where(xp.isnan(top), xp.inf, top)
    return total + 8 * ULP * xp.abs(total)


def log_delta_on(
    steps: Steps, contour: Contour, epsilon: Any, frequencies: int
) -> tuple[xp.Array, xp.Array]:
    """Returns log delta of the upper row on a given contour and its slope in epsilon: differentiable."""
    contour = xp.fixed(contour)
    spectrum = spectrum_of(steps, contour, frequencies)
    offset = xp.broadcast_to(epsilon - contour.centre, (2,))
    value, slope = integral(offset, spectrum)
    safe = xp.where(value[0] > 0, value[0], xp.nan)
    log_delta = spectrum.log_front[0] - contour.tilt * epsilon + xp.log(safe)
    return log_delta, -contour.tilt + slope[0] / safe
