"""Does it hold in practice? Empirical lower bounds on epsilon, to hold against the accountant's."""

from opake_jax.auditing._canaries import DiracCanaries, canary_losses, plant
from opake_jax.auditing._claims import (
    Verdict,
    contradicts,
    gdp_epsilon,
    judge,
    noise_multiplier_bound,
    one_run_contradicts,
)
from opake_jax.auditing._noise import normal_p_value
from opake_jax.auditing._one_run import one_run_epsilon, one_run_gdp
from opake_jax.auditing._points import (
    OperatingPoints,
    epsilon_lower_bound,
    gdp_lower_bound,
    points_from_counts,
    points_from_scores,
)
from opake_jax.auditing._runs import (
    collect,
    likelihood_ratio,
    paired,
    points_from_runs,
    run_of,
    split,
    spread,
    total,
)
from opake_jax.auditing._scores import Interval, auroc, tpr_at_fpr

__all__ = [
    "DiracCanaries",
    "Interval",
    "OperatingPoints",
    "Verdict",
    "auroc",
    "canary_losses",
    "collect",
    "contradicts",
    "epsilon_lower_bound",
    "gdp_epsilon",
    "gdp_lower_bound",
    "judge",
    "likelihood_ratio",
    "noise_multiplier_bound",
    "normal_p_value",
    "one_run_contradicts",
    "one_run_epsilon",
    "one_run_gdp",
    "paired",
    "plant",
    "points_from_counts",
    "points_from_runs",
    "points_from_scores",
    "run_of",
    "split",
    "spread",
    "total",
    "tpr_at_fpr",
]
