"""Every public factory and question: an exact answer or an error that names the argument. One table."""

import math

import numpy as np
import pytest

import opake_jax.accounting as acc
from opake_jax.accounting import NeighboringRelation, gaussian, poisson

NAN, INF = math.nan, math.inf
STEP = gaussian(1.0)
CAPPED = {"truncated_batch_size": 5, "dataset_size": 100}

ERRORS = {
    "noise_multiplier": [
        *(lambda v=v: gaussian(v) for v in (-1.0, NAN, INF, True, "1", None, 1j, [1.0])),
        *(lambda v=v: acc.laplace(v) for v in (-1.0, NAN, INF, False, "1")),
        *(lambda v=v: acc.mixture_of_gaussians(v, [1.0], [0.1]) for v in (-1.0, NAN, "1")),
    ],
    "sample_rate": [
        *(lambda v=v: poisson(STEP, v) for v in (-0.1, 1 + 1e-9, NAN, INF, True, "0.1")),
        *(lambda v=v: acc.parallel_poisson(STEP, v, 2) for v in (-0.1, 1 + 1e-9, NAN)),
    ],
    "count": [lambda v=v: STEP * v for v in (-1, 2.5, NAN, INF, True, "2")],
    "delta": [
        *(lambda v=v: STEP.epsilon_at(v) for v in (-1e-9, 1.0, 2.0, NAN, True, "1e-5", [0.1, 1.5])),
        *(lambda v=v: acc.eps_delta(1.0, v) for v in (-0.1, 1.1, NAN)),
        *(lambda v=v: acc.epsilon_budget(1.0, v) for v in (-1.0, 1.0, NAN)),
        *(lambda v=v: acc.delta_budget(v, 1.0) for v in (0.0, 1.0, NAN)),
        *(lambda v=v: acc.epsilon_trajectory(STEP, [1], v) for v in (-1.0, 1.0, NAN)),
        *(lambda v=v: STEP.gdp(v) for v in (0.0, 1.0, NAN)),
    ],
    "epsilon": [
        *(lambda v=v: STEP.delta_at(v) for v in (-1e-9, NAN, INF, "1", [1.0, -1.0])),
        *(lambda v=v: acc.eps_delta(v) for v in (-1.0, NAN, INF)),
        *(lambda v=v: acc.epsilon_budget(v, 1e-5) for v in (0.0, -1.0, NAN, INF)),
    ],
    "alpha": [
        *(lambda v=v: STEP.beta_at(v) for v in (-0.1, 1.1, NAN)),
        *(lambda v=v: acc.beta_budget(0.5, v) for v in (0.0, 1.0, NAN)),
    ],
    "beta": [lambda v=v: acc.beta_budget(v, 0.3) for v in (0.0, 0.7, 0.9, NAN)],
    "prior": [
        *(lambda v=v: STEP.risk_at(v) for v in (-0.1, 1.1, NAN)),
        *(lambda v=v: acc.risk_budget(0.1, v) for v in (-0.1, NAN)),
    ],
    "risk": [lambda v=v: acc.risk_budget(v, 0.3) for v in (0.0, 0.3, 0.9, NAN)],
    "advantage": [lambda v=v: acc.advantage_budget(v) for v in (0.0, 1.0, NAN)],
    "truncated_batch_size": [
        *(
            lambda v=v: poisson(STEP, 0.1, truncated_batch_size=v, dataset_size=9)
            for v in (0, -1, 2.5)
        ),
        lambda: poisson(STEP, 0.1, truncated_batch_size=5),
        lambda: poisson(STEP, 0.1, dataset_size=5),
    ],
    "dataset_size": [
        *(lambda v=v: poisson(STEP, 0.1, truncated_batch_size=2, dataset_size=v) for v in (0, NAN)),
        *(lambda v=v: acc.fixed_size(STEP, batch_size=1, dataset_size=v) for v in (0, 1.5)),
    ],
    "batch_size": [
        *(lambda v=v: acc.fixed_size(STEP, batch_size=v, dataset_size=9) for v in (0, -1, 10, NAN)),
    ],
    "num_workers": [lambda v=v: acc.parallel_poisson(STEP, 0.1, v) for v in (0, 1.5, True, 10**6)],
    "k must": [lambda v=v: acc.k_out_of_t(STEP, k=v, t=9) for v in (0, 10, 1.5)],
    "t must": [lambda v=v: acc.k_out_of_t(STEP, k=1, t=v) for v in (0, 1.5, NAN)],
    "inner": [
        lambda: poisson(STEP * 2, 0.1),
        lambda: poisson(acc.laplace(1.0), 0.1),
        lambda: poisson(poisson(STEP, 0.1), 0.1),
        lambda: poisson(1.0, 0.1),
        lambda: acc.fixed_size(acc.identity(), batch_size=1, dataset_size=9),
        lambda: acc.k_out_of_t(acc.nonprivate(), k=1, t=9),
    ],
    "relation": [
        lambda: gaussian(1.0, relation="add_remove"),
        lambda: acc.shuffled(STEP),
        lambda: acc.k_out_of_t(STEP, k=1, t=2, relation=NeighboringRelation.REPLACE_ONE),
        lambda: acc.mixture_of_gaussians(
            1.0, [1.0], [0.1], relation=NeighboringRelation.REPLACE_ONE
        ),
    ],
    "probabilities": [
        lambda: acc.mixture_of_gaussians(1.0, [1.0, 2.0], [0.6, 0.5]),
        lambda: acc.mixture_of_gaussians(1.0, [1.0], [1.1]),
        lambda: acc.mixture_of_gaussians(1.0, [1.0], []),
    ],
    "orders": [lambda v=v: acc.RDP(orders=v) for v in ([], [1.0], [NAN], ["2"])],
    "count_noise_std": [lambda v=v: acc.gradient_noise_multiplier(1.0, v) for v in (0.5, 0.1, NAN)],
    "counts": [lambda v=v: acc.epsilon_trajectory(STEP, v, 1e-5) for v in ([-1], [1.5], [1, NAN])],
    "budget": [lambda: acc.calibrate(3.0, gaussian, 0.1, 10.0)],
    "param_m": [
        lambda: acc.calibrate(acc.epsilon_budget(1.0, 1e-5), gaussian, 10.0, 0.1),
        lambda: acc.calibrate(acc.epsilon_budget(1.0, 1e-5), gaussian, NAN, 0.1),
    ],
}


