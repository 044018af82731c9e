"""What does it cost? Processes, their composition, and certified answers about them."""

from opake_jax.accounting import rdp
from opake_jax.accounting._budgets import (
    Budget,
    advantage_budget,
    beta_budget,
    delta_budget,
    epsilon_budget,
    risk_budget,
)
from opake_jax.accounting._calibrate import Calibration, calibrate
from opake_jax.accounting._gaussian import gaussian
from opake_jax.accounting._pld import PLD
from opake_jax.accounting._poisson import poisson
from opake_jax.accounting._process import Process, compose, identity, repeat
from opake_jax.accounting._rdp import RDP
from opake_jax.types import NeighboringRelation

__all__ = [
    "PLD",
    "RDP",
    "Budget",
    "Calibration",
    "NeighboringRelation",
    "Process",
    "advantage_budget",
    "beta_budget",
    "calibrate",
    "compose",
    "delta_budget",
    "epsilon_budget",
    "gaussian",
    "identity",
    "poisson",
    "rdp",
    "repeat",
    "risk_budget",
]
