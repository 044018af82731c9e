"""Log-space sums and differences against mpmath."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np

from opake_jax._numerics import log1mexp, logsumexp

mpmath.mp.dps = 40


def test_log1mexp_is_accurate_at_both_ends_and_across_the_switch():
    points = [-1e-300, -1e-12, -0.6931471, -0.6931472, -0.7, -5.0, -40.0, -700.0]
    with jax.enable_x64(True):
        values = np.asarray(jax.jit(log1mexp)(jnp.asarray(points)))
    for x, value in zip(points, values, strict=True):
        x = mpmath.mpf(x)
        want = mpmath.log(-mpmath.expm1(x)) if x > -1 else mpmath.log1p(-mpmath.exp(x))
        assert float(abs(value / want - 1)) < 1e-14, x


def test_log1mexp_is_nan_where_there_is_no_logarithm():
    with jax.enable_x64(True):
        assert np.isnan(float(jax.jit(log1mexp)(jnp.asarray(1e-3))))


def test_logsumexp_neither_overflows_nor_loses_minus_infinity():
    with jax.enable_x64(True):
        x = jnp.array([[1000.0, 1000.0], [-jnp.inf, -3.0], [-jnp.inf, -jnp.inf], [-1e4, -1e4]])
        got, pull = jax.device_get(jax.jit(lambda v: (logsumexp(v), jax.jacrev(logsumexp)(v)))(x))
    slope = pull.sum(0)
    np.testing.assert_allclose(
        got[[0, 1, 3]], [1000 + np.log(2), -3.0, -1e4 + np.log(2)], rtol=1e-15
    )
    assert got[2] == -np.inf
    np.testing.assert_allclose(slope[[0, 1]], [[0.5, 0.5], [0.0, 1.0]], rtol=1e-15)
    assert np.all(np.isfinite(slope))
