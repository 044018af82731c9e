"""The gradient function of a plan: that of `clipping`, for batches that are padded."""

from typing import Any

import jax

from opake_jax._checks import require
from opake_jax.clipping import GradFn, PrivateAux
from opake_jax.types import ClippedSum, PyTree

__all__ = ["PlannedGradFn", "check_mask"]


class PlannedGradFn:
    """Gradient function of a plan; `Plan.clipped_grad` makes it. `clipped_grad`'s, but that it needs the mask."""

    def __init__(self, inner: GradFn):
        self._inner = inner

    def __call__(
        self,
        params: PyTree,
        batch: PyTree,
        *,
        mask: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> tuple[ClippedSum, PrivateAux]:
        """Returns the clipped sum over the real rows of the batch, and per-unit values; see `clipping.clipped_grad`.

        Raises:
          ValueError: no mask. TypeError, ValueError: as there.
        """
        check_mask(mask)
        return self._inner(params, batch, mask=mask, key=key)


def check_mask(mask: Any) -> None:
    """Raises if there is no mask: the rows of a plan's batch that are padding repeat a record."""
    require(
        mask is not None,
        "pass mask=, the second half of what the plan's batches yield: rows that are padding repeat a record, which "
        "would count many times over. If truly all rows are real: mask=jnp.ones(rows, bool)",
    )
