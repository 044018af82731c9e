"""What does it cost? Processes, their composition, and certified answers about them."""

from opake_jax.accounting import classical, rdp
from opake_jax.accounting._adaclip import adaclip, gradient_noise_multiplier
from opake_jax.accounting._budgets import (
    Budget,
    advantage_budget,
    beta_budget,
    delta_budget,
    epsilon_budget,
    risk_budget,
)
from opake_jax.accounting._calibrate import Calibration, calibrate
from opake_jax.accounting._eps_delta import eps_delta
from opake_jax.accounting._fixed_size import fixed_size
from opake_jax.accounting._gaussian import gaussian
from opake_jax.accounting._k_out_of_t import k_out_of_t, one_out_of_t
from opake_jax.accounting._laplace import laplace
from opake_jax.accounting._ledger import Accountant
from opake_jax.accounting._mixture_of_gaussians import mixture_of_gaussians
from opake_jax.accounting._nonprivate import nonprivate
from opake_jax.accounting._parallel_poisson import parallel_poisson
from opake_jax.accounting._pld import PLD
from opake_jax.accounting._poisson import poisson
from opake_jax.accounting._process import Process, compose, identity, repeat
from opake_jax.accounting._rdp import RDP
from opake_jax.accounting._selection import Selection, private_selection
from opake_jax.accounting._shuffled import shuffled, shuffled_lower_bound
from opake_jax.accounting._trade_off import GaussianSummary, TradeOff
from opake_jax.accounting._trajectory import epsilon_trajectory
from opake_jax.accounting._truncated_poisson import truncated_poisson
from opake_jax.types import NeighboringRelation

__all__ = [
    "PLD",
    "RDP",
    "Accountant",
    "Budget",
    "Calibration",
    "GaussianSummary",
    "NeighboringRelation",
    "Process",
    "Selection",
    "TradeOff",
    "adaclip",
    "advantage_budget",
    "beta_budget",
    "calibrate",
    "classical",
    "compose",
    "delta_budget",
    "eps_delta",
    "epsilon_budget",
    "epsilon_trajectory",
    "fixed_size",
    "gaussian",
    "gradient_noise_multiplier",
    "identity",
    "k_out_of_t",
    "laplace",
    "mixture_of_gaussians",
    "nonprivate",
    "one_out_of_t",
    "parallel_poisson",
    "poisson",
    "private_selection",
    "rdp",
    "repeat",
    "risk_budget",
    "shuffled",
    "shuffled_lower_bound",
    "truncated_poisson",
]
