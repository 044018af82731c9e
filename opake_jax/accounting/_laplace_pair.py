"""Atoms of the Laplace mechanism, in closed form.

P = Laplace(0, b), Q = Laplace(1, b). With e = 1/b the loss has an atom at e of P-mass 1/2, one at -e of P-mass e^-e/2,
and between them the density e^((l - e)/2)/4 under P, e^(-(l + e)/2)/4 under Q. The pair is its own reverse.
A cell [l, l + d] has P-mass (e^(d/2) - 1) e^((l - e)/2)/2 and mean likelihood ratio e^(l + d/2); the split between its ends
that keeps both masses gives the right end the share 1/(1 + e^(-d/2)) of P (see `_gaussian_pairs`).
"""

import dataclasses
import math
from typing import Any

import jax

from opake_jax._numerics import xp
from opake_jax.accounting._pairs import ULP, Atoms, Tails, pad_outward

__all__ = ["LaplacePair"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LaplacePair:
    """Laplace noise on a sum that one unit moves by 1.

    Attributes:
      scale: positive; scale of the noise over the L1 sensitivity.
    """

    scale: Any

    def atoms(self, size: int, tails: Tails) -> Atoms:
        """Returns `size - 1` equidistant losses above, as many cells less one and both atoms below."""
        most = 1 / xp.asarray(self.scale, xp.float64)
        # P-mass below l is e^((l - most)/2)/2.
        least = xp.maximum(-most, most + 2 * xp.minimum(tails.low, 0.0))
        count = size - 1
        loss = least + (most - least) * xp.linspace(0.0, 1.0, count)
        loss = xp.set_at(loss, -1, most)
        width = loss[1:] - loss[:-1]
        # Widths are differences of numbers as large as `most`: their relative error, with that of expm1.
        spread = 4 * ULP * (2 + most / width)
        cell = (loss[:-1] - most) / 2 + xp.log(xp.expm1(width / 2)) - math.log(2)
        right = cell - xp.log1p(xp.exp(-width / 2)) + spread
        left = cell - xp.log1p(xp.exp(width / 2)) + spread
        below = ((least - most) / 2 - math.log(2))[None]
        above = xp.full((1,), -math.log(2))
        up = xp.logaddexp(xp.concatenate([left, above]), xp.concatenate([below, right]))
        low = xp.concatenate([(-most - math.log(2))[None], cell - spread, above])
        low_loss = xp.concatenate([-most[None], loss[:-1] + width / 2, most[None]])
        none = xp.full((1,), -xp.inf)
        log_mass, losses = pad_outward(
            xp.stack([xp.concatenate([up, none]), low]),
            xp.stack([xp.append(loss, 0.0), low_loss]),
            8 * ULP * (2 + most),
            4 * ULP * most,
        )
        return Atoms(log_mass, losses, xp.asarray(-xp.inf))
