"""Standard normal draws that are right to nine standard deviations.

Inverse CDF on the 64 bits that one threefry block gives for each element. One bit is the sign; the
other 62 make p = (W + 1/2) 2^-63 in (0, 1/2), the upper tail's probability, and x = 1 - 2 p, formed
from the complemented bits so that neither end cancels. With w = -log(4 p (1 - p)) the quantile is

    z = x f(w),   f a polynomial in w - C0,                    w <= 5.75
    z = x sqrt(w) g(w^-1/2),   g a polynomial in w^-1/2 - C1,  w >  5.75

after Giles, "Approximating the erfinv function" (GPU Computing Gems 2, 2011). The largest draw is
9.08 (the missing mass is 2^-63); 0 and infinity never occur, and z and -z have equal probability.
`tests/noise/fit_normal.py` makes the coefficients; the fit's relative error is 3e-8 in the centre
and 5e-8 in the tail.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from opake_jax import _threefry

__all__ = ["STD_INFLATION", "from_words", "normal"]

# Evaluation in float32 shifts the second moment of a draw by -4.8e-8 to 1.9e-8, according to the
# machine's logarithm (measured by stratified quadrature, `tests/noise/test_normal.py`), and rounding
# the std takes up to 2^-22: the noise is made larger by this, so that it is never smaller than stated.
STD_INFLATION = 1.0 + 2.0**-20

_F = np.float32
_SWITCH = _F(5.75)  # beyond this the centre's polynomial loses digits
_C0, _C1 = _F(2.8778750896453857), _F(0.2842445373535156)
_CENTRE = (2.25418425, 0.343644083, -0.00765713863, -0.00131981762, 0.000286698574,
           -1.59871397e-05, -3.19210721e-06, 6.64275888e-07, 1.24889821e-09, -9.32034183e-09)  # fmt: skip
_TAIL = (1.34813583, -0.269712806, 0.194829971, 0.830000341, 1.61438358,
         18.1275921, 11.8305855, -334.868469, -534.302673, 3388.4165)  # fmt: skip
_LOW_31 = np.int32(0x7FFFFFFF)


def normal(key_words: Any, shape: Sequence[int], out_sharding: Any = None) -> jax.Array:
    """Returns float32 standard normal draws; call it under jit, where it fuses.

    Element i (row-major) is a function of the key and i alone: not of the shape, nor of how the
    array is laid out over devices. Words are exact on every backend, floats to a few ulp.

    Args:
      key_words: uint32 words of a key that is used for nothing else, shape (2,).
      shape: the result's shape.
      out_sharding: its sharding on a mesh of explicit axes.
    """
    return from_words(*_threefry.words(key_words, shape, out_sharding))


def from_words(w0: jax.Array, w1: jax.Array) -> jax.Array:
    """Returns the float32 normal quantile of each pair of uint32 words."""
    high = (w0 >> np.uint32(1)).astype(jnp.int32)
    low = (w1 >> np.uint32(1)).astype(jnp.int32)
    p = _join(high, low) * _F(2.0**-32)
    x = _join(high ^ _LOW_31, low ^ _LOW_31) * _F(2.0**-31)
    w = jnp.maximum(-jnp.log(_F(4) * p * (_F(1) - p)), _F(0))
    r = lax.rsqrt(w)
    tail = w > _SWITCH
    t = jnp.where(tail, r - _C1, w - _C0)
    value = jnp.where(tail, _F(_TAIL[-1]), _F(_CENTRE[-1]))
    for c, d in zip(_CENTRE[-2::-1], _TAIL[-2::-1], strict=True):
        value = value * t + jnp.where(tail, _F(d), _F(c))
    z = x * jnp.where(tail, w * r, _F(1)) * value
    sign = (w0 & np.uint32(1)) << np.uint32(31)
    bits = lax.bitcast_convert_type(z, jnp.uint32) | sign
    return lax.bitcast_convert_type(bits, jnp.float32)


def _join(high: jax.Array, low: jax.Array) -> jax.Array:
    """Returns high + (low + 1/2) 2^-31 in float32, for 31-bit integers."""
    return high.astype(jnp.float32) + (low.astype(jnp.float32) + _F(0.5)) * _F(2.0**-31)
