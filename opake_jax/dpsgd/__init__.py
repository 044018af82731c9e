"""How do the pieces fit together? `plan` decides a whole DP-SGD mechanism once.

`opake_jax.dpsgd.accounting`, `.clipping`, `.noise` and `.sampling` hand on the names that a DP-SGD
script needs from the rooms of the same name.
"""

from opake_jax.dpsgd._adaptive import AdaptiveClipping
from opake_jax.dpsgd._plan import Plan, plan
from opake_jax.dpsgd._report import Report

__all__ = ["AdaptiveClipping", "Plan", "Report", "plan"]
