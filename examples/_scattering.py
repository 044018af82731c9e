"""Scattering features of small images: fixed wavelets, nothing learned, each image by itself.

Order 0, 1 and 2 of the scattering transform (Bruna and Mallat 2013, arXiv:1203.1513) with 2 scales
and 8 angles, then normalised in groups as in Tramer and Boneh (2021, arXiv:2011.11660). An image's
features depend on that image alone, so computing them costs no privacy.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

SCALES, ANGLES = 2, 8
# Images are framed by zeros before the circular convolutions: the widest wavelet has sigma 1.6.
FRAME = 4
# Channels 1 + 16 + 64 = 81 are normalised in groups of three.
GROUPS = 27


def morlet(size: int, scale: int, angle: int) -> np.ndarray:
    """Returns the Fourier transform of a Morlet wavelet of mean zero, shape (size, size).

    Sigma 0.8 2^scale, frequency 3 pi / 4 / 2^scale and slant 4 / ANGLES are those of kymatio.
    """
    sigma, frequency, slant = 0.8 * 2**scale, 0.75 * np.pi / 2**scale, 4 / ANGLES
    theta = np.pi * angle / ANGLES
    # Positions run over two periods to each side, so that the wrapped tails are in the sum.
    row, column = np.meshgrid(*[np.arange(-2 * size, 2 * size)] * 2, indexing="ij")
    along = row * np.cos(theta) + column * np.sin(theta)
    across = column * np.cos(theta) - row * np.sin(theta)
    window = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
    window *= slant / (2 * np.pi * sigma**2)
    wave = window * np.exp(1j * frequency * along)
    wavelet = wave - window * wave.sum() / window.sum()
    return np.fft.fft2(wavelet.reshape(4, size, 4, size).sum((0, 2)))


def lowpass(size: int, step: int, out: int) -> np.ndarray:
    """Returns the (out, size) matrix of Gaussian averages, for a grid of every step-th pixel.

    They are centred on the image's pixels 1.5, 5.5, ...: the middles of its 4x4 blocks.
    """
    sigma = 0.8 * 2 ** (SCALES - 1) / step
    centre = (FRAME + 1.5 + 2**SCALES * np.arange(out)) / step
    weight = np.exp(-((np.arange(size) - centre[:, None]) ** 2) / (2 * sigma**2))
    return weight / (np.sqrt(2 * np.pi) * sigma)


@functools.cache
def _scatter(side: int):
    """Returns the jitted map of images (B, side, side) to channels (B, 81, side / 4, side / 4)."""
    size, out = side + 2 * FRAME, side // 4
    wavelets = np.stack([[morlet(size, s, a) for a in range(ANGLES)] for s in range(SCALES)])
    wavelets = jnp.asarray(wavelets, jnp.complex64)
    full = jnp.asarray(lowpass(size, 1, out), jnp.float32)
    half = jnp.asarray(lowpass(size // 2, 2, out), jnp.float32)

    def average(channels, matrix):
        return jnp.einsum("pi,bcij,qj->bcpq", matrix, channels, matrix)

    def coarse(spectrum):
        """Returns every second pixel of the inverse transform: its spectrum is folded in four."""
        *lead, n, _ = spectrum.shape
        return jnp.fft.ifft2(spectrum.reshape(*lead, 2, n // 2, 2, n // 2).mean((-4, -2)))

    @jax.jit
    def scatter(images):
        x = jnp.pad(images, ((0, 0), (FRAME, FRAME), (FRAME, FRAME)))[:, None]
        spectrum = jnp.fft.fft2(x)
        fine = jnp.abs(jnp.fft.ifft2(spectrum * wavelets[0]))
        wide = jnp.abs(coarse(spectrum * wavelets[1]))
        second = jnp.abs(coarse(jnp.fft.fft2(fine)[:, :, None] * wavelets[1]))
        second = second.reshape(len(x), ANGLES**2, size // 2, size // 2)
        channels = [
            average(x, full),
            average(fine, full),
            average(wide, half),
            average(second, half),
        ]
        return jnp.concatenate(channels, axis=1)

    return scatter


@jax.jit
def _normalised(channels):
    """Returns the channels of each image with mean 0 and variance 1 in each group."""
    grouped = channels.reshape(len(channels), GROUPS, -1)
    centred = grouped - grouped.mean(-1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(jnp.square(centred), -1, keepdims=True) + 1e-5)


def features(images: np.ndarray, chunk: int = 250) -> np.ndarray:
    """Returns (N, 81 (side / 4)^2) features of the images (N, side, side); side is a multiple of 4."""
    scatter = _scatter(images.shape[-1])
    parts = [images[i : i + chunk] for i in range(0, len(images), chunk)]
    return np.concatenate(
        [np.asarray(_normalised(scatter(p)), np.float32).reshape(len(p), -1) for p in parts]
    )
