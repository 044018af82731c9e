"""What has been spent after each of many steps?"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from opake_jax._checks import check_count, check_real
from opake_jax.accounting._evaluate import any_traced
from opake_jax.accounting._process import Process
from opake_jax.accounting._queries import ask_trajectory

__all__ = ["epsilon_trajectory"]


def epsilon_trajectory(step: Process, counts: Any, delta: Any, *, accountant: Any = None) -> Any:
    """Returns epsilon at `delta` after `counts` repetitions of a step: an upper bound for each.

    One batched call: the step is analysed once, and repeated as powers of its characteristic function.

    Args:
      step: the process that is repeated.
      counts: whole numbers of at least 0, an array of any shape.
      delta: in [0, 1).
      accountant: `PLD(...)` (None) or `RDP(...)`.

    Returns:
      The shape of `counts`; each entry equals `(step * count).epsilon_at(delta)` within the brackets.

    Raises:
      ValueError: a count or delta outside its range.

    >>> from opake_jax.accounting import gaussian
    >>> epsilon_trajectory(gaussian(10.0), [0, 1, 100], 1e-5).round(4).tolist()
    [0.0, 0.3407, 4.3772]
    """
    if not isinstance(step, Process):
        raise TypeError(f"step must be a process, got {type(step).__name__}")
    if not any_traced(delta):
        check_real("delta", delta, high=1.0)
    if not any_traced(counts):
        try:
            counts = np.asarray(counts)
        except ValueError:
            raise ValueError(f"counts must be an array of whole numbers, got {counts!r}") from None
        for count in counts.ravel():
            check_count("counts", count)
    flat = jnp.ravel(counts) if any_traced(counts) else counts.ravel().astype(np.float64)
    upper = ask_trajectory(step.parts, flat, delta, accountant)
    return upper.reshape(np.shape(counts))
