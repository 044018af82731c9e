"""Does it hold in practice? Empirical lower bounds on epsilon, to hold against the accountant's."""

from opake_jax.auditing._one_run import one_run_epsilon, one_run_gdp
from opake_jax.auditing._points import (
    OperatingPoints,
    epsilon_lower_bound,
    gdp_lower_bound,
    points_from_counts,
    points_from_scores,
)
from opake_jax.auditing._scores import Interval, auroc, tpr_at_fpr

__all__ = [
    "Interval",
    "OperatingPoints",
    "auroc",
    "epsilon_lower_bound",
    "gdp_lower_bound",
    "one_run_epsilon",
    "one_run_gdp",
    "points_from_counts",
    "points_from_scores",
    "tpr_at_fpr",
]
