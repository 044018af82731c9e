"""What users of other accountants ran into (reports R26 to R39) cannot happen here.

Figures are the reports' own: dp_accounting 0.6.0 (PLD to 1 %, RDP to 0.5 %) or closed forms (1e-4), as noted
at each. Where the reference table has the setting, its bracket is used instead.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import opake_jax.accounting as acc
import opake_jax.dpsgd.accounting as dpsgd
from opake_jax.types import NeighboringRelation

PLD_FIGURES, RDP_FIGURES, CLOSED = 0.01, 0.005, 1e-4


def poisson(sigma, q):
    return dpsgd.poisson(dpsgd.gaussian(sigma), q)


# --- R26: bad parameters accepted ------------------------------------------------------------------

NAN = math.nan


# R26
@pytest.mark.parametrize("sigma", [-1.0, NAN])
def test_a_noise_multiplier_below_zero_or_nan_is_refused(sigma):
    with pytest.raises(ValueError, match="noise_multiplier"):
        dpsgd.gaussian(sigma)


# R26 (1.1: sigma and q swapped)
@pytest.mark.parametrize("q", [-0.1, 1.2, 1.1, NAN])
def test_a_sample_rate_outside_0_1_is_refused(q):
    with pytest.raises(ValueError, match="sample_rate"):
        poisson(1.0, q)


# R26
@pytest.mark.parametrize("count", [-1, 2.5, NAN])
def test_a_count_below_zero_or_fractional_is_refused(count):
    with pytest.raises(ValueError, match="count"):
        poisson(1.0, 0.01) * count


# R26
@pytest.mark.parametrize("delta", [-1.0, 2.0, NAN])
def test_a_delta_outside_0_1_is_refused(delta):
    with pytest.raises(ValueError, match="delta"):
        poisson(1.0, 0.01).epsilon_at(delta)


# R26
def test_a_cap_of_zero_is_refused():
    with pytest.raises(ValueError, match="truncated_batch_size"):
        dpsgd.poisson(dpsgd.gaussian(1.0), 0.1, truncated_batch_size=0, dataset_size=100)


@jax.jit
def traced_epsilon(sigma, q, count):
    return (poisson(sigma, q) * count).epsilon_at(1e-5)


# R26
@pytest.mark.parametrize(
    ("sigma", "q", "count"), [(-1.0, 0.01, 9), (NAN, 0.01, 9), (1.0, 1.2, 9), (1.0, 0.01, -1)]
)
def test_bad_traced_parameters_never_look_private(sigma, q, count):
    value = float(traced_epsilon(sigma, q, float(count)))
    assert math.isnan(value) or value == math.inf


# --- R27, R28: the ends of the range -----------------------------------------------------------------


# R27
def test_order_one_is_refused():
    with pytest.raises(ValueError, match="order"):
        acc.rdp.poisson_gaussian(1.0, 0.01, [1.0])


# R27 (closed form; RDP: dp_accounting)
def test_a_sample_rate_of_one_is_the_plain_gaussian():
    sampled, plain = poisson(2.0, 1.0) * 10, dpsgd.gaussian(2.0) * 10
    for process in (sampled, plain):
        assert process.epsilon_at(1e-5) == pytest.approx(7.5113, rel=CLOSED)
        assert process.epsilon_at(1e-5, accountant=acc.RDP()) == pytest.approx(
            8.079, rel=RDP_FIGURES
        )


# R27
def test_nothing_released_costs_nothing():
    assert (poisson(1.0, 0.0) * 10).epsilon_at(1e-5) == 0.0
    assert (poisson(1.0, 0.01) * 0).epsilon_at(1e-5) == 0.0
    assert (poisson(1.0, 0.0) * 10).epsilon_at(1e-5, accountant=acc.RDP()) == 0.0
    assert (poisson(0.0, 0.0) * 10).epsilon_at(1e-5) == 0.0


# R27
def test_no_noise_is_epsilon_infinity_and_no_exception():
    process = poisson(0.0, 0.01) * 10
    assert process.epsilon_at(1e-5) == math.inf
    assert process.epsilon_at(1e-5, accountant=acc.RDP()) == math.inf
    assert 1 - 0.99**10 <= process.delta_at(1.0) <= 1.0
    assert dpsgd.gaussian(0.0).epsilon_at(1e-5) == math.inf


# R28 (closed form: delta(0) = q (2 Phi(1/2) - 1) = 4.02e-4). The report's RDP figure, 0.609, is the best of
# whole orders; mpmath (tests/reference/closed_forms.py) gives 0.5955 at order 14.4.
def test_epsilon_zero_means_that_delta_at_zero_is_below_delta():
    process = poisson(1.0, 0.00105)
    assert process.delta_at(0.0) == pytest.approx(0.00105 * 0.38292492, rel=CLOSED)
    assert process.epsilon_at(1e-3) == 0.0
    assert process.epsilon_at(1e-5) == pytest.approx(0.00978, rel=PLD_FIGURES)
    assert process.epsilon_at(1e-5, accountant=acc.RDP()) == pytest.approx(0.5955, rel=RDP_FIGURES)


# R28
def test_more_orders_never_raise_epsilon():
    few = [1.0001, 16, 64, 1024]
    many = [*few, 1.01, 1.5, 2, 3, 5, 8, 12.5, 32, 63, 128, 256.5, 512]
    for sigma, q, steps in [(1.0, 0.00105, 1), (1.0, 0.01, 1000), (0.5, 0.2, 30)]:
        process = poisson(sigma, q) * steps
        some, all_of_them = (
            process.epsilon_at(1e-5, accountant=acc.RDP(orders=orders)) for orders in (few, many)
        )
        assert all_of_them <= some


# --- R29: delta(epsilon) and epsilon(delta) ----------------------------------------------------------


# R29
def test_epsilon_is_never_negative():
    assert (poisson(1.0, 0.01) * 100).epsilon_at(0.5) == 0.0
    assert (dpsgd.gaussian(5.0) * 1).epsilon_at(0.9) == 0.0
    assert (poisson(1.0, 0.01) * 100).epsilon_at(0.9, accountant=acc.RDP()) == 0.0


# R29 (dp_accounting)
@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, 0.16102), (0.5, 0.030568), (1.0, 0.0026125), (2.0, 2.666e-6), (3.0, 9.2e-10)],
)
def test_delta_of_the_common_setting(epsilon, delta):
    value = (poisson(1.0, 0.01) * 1000).delta_at(epsilon)
    assert value == pytest.approx(delta, rel=PLD_FIGURES)


# R29
def test_delta_decreases():
    # Where the curve is steeper than the bracket is wide, it must fall strictly.
    process = poisson(1.0, 0.01) * 1000
    values = process.delta_at(np.linspace(0.0, 5.0, 25))
    assert np.all(np.diff(values) <= 0)
    assert np.all(values > 0)
    # At uneven distances, small ones among them, it may rise by the bracket's width, 1e-4, at the most.
    uneven = process.delta_at(np.sort(np.random.default_rng(0).uniform(0.0, 5.0, 100)))
    assert np.all(uneven[1:] <= uneven[:-1] * (1 + 1e-4))


# R29
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0, 4.0])
def test_epsilon_of_delta_of_epsilon_is_epsilon(epsilon):
    process = poisson(1.0, 0.01) * 1000
    assert process.epsilon_at(process.delta_at(epsilon)) == pytest.approx(epsilon, rel=1e-3)


# --- R30: large epsilon ------------------------------------------------------------------------------


# R30 (dp_accounting; the last two on a grid of 1e-3)
@pytest.mark.parametrize(
    ("sigma", "q", "steps", "epsilon"),
    [(1.0, 0.2, 10, 4.984), (1.0, 0.2, 500, 38.17), (0.5, 0.1, 100, 31.37)],
)
def test_large_epsilon_is_answered(sigma, q, steps, epsilon):
    assert (poisson(sigma, q) * steps).epsilon_at(1e-5) == pytest.approx(epsilon, rel=PLD_FIGURES)


# R30 (the report's 43.36 is the best of dp_accounting's orders; mpmath gives 40.9416 at order 1.7)
def test_renyi_epsilon_is_above_at_large_epsilon():
    value = (poisson(1.0, 0.2) * 500).epsilon_at(1e-5, accountant=acc.RDP())
    assert value == pytest.approx(40.94, rel=RDP_FIGURES)


# --- R31: calibration --------------------------------------------------------------------------------


# R31 (dp_accounting)
@pytest.mark.parametrize(
    ("epsilon", "delta", "q", "steps", "sigma"),
    [
        (0.1, 1e-5, 0.01, 1000, 9.805),
        (1.0, 1e-5, 0.01, 1000, 1.4148),
        (8.0, 1e-5, 0.01, 1000, 0.5863),
        (10.0, 1e-5, 0.1, 100, 0.8370),
        (50.0, 1e-5, 0.1, 100, 0.4109),
        (0.1, 1 / (2 * 67_349), 1000 / 67_349, 203, 6.81),
    ],
)
def test_one_default_call_calibrates_small_and_large_targets(epsilon, delta, q, steps, sigma):
    result = acc.calibrate(
        acc.epsilon_budget(epsilon, delta=delta),
        lambda noise_multiplier: poisson(noise_multiplier, q) * steps,
        param_min=0.1,
        param_max=10.0,
    )
    assert result.param == pytest.approx(sigma, rel=PLD_FIGURES)
    assert epsilon * (1 - 1e-4) <= result.achieved <= epsilon
    achieved = (poisson(result.param, q) * steps).epsilon_at(delta)
    assert achieved <= epsilon


# R31
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_an_impossible_target_is_a_clear_error(epsilon):
    # No Gaussian noise gives pure DP.
    with pytest.raises(ValueError, match=r"epsilon|delta"):
        acc.calibrate(
            acc.epsilon_budget(epsilon, delta=0.0),
            lambda noise_multiplier: poisson(noise_multiplier, 0.01) * 1000,
            param_min=0.1,
            param_max=10.0,
        )


# --- R32: a query changes nothing --------------------------------------------------------------------


# R32 (dp_accounting)
def test_a_query_leaves_the_ledger_as_it_was():
    step = poisson(1.0, 0.01)
    first = acc.Accountant() | step * 100
    assert first.epsilon_at(1e-5) == pytest.approx(0.7180, rel=PLD_FIGURES)
    assert first.epsilon_at(1e-5) == first.epsilon_at(1e-5)
    second = first | step * 100
    assert second.epsilon_at(1e-5) == pytest.approx(0.9125, rel=PLD_FIGURES)
    assert first.epsilon_at(1e-5) == pytest.approx(0.7180, rel=PLD_FIGURES)


# R32
def test_processes_and_ledgers_are_frozen():
    step = poisson(1.0, 0.01)
    for value, field in [
        (step, "sample_rate"),
        (step * 100, "counts"),
        (acc.Accountant() | step, "process"),
    ]:
        assert hasattr(value, field)
        with pytest.raises(AttributeError):
            setattr(value, field, None)


# --- R33: the central limit is no bound --------------------------------------------------------------


# R33 (dp_accounting; the central limit says 1.838)
def test_epsilon_is_not_the_central_limit_figure():
    process, delta = poisson(3.0, 0.2) * 50, 1 / 48_000
    assert process.epsilon_at(delta) == pytest.approx(1.961, rel=PLD_FIGURES)
    renyi = process.epsilon_at(delta, accountant=acc.RDP())
    assert renyi == pytest.approx(2.169, rel=RDP_FIGURES)
    # ... and a GDP summary, where offered, covers the whole curve above min_delta.
    mu = process.gdp(min_delta=1e-6)
    mu = float(getattr(mu, "mu", mu))
    assert dpsgd.gaussian(1 / mu).epsilon_at(delta) >= process.epsilon_bounds(delta)[0]


# --- R34: replace-one moves the sum by twice the norm -------------------------------------------------


# R34 (closed forms)
def test_replace_one_doubles_the_distance_under_both_accountants():
    for relation, epsilon in [
        (NeighboringRelation.ADD_REMOVE, 4.37717810),
        (NeighboringRelation.ZERO_OUT, 4.37717810),
        (NeighboringRelation.REPLACE_ONE, 9.99725615),
    ]:
        process = dpsgd.gaussian(1.0, relation=relation)
        assert process.relation is relation
        assert process.epsilon_at(1e-5) == pytest.approx(epsilon, rel=1e-6)
        renyi = process.epsilon_at(1e-5, accountant=acc.RDP())
        assert epsilon <= renyi <= 1.1 * epsilon


# R34
def test_relations_do_not_mix():
    one = dpsgd.gaussian(1.0)
    other = dpsgd.gaussian(1.0, relation=NeighboringRelation.REPLACE_ONE)
    with pytest.raises(ValueError, match=r"ADD_REMOVE.*REPLACE_ONE"):
        one | other


# --- R35: remove and add differ ----------------------------------------------------------------------


# R35 (closed form of one step; dp_accounting). The add direction says 0, 0.105 and 0.338.
def test_the_worse_direction_counts():
    assert poisson(0.5, 0.5).delta_at(1.0) == pytest.approx(0.2105, rel=1e-3)
    assert poisson(0.5, 0.1).epsilon_at(1e-5) == pytest.approx(6.576, rel=1e-3)
    assert (poisson(1.0, 0.01) * 100).epsilon_at(1e-5) == pytest.approx(0.718, rel=PLD_FIGURES)


# --- R36: advantage and trade-off --------------------------------------------------------------------


# R36 (closed form of randomised response with truth 0.6)
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.2, 0.4, 0.5, 0.6, 0.9, 1.0])
def test_beta_of_randomised_response(alpha):
    process = acc.eps_delta(math.log(1.5))
    exact = max(1 - 1.5 * alpha, (1 - alpha) / 1.5)
    assert exact - 1e-6 <= process.beta_at(alpha) <= exact + 1e-15


# R36
def test_advantage_of_randomised_response():
    value = acc.eps_delta(math.log(1.5)).advantage()
    assert 0.2 - 1e-15 <= value <= 0.2 + 1e-6


# R36 (closed forms, Gaussian sigma 1)
def test_advantage_and_beta_of_the_gaussian():
    process = dpsgd.gaussian(1.0)
    assert process.advantage() == pytest.approx(0.3829249, rel=CLOSED)
    assert process.beta_at(0.01) == pytest.approx(0.90763775, rel=CLOSED)
    assert process.beta_at(0.1) == pytest.approx(0.61086, rel=CLOSED)


# R36 (dp_accounting)
def test_advantage_and_beta_of_the_common_setting():
    process = poisson(1.0, 0.01) * 1000
    assert process.advantage() == pytest.approx(0.16102, abs=1e-3)
    assert process.beta_at(0.01) == pytest.approx(0.97090, abs=1e-3)
    assert process.beta_at(0.1) == pytest.approx(0.80582, abs=1e-3)


# R36 (closed form: the flat part of an asymmetric curve)
def test_beta_of_one_asymmetric_step():
    process = poisson(0.5, 0.5)
    assert process.advantage() == pytest.approx(0.34134, abs=1e-3)
    assert process.beta_at(0.5) == pytest.approx(0.15866, abs=1e-3)
    assert process.beta_at(0.5) <= 0.158656  # 1 - Phi(1): a lower bound stays below


# R36
def test_beta_is_a_trade_off_function():
    alpha = np.linspace(0.0, 1.0, 21)
    for process in (poisson(0.5, 0.5), poisson(1.0, 0.01) * 1000, acc.eps_delta(1.0)):
        beta = process.beta_at(alpha)
        assert beta[0] == pytest.approx(1.0, abs=1e-6)
        assert beta[-1] == 0.0
        assert np.all(beta <= 1 - alpha + 1e-15)
        assert np.all(np.diff(beta) <= 1e-12)
        assert np.all(np.diff(beta, 2) >= -1e-4)  # convex up to the width of the brackets


# --- R37: the classical formula ----------------------------------------------------------------------


# R37 (closed form)
@pytest.mark.parametrize(
    ("epsilon", "sigma"), [(1.0, 3.7306), (3.0, 1.3906), (10.0, 0.4999), (50.0, 0.1498)]
)
def test_calibration_of_the_gaussian_is_exact(epsilon, sigma):
    result = acc.calibrate(
        acc.epsilon_budget(epsilon, delta=1e-5), dpsgd.gaussian, param_min=0.1, param_max=10.0
    )
    assert result.param == pytest.approx(sigma, rel=1e-3)
    assert result.achieved <= epsilon


# R37 (closed form)
@pytest.mark.parametrize(
    ("sigma", "epsilon", "delta"), [(0.4845, 10.0, 2.27e-5), (0.0969, 50.0, 0.586)]
)
def test_the_classical_sigma_is_invalid_above_one(sigma, epsilon, delta):
    assert dpsgd.gaussian(sigma).delta_at(epsilon) == pytest.approx(delta, rel=5e-3)


# --- R38: float32 ------------------------------------------------------------------------------------


# R38 (log(1 + q^2 (e - 1)) at order 2)
def test_tiny_steps_survive_a_float32_program():
    assert not jax.config.jax_enable_x64
    value = jax.jit(acc.rdp.poisson_gaussian)(
        jnp.float32(1.0), jnp.float32(1e-4), jnp.array([2.0], jnp.float32)
    )
    assert float(value[0]) == pytest.approx(1e-8 * math.expm1(1.0), rel=PLD_FIGURES)
    assert not jax.config.jax_enable_x64


@jax.jit
def traced_rdp_epsilon(sigma, q, steps):
    return (poisson(sigma, q) * steps).epsilon_at(1e-5, accountant=acc.RDP())


# R38. The report's 0.6286 is the best of whole orders (17); mpmath gives 0.6195 at order 17.5.
@pytest.mark.parametrize(
    ("sigma", "steps", "low", "high"), [(1.0, 1e6, 0.6190, 0.6286), (2.0, 1e7, 0.6540, 0.6605)]
)
def test_many_tiny_steps_add_up_in_a_float32_program(sigma, steps, low, high):
    value = traced_rdp_epsilon(jnp.float32(sigma), jnp.float32(1e-4), jnp.float32(steps))
    assert value.dtype == jnp.float32
    assert low <= float(value) <= high


# R38. The report's 0.484 (dp_accounting, interval 1e-4) is a loose bound; the tests' lattice brackets the
# truth by [0.45082, 0.46061].
def test_many_tiny_steps_by_pld():
    value = (poisson(1.0, 1e-4) * 10**6).epsilon_at(1e-5)
    assert 0.45082 <= value <= 0.46061 * (1 + 1e-4)


# --- R39: heterogeneous composition ------------------------------------------------------------------


# R39 (dp_accounting)
def test_phases_add_up_in_any_order():
    early, late = poisson(1.0, 0.01) * 500, poisson(2.0, 0.02) * 500
    values = [
        acc.compose(*parts).epsilon_at(1e-5) for parts in itertools.permutations([early, late])
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    assert values[0] == pytest.approx(1.6151, rel=PLD_FIGURES)
    renyi = (early | late).epsilon_at(1e-5, accountant=acc.RDP())
    assert renyi == pytest.approx(1.8946, rel=RDP_FIGURES)


# R39
def test_an_empty_phase_is_the_identity():
    early = poisson(1.0, 0.01) * 500
    for padded in (early | poisson(2.0, 0.02) * 0, acc.identity() | early, early | acc.identity()):
        assert padded.epsilon_at(1e-5) == early.epsilon_at(1e-5)


# R39
def test_phases_of_one_mechanism_are_its_sum():
    step = poisson(1.0, 0.01)
    total = (step * 100 | step * 900).epsilon_at(1e-5)
    assert total == pytest.approx(1.8282, rel=1e-4)
    assert total / (step * 100).epsilon_at(1e-5) == pytest.approx(2.546, rel=0.01)
