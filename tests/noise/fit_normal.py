"""Makes the coefficients of `opake_jax/noise/_normal.py`: python tests/noise/fit_normal.py (a minute).

f(w) = z / x with w = -log(4 p (1 - p)) and x = 1 - 2 p. Centre: a polynomial in w - C0; tail: sqrt(w) times a polynomial
in w^-1/2 - C1. Relative minimax by iteratively reweighted least squares on Chebyshev nodes; 40-digit quantiles.
"""

import mpmath as mp
import numpy as np

SWITCH, DEGREE = 5.75, 9


def upper_quantile(p):
    """Returns z with P(Z > z) = p, 0 < p <= 1/2, to 40 digits: Newton on log P(Z > z)."""
    with mp.workdps(40):
        p = mp.mpf(p)
        if p > 1e-12:
            z = mp.sqrt(2) * mp.erfinv(1 - 2 * p)
        else:
            z = mp.sqrt(-2 * mp.log(p) - mp.log(-4 * mp.pi * mp.log(p)))
        for _ in range(5):
            tail = mp.erfc(z / mp.sqrt(2)) / 2
            density = mp.exp(-z * z / 2) / mp.sqrt(2 * mp.pi)
            z += (mp.log(tail) - mp.log(p)) * tail / density
        return z


def ratio(w):
    """Returns z / x at this w."""
    if w <= 0:
        return mp.sqrt(mp.pi / 2)
    a = mp.exp(-mp.mpf(w))
    x = mp.sqrt(1 - a)
    return upper_quantile(a / (2 * (1 + x))) / x


def fit(low, high, inverse, scale, nodes=160):
    """Returns (relative error, float32 coefficients about the middle, the middle)."""
    t = np.cos(np.pi * (2 * np.arange(nodes) + 1) / (2 * nodes))
    v = low + (high - low) * (t + 1) / 2
    target = np.array(
        [float(ratio(inverse(mp.mpf(float(q)))) / scale(mp.mpf(float(q)))) for q in v]
    )
    basis = np.polynomial.chebyshev.chebvander(t, DEGREE) / target[:, None]
    weights, best = np.ones(nodes), (np.inf, np.zeros(DEGREE + 1))
    for _ in range(300):
        found = np.linalg.lstsq(basis * weights[:, None], weights, rcond=None)[0]
        residual = np.abs(basis @ found - 1)
        if residual.max() < best[0]:
            best = (residual.max(), found)
        weights = np.maximum(weights * (residual + 1e-13) ** 0.3, 1e-12)
        weights /= weights.max()
    middle = float(np.float32((low + high) / 2))
    series = np.polynomial.chebyshev.Chebyshev(best[1], domain=[low, high])
    power = series.convert(
        kind=np.polynomial.Polynomial, domain=[middle - 1, middle + 1], window=[-1, 1]
    )
    return best[0], power.coef.astype(np.float32), middle


if __name__ == "__main__":
    mp.mp.dps = 40
    end = float(-mp.log(4 * mp.mpf(2) ** -65) * mp.mpf("1.001"))
    for name, found in (
        ("centre", fit(0.0, SWITCH * 1.001, lambda q: q, lambda q: mp.mpf(1))),
        ("tail", fit(end**-0.5, (SWITCH * 0.999) ** -0.5, lambda q: q**-2, lambda q: 1 / q)),
    ):
        print(name, f"error {found[0]:.1e} middle {found[2]!r}")
        print([float(f"{c:.9g}") for c in found[1]])
