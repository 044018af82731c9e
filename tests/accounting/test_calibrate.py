"""Calibration ends on the private side, within tolerance, in few evaluations, from any bracket."""

import math

import pytest

import opake_jax.accounting as acc
from opake_jax.accounting import calibrate, gaussian, poisson


def w6(sigma):
    return poisson(gaussian(sigma), 0.01) * 1000


# 0.8135845: direct sums (test_smooth.py). accounting.md's 0.813592 comes from upper bounds of two other accountants.
def test_the_common_setting_takes_few_evaluations():
    result = calibrate(acc.epsilon_budget(3.0, 1e-5), w6, 0.1, 10.0)
    assert result.param == pytest.approx(0.8135845, rel=2e-6)
    assert 3.0 * (1 - 1e-6) <= result.achieved <= 3.0 == result.target
    assert result.iterations <= 8
    assert w6(result.param).epsilon_at(1e-5) == result.achieved


# Closed forms: advantage 2 Phi(mu/2) - 1 = 0.1, beta and risk likewise; delta by Balle and Wang (mpmath roots).
@pytest.mark.parametrize(
    ("budget", "mu"),
    [
        (acc.advantage_budget(0.1), 0.25132269),
        (acc.risk_budget(0.45, 0.5), 0.25132269),
        (acc.beta_budget(0.9, 0.05), 0.36330206),
        (acc.delta_budget(0.126936737507, 1.0), 1.0),
        (acc.epsilon_budget(4.37717810, 1e-5), 1.0),
    ],
)
def test_every_budget(budget, mu):
    result = calibrate(budget, gaussian, 0.1, 10.0)
    # 1e-6 of beta 0.9 is 1.4e-5 of sigma.
    assert result.param == pytest.approx(1 / mu, rel=3e-5)
    assert budget.allows(result.achieved)
    assert abs(result.achieved - result.target) <= 1e-6 * result.target
    assert result.iterations <= 9


# Any bracket, any direction: the answer is sigma 3.7306 (report R37).
@pytest.mark.parametrize(("low", "high"), [(0.1, 10.0), (50.0, 60.0), (1e-3, 2e-3), (5.0, 5.0)])
def test_the_bracket_widens_itself(low, high):
    budget = acc.epsilon_budget(1.0, 1e-5)
    assert calibrate(budget, gaussian, low, high).param == pytest.approx(3.7306, rel=1e-4)
    inverse = calibrate(budget, lambda x: gaussian(1 / x), low, high)
    assert inverse.param == pytest.approx(1 / 3.7306, rel=1e-4)
    assert inverse.achieved <= 1.0


@pytest.mark.parametrize("epsilon", [0.01, 100.0])
def test_small_and_large_targets(epsilon):
    result = calibrate(acc.epsilon_budget(epsilon, 1e-5), gaussian, 0.1, 10.0)
    assert epsilon * (1 - 1e-6) <= result.achieved <= epsilon


def test_integers_are_searched_as_integers():
    budget = acc.epsilon_budget(3.0, 1e-5)
    result = calibrate(budget, lambda steps: gaussian(20.0) * steps, 1, 10)
    assert type(result.param) is int
    assert result.achieved <= 3.0 < (gaussian(20.0) * (result.param + 1)).epsilon_at(1e-5)


def test_what_make_process_refuses_ends_the_search():
    # At rate 1 the budget is still kept: the end of the domain is the answer, on the private side.
    result = calibrate(
        acc.epsilon_budget(5.0, 1e-5), lambda q: poisson(gaussian(1.0), q), 0.01, 0.5
    )
    assert result.param == pytest.approx(1.0, rel=1e-6)
    assert result.achieved <= 5.0


def test_impossible_targets_are_errors():
    with pytest.raises(ValueError, match="no parameter keeps the budget"):
        calibrate(acc.epsilon_budget(1.0, 0.0), gaussian, 0.1, 10.0)
    with pytest.raises(ValueError, match="no parameter keeps the budget"):
        calibrate(acc.epsilon_budget(0.1, 1e-5), lambda steps: gaussian(1.0) * steps, 1, 10)
    with pytest.raises(ValueError, match="no parameter keeps the budget"):
        calibrate(acc.epsilon_budget(1.0, 1e-5), lambda _: acc.nonprivate(), 0.1, 10.0)


def test_pure_budgets_and_other_accountants():
    pure = calibrate(acc.epsilon_budget(0.5, 0.0), acc.laplace, 0.1, 10.0)
    assert pure.param == pytest.approx(2.0, rel=1e-6)
    looser = calibrate(acc.epsilon_budget(3.0, 1e-5), w6, 0.1, 10.0, accountant=acc.RDP())
    # Coarser orders give 0.868 (shared/sources/README.md); PLD 0.8136.
    assert 0.8136 < looser.param <= 0.868


def test_what_was_spent_comes_first():
    budget = acc.epsilon_budget(3.0, 1e-5)
    ledger = acc.Accountant(budget) | gaussian(2.0)
    result = calibrate(budget, lambda sigma: ledger | gaussian(sigma) * 10, 0.1, 10.0)
    total = 1 / math.sqrt(1 / 4 + 10 / result.param**2)
    assert gaussian(total).epsilon_at(1e-5) == pytest.approx(3.0, rel=1e-5)
    assert not (ledger | gaussian(result.param) * 10).budget_exceeded


def test_what_is_no_process_is_named():
    budget = acc.epsilon_budget(1.0, delta=1e-5)
    with pytest.raises(TypeError, match="make_process"):
        acc.calibrate(budget, lambda s: 1 / s, param_min=0.1, param_max=2.0)
    with pytest.raises(TypeError, match="compose takes processes"):
        acc.compose([acc.gaussian(1.0), acc.gaussian(1.0)])
    for accountant in (acc.RDP, "rdp", acc.PLD(rtol=-1.0), acc.PLD(rtol="1")):
        with pytest.raises((TypeError, ValueError), match=r"accountant|rtol"):
            acc.gaussian(1.0).epsilon_at(1e-5, accountant=accountant)


@pytest.mark.parametrize("bounds", [(1, 2), (5, 30), (40, 90), (7, 7), (1, 10**6), (10**5, 10**7)])
@pytest.mark.parametrize("steps", [1, 2, 3, 10, 17, 100])
def test_whole_steps_are_found_from_any_range(steps, bounds):
    """The most steps that keep the budget, which itself lies at, or a little above, so many; a range may miss them."""
    target = acc.gaussian(5.0) * steps
    for more in (1.0 + 1e-7, 1.02):
        epsilon = more * target.epsilon_at(1e-5)
        most = steps
        while (acc.gaussian(5.0) * (most + 1)).epsilon_at(1e-5) <= epsilon:
            most += 1
        budget = acc.epsilon_budget(epsilon, delta=1e-5)
        found = acc.calibrate(budget, lambda n: acc.gaussian(5.0) * n, *bounds)
        assert found.param == most
        assert found.achieved <= epsilon
