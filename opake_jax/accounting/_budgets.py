"""How much may be spent? Budgets in every currency, for calibration and for the ledger."""

import dataclasses
import math
from typing import Any

from opake_jax._checks import check_probability, check_real

__all__ = [
    "AdvantageBudget",
    "BetaBudget",
    "Budget",
    "DeltaBudget",
    "EpsilonBudget",
    "RiskBudget",
    "advantage_budget",
    "beta_budget",
    "delta_budget",
    "epsilon_budget",
    "risk_budget",
]


def _log(value: float) -> float:
    """Returns log(value), -inf at 0 and below."""
    return math.log(value) if value > 0 else -math.inf


@dataclasses.dataclass(frozen=True)
class Budget:
    """A limit on one answer of a process.

    Attributes:
      target: the limit. `spent` may not lie beyond it: above for a cost, below for the attacker's error.
    """

    @property
    def target(self) -> float:
        """Returns the limit."""
        raise NotImplementedError

    @property
    def is_cost(self) -> bool:
        """Returns True if smaller is more private (epsilon, delta, advantage)."""
        return True

    def spent(self, process: Any, *, accountant: Any = None) -> Any:
        """Returns the certified answer that the limit is about."""
        raise NotImplementedError

    def scale(self, spent: float) -> float:
        """Returns a smooth function of the answer that grows with the cost, for root finding.

        Against the logarithm of a noise multiplier, a rate or a number of steps it is nearly straight.
        """
        raise NotImplementedError

    def allows(self, spent: Any) -> Any:
        """Returns True if an answer is on the private side of the limit; NaN never is."""
        return spent <= self.target if self.is_cost else spent >= self.target


@dataclasses.dataclass(frozen=True)
class EpsilonBudget(Budget):
    """At most `epsilon` at `delta`; build it with `epsilon_budget`."""

    epsilon: float
    delta: float

    @property
    def target(self) -> float:
        """Returns epsilon."""
        return self.epsilon

    def spent(self, process: Any, *, accountant: Any = None) -> Any:
        """Returns epsilon at delta."""
        return process.epsilon_at(self.delta, accountant=accountant)

    def scale(self, spent: float) -> float:
        """Returns log epsilon."""
        return _log(spent)


@dataclasses.dataclass(frozen=True)
class DeltaBudget(Budget):
    """At most `delta` at `epsilon`; build it with `delta_budget`."""

    delta: float
    epsilon: float

    @property
    def target(self) -> float:
        """Returns delta."""
        return self.delta

    def spent(self, process: Any, *, accountant: Any = None) -> Any:
        """Returns delta at epsilon."""
        return process.delta_at(self.epsilon, accountant=accountant)

    def scale(self, spent: float) -> float:
        """Returns -log(-log delta): a Gaussian tail is straight in it."""
        return -_log(-_log(spent))


@dataclasses.dataclass(frozen=True)
class AdvantageBudget(Budget):
    """At most this membership advantage; build it with `advantage_budget`."""

    advantage: float

    @property
    def target(self) -> float:
        """Returns the advantage."""
        return self.advantage

    def spent(self, process: Any, *, accountant: Any = None) -> Any:
        """Returns the advantage."""
        return process.advantage(accountant=accountant)

    def scale(self, spent: float) -> float:
        """Returns the log odds of the advantage."""
        return _log(spent) - _log(1 - spent)


@dataclasses.dataclass(frozen=True)
class BetaBudget(Budget):
    """At least this false negative rate at `alpha`; build it with `beta_budget`."""

    beta: float
    alpha: float

    @property
    def target(self) -> float:
        """Returns beta."""
        return self.beta

    @property
    def is_cost(self) -> bool:
        """Returns False: more is more private."""
        return False

    def spent(self, process: Any, *, accountant: Any = None) -> Any:
        """Returns beta at alpha."""
        return process.beta_at(self.alpha, accountant=accountant)

    def scale(self, spent: float) -> float:
        """Returns log((1 - alpha - beta)/beta): what the attack gains over guessing."""
        return _log(1 - self.alpha - spent) - _log(spent)


@dataclasses.dataclass(frozen=True)
class RiskBudget(Budget):
    """At least this Bayes error at `prior`; build it with `risk_budget`."""

    risk: float
    prior: float

    @property
    def target(self) -> float:
        """Returns the risk."""
        return self.risk

    @property
    def is_cost(self) -> bool:
        """Returns False: more is more private."""
        return False

    def spent(self, process: Any, *, accountant: Any = None) -> Any:
        """Returns the Bayes error at the prior."""
        return process.risk_at(self.prior, accountant=accountant)

    def scale(self, spent: float) -> float:
        """Returns log((guess - risk)/risk): what the attack gains over guessing."""
        return _log(min(self.prior, 1 - self.prior) - spent) - _log(spent)


def epsilon_budget(epsilon: Any, delta: Any) -> EpsilonBudget:
    """Returns the budget `epsilon_at(delta) <= epsilon`; epsilon in (0, inf), delta in [0, 1).

    At delta 0 only pure mechanisms (Laplace, randomised response) can keep it.

    >>> epsilon_budget(3.0, delta=1e-5)
    EpsilonBudget(epsilon=3.0, delta=1e-05)
    """
    check_real("epsilon", epsilon, low_open=True, remedy="no finite noise reaches epsilon 0")
    check_real("delta", delta, high=1.0, remedy="usually below 1 / dataset size")
    return EpsilonBudget(float(epsilon), float(delta))


def delta_budget(delta: Any, epsilon: Any) -> DeltaBudget:
    """Returns the budget `delta_at(epsilon) <= delta`; delta in (0, 1), epsilon in [0, inf)."""
    check_real("delta", delta, low_open=True, high=1.0, remedy="usually below 1 / dataset size")
    check_real("epsilon", epsilon)
    return DeltaBudget(float(delta), float(epsilon))


def advantage_budget(advantage: Any) -> AdvantageBudget:
    """Returns the budget `advantage() <= advantage`; in (0, 1)."""
    check_real("advantage", advantage, low_open=True, high=1.0)
    return AdvantageBudget(float(advantage))


def beta_budget(beta: Any, alpha: Any) -> BetaBudget:
    """Returns the budget `beta_at(alpha) >= beta`; alpha in (0, 1), beta in (0, 1 - alpha).

    No process has a false negative rate above 1 - alpha: that of guessing.
    """
    check_real("alpha", alpha, low_open=True, high=1.0)
    check_real(
        "beta",
        beta,
        low_open=True,
        high=1 - float(alpha),
        remedy="1 - alpha is reached by guessing",
    )
    return BetaBudget(float(beta), float(alpha))


def risk_budget(risk: Any, prior: Any) -> RiskBudget:
    """Returns the budget `risk_at(prior) >= risk`; prior in (0, 1), risk in (0, min(prior, 1 - prior)).

    No process has a Bayes error above min(prior, 1 - prior): that of guessing.
    """
    check_probability("prior", prior)
    guess = min(float(prior), 1 - float(prior))
    check_real("risk", risk, low_open=True, high=guess, remedy="min(prior, 1 - prior) is guessing")
    return RiskBudget(float(risk), float(prior))