@pytest.mark.parametrize(("name", "call"), [(n, c) for n, calls in ERRORS.items() for c in calls])
def test_bad_input_is_an_error_that_names_the_argument(name, call):
    with pytest.raises((ValueError, TypeError), match=name):
        call()


W1 = poisson(STEP, 0.01) * 1000
ANSWERS = [
    (lambda: STEP.epsilon_at(0.0), INF, INF),
    (lambda: W1.epsilon_at(0.0), INF, INF),
    (lambda: (acc.laplace(2.0) * 3).epsilon_at(0.0), 1.5, 1.5),
    (lambda: acc.eps_delta(1.0).epsilon_at(0.0), 1.0, 1.0),
    (lambda: acc.eps_delta(1.0, 1e-6).epsilon_at(1e-7), INF, INF),
    # sigma 1: Phi(-t) = 1e-320 at t = 38.3 (mpmath), epsilon = t + 1/2 less what e^epsilon Phi takes.
    (lambda: STEP.epsilon_at(1e-320), 38.5, 38.8),
    (lambda: (poisson(STEP, 0.0) * 2**40).epsilon_at(1e-5), 0.0, 0.0),
    (lambda: poisson(STEP, 1.0).epsilon_at(1e-5), 4.3771780, 4.3771782),
    (lambda: poisson(gaussian(0.0), 0.0).epsilon_at(1e-5), 0.0, 0.0),
    # delta(0) <= T q = 1e-297 is below any delta, so that 0 is the truth.
    (lambda: (poisson(STEP, 1e-300) * 1000).epsilon_at(1e-5), 0.0, 1e-9),
    (lambda: gaussian(0.0).epsilon_at(1e-5), INF, INF),
    # mu = 1e6: epsilon = mu^2/2 + mu Phi^-1(1 - 1e-5) = 5e11 + 4.2649e6.
    (lambda: gaussian(1e-6).epsilon_at(1e-5), 5.00004264e11, 5.0000428e11),
    (lambda: gaussian(1e6).epsilon_at(1e-5), 0.0, 0.0),
    (lambda: (STEP * 0).epsilon_at(1e-5), 0.0, 0.0),
    # mu = 2^20: epsilon = 2^39 + 2^20 * 4.2649.
    (lambda: (STEP * 2**40).epsilon_at(1e-5), 549760285949.0, 549760310000.0),
    (lambda: STEP.delta_at(np.float32(0.0)), 0.38292492, 0.38292494),
]


@pytest.mark.parametrize(("call", "low", "high"), ANSWERS)
def test_the_ends_of_the_ranges_are_answered(call, low, high):
    assert low <= call() <= high


def test_a_cap_that_is_never_reached_is_no_cap():
    for cap in (100, 200):
        capped = poisson(STEP, 0.1, truncated_batch_size=cap, dataset_size=100) * 10
        plain = poisson(STEP, 0.1) * 10
        assert capped.epsilon_at(1e-5) == pytest.approx(plain.epsilon_at(1e-5), rel=1e-4)
