"""The non-uniform FFT against the sum itself, and its error bound at the worst point."""

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax._numerics import NUFFT_ERROR, nufft
from opake_jax._numerics._nufft import _BETA, _OVERSAMPLING, _TAPS, _kernel_transform


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


def test_the_worst_single_point_errs_by_less_than_the_bound():
    # For one point the computed sum has _TAPS terms: sum_n psi(z_n) e^(2 pi i xi z_n) / psi^(xi), which should be
    # 1; z_n are the distances to the cells, xi = k / grid size < 1/4. The supremum over both, in long double.
    size = 512
    k = np.r_[0:size:17, size - 8 : size]
    xi = k / (_OVERSAMPLING * size)
    transform = _kernel_transform(size)[k]
    first = _TAPS / 2 - 1 + np.linspace(1e-9, 1, 300)
    z = (first[:, None] - np.arange(_TAPS)).astype(np.longdouble)
    psi = np.exp(_BETA * (np.sqrt(np.maximum(1 - (z * 2 / _TAPS) ** 2, 0)) - 1))
    pi = np.longdouble("3.14159265358979323846")
    sums = np.array([(psi * np.exp(2j * pi * x * z)).sum(1) for x in xi.astype(np.longdouble)])
    worst = np.abs(sums / transform[:, None] - 1).max()
    assert worst < 0.6 * NUFFT_ERROR
