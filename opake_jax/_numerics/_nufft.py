"""Fourier sums over points that lie on no grid: the type-1 non-uniform FFT.

Each point is spread over `_TAPS` cells of a grid `_OVERSAMPLING` times finer than the highest frequency, by the
exponential-of-semicircle kernel psi(z) = exp(beta (sqrt(1 - z^2) - 1)) (Barnett, Magland, af Klinteberg
2019, arXiv:1808.06736); one real FFT; then each frequency is divided by the kernel's transform.
"""

import functools
from typing import Any

import numpy as np

from opake_jax._numerics import xp

__all__ = ["NUFFT_ERROR", "nufft"]

_OVERSAMPLING = 4
_TAPS = 16
_BETA = 2.30 * _TAPS  # the paper's rule: frequencies of both signs fill half of the grid

# Bound on |computed - exact| for weights of absolute sum 1: the worst single point errs by 4.4e-14 (the supremum over
# its place between cells and over frequencies is taken in tests/_numerics/test_nufft.py; 14 taps would leave
# 8e-13, twenty times what random points show), and rounding adds less than 2e-14.
NUFFT_ERROR = 1e-13


@functools.lru_cache(maxsize=8)
def _kernel_transform(size: int) -> np.ndarray:
    """Returns the kernel's Fourier transform at the frequencies 0..size-1 of the fine grid."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    half = _TAPS / 2
    values = np.exp(_BETA * (np.sqrt(1 - nodes**2) - 1)) * weights * half
    step = 2 * np.pi * half / (_OVERSAMPLING * size)
    # cos((a + b) node) for all a + b < size, as two products of small matrices.
    a = np.arange(0, size, 64)[:, None] * step * nodes
    b = np.arange(64)[:, None] * step * nodes
    whole = (np.cos(a) * values) @ np.cos(b).T - (np.sin(a) * values) @ np.sin(b).T
    return whole.ravel()[:size]


def nufft(weights: Any, positions: Any, size: int) -> tuple[xp.Array, xp.Array]:
    """Returns real and imaginary part of sum_j weights_j exp(2 pi i k positions_j), k = 0..size-1.

    Args:
      weights: shape [B, J], real.
      positions: shape [B, J], in periods; whole parts do not matter.
      size: number of frequencies.

    Returns:
      Two arrays of shape [B, size]; each entry is within NUFFT_ERROR * sum_j |weights_j| of the sum at
      the positions as rounded to float64.
    """
    batch = weights.shape[0]
    fine = _OVERSAMPLING * size
    place = (positions - xp.floor(positions)) * fine
    first = xp.ceil(place - _TAPS / 2)
    offset = (place - first)[..., None] - np.arange(_TAPS)
    # In [0, 1]; kept off 0, where the square root has no derivative.
    inside = xp.maximum(1.0 - (offset * (2 / _TAPS)) ** 2, 1e-30)
    spread = weights[..., None] * xp.exp(_BETA * (xp.sqrt(inside) - 1.0))
    cell = xp.mod(xp.astype(first, np.int32)[..., None] + np.arange(_TAPS, dtype=np.int32), fine)
    cell = cell + np.arange(batch, dtype=np.int32)[:, None, None] * np.int32(fine)
    grid = xp.add_at(np.zeros(batch * fine), cell, spread).reshape(batch, fine)
    spectrum = xp.rfft(grid)[:, :size]
    scale = 1.0 / _kernel_transform(size)
    return spectrum.real * scale, -spectrum.imag * scale
