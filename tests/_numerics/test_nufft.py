"""The non-uniform FFT against the sum itself, and its error bound against the kernel's transform."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np

from opake_jax._numerics import NUFFT_ERROR, nufft
from opake_jax._numerics._nufft import _BETA, _OVERSAMPLING, _TAPS


def test_nufft_is_within_its_bound_of_the_direct_sum():
    rng = np.random.default_rng(0)
    size = 512
    weights = rng.dirichlet(np.ones(700), 2)
    # Inside one period, far outside it, at whole numbers, and all in one spot.
    positions = np.concatenate(
        [rng.normal(size=(2, 400)), 50 * rng.normal(size=(2, 200)), np.full((2, 50), 0.3)], 1
    )
    positions = np.concatenate([positions, rng.integers(-3, 4, (2, 50)).astype(float)], 1)
    with jax.enable_x64(True):
        transform = jax.jit(nufft, static_argnums=2)
        real, imag = transform(jnp.asarray(weights), jnp.asarray(positions), size)
    k = np.arange(size)
    # Reduced modulo 1 first, so that the direct sum rounds no phase above 2 pi * 512.
    phase = 2 * np.pi * k[:, None] * (positions - np.round(positions))[:, None]
    want = (weights[:, None] * np.exp(1j * phase)).sum(2)
    error = np.abs(np.asarray(real) + 1j * np.asarray(imag) - want).max()
    # The direct sum errs by about 1e-16 * 2 pi * 512 itself.
    assert error < NUFFT_ERROR + 4e-13
    assert np.abs(np.asarray(real)[:, :40] + 1j * np.asarray(imag)[:, :40] - want[:, :40]).max() < (
        NUFFT_ERROR + 3e-14
    )


def test_the_aliases_of_the_kernel_add_up_to_less_than_the_bound():
    # At frequency xi (cycles per cell) the transform of the kernel on [-TAPS/2, TAPS/2] is, but for the
    # truncation at its ends (e^-beta = 1e-14), known in closed form (Barnett 2020, arXiv:2001.09405); here
    # it is integrated in 40 digits. The worst frequency is the highest, 1/(2 * 2) of the grid... at most 1/4.
    mpmath.mp.dps = 30
    half = mpmath.mpf(_TAPS) / 2

    def transform(xi):
        f = lambda z: mpmath.exp(_BETA * (mpmath.sqrt(1 - (z / half) ** 2) - 1)) * mpmath.cos(
            2 * mpmath.pi * xi * z
        )
        return 2 * mpmath.quad(f, mpmath.linspace(0, half, 15))

    worst = mpmath.mpf(1) / _OVERSAMPLING
    here = transform(worst)
    aliases = sum(abs(transform(worst + m)) for m in (-3, -2, -1, 1, 2, 3))
    assert float(aliases / here) < 0.8 * NUFFT_ERROR
