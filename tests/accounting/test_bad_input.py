"""Every public factory and question: an exact answer or an error that names the argument. One table."""

import math

import jax
import mpmath
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


MADE = {
    "gaussian": gaussian(1.0),
    "laplace": acc.laplace(1.0),
    "poisson": poisson(STEP, 0.1),
    "truncated": poisson(STEP, 0.1, **CAPPED),
    "parallel": acc.parallel_poisson(STEP, 0.1, 2),
    "fixed size": acc.fixed_size(STEP, batch_size=10, dataset_size=100),
    "adaclip": acc.adaclip(1.0, 5.0),
    "eps_delta": acc.eps_delta(1.0, 1e-6),
    "mixture": acc.mixture_of_gaussians(1.0, [1.0], [0.1]),
    "composition": poisson(STEP, 0.1) * 3,
}


@pytest.mark.parametrize("bad", [NAN, -1.0])
@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("ask", [lambda p: p.epsilon_at(1e-5), lambda p: p.delta_at(1.0)])
def test_a_number_changed_past_its_factory_is_refused(name, bad, ask):
    """`dataclasses.replace` and `jax.tree.map` check nothing; a question does, leaf by leaf."""
    leaves, tree = jax.tree.flatten(MADE[name])
    for i in range(len(leaves)):
        changed = jax.tree.unflatten(tree, [*leaves[:i], bad, *leaves[i + 1 :]])
        with pytest.raises(ValueError, match="range"):
            ask(changed)


@pytest.mark.parametrize("step", [poisson(STEP, 0.1), acc.parallel_poisson(STEP, 0.1, 64)])
def test_a_group_too_large_to_compute_is_refused_at_once(step):
    with pytest.raises(ValueError, match="group_size"):
        step.epsilon_at(1e-5, group_size=10**6)


def test_a_group_of_any_size_of_pure_and_approximate_mechanisms():
    # delta (e^(k epsilon) - 1)/(e^epsilon - 1) = 1e-9 (1 + e^(1/2) + e)
    step = acc.eps_delta(0.5, 1e-9)
    assert 5.367003e-9 < step.delta_at(1.5, group_size=3) < 5.367004e-9
    assert step.epsilon_at(1e-5, group_size=10**9) == INF
    assert acc.eps_delta(0.5).epsilon_at(1e-5, group_size=10**9) <= 5e8 * (1 + 1e-12)
    # kept above delta (e^600 - 1)/(e^0.6 - 1), mpmath: the rounding of 1000 * 0.6 alone moves e^600 by 1e-13
    large = acc.eps_delta(0.6, 1e-270).grouped(1000)
    truth = mpmath.mpf(1e-270) * mpmath.expm1(1000 * mpmath.mpf(0.6)) / mpmath.expm1(0.6)
    assert 1 <= mpmath.mpf(float(large.delta)) / truth < 1 + 1e-12
    assert mpmath.mpf(large.epsilon) >= 1000 * mpmath.mpf(0.6)
    assert acc.eps_delta(0.0, 1e-9).delta_at(0.0, group_size=3) <= 3e-9 * (1 + 1e-12)


ASKED = {
    "epsilon": lambda p, **how: p.epsilon_at(1e-5, **how),
    "delta": lambda p, **how: p.delta_at(0.5, **how),
    "beta": lambda p, **how: p.beta_at(0.1, **how),
    "trajectory": lambda p, **how: acc.epsilon_trajectory(p, [1, 3], 1e-5, **how)[-1],
}
TRACED = {
    "noise": (lambda v: poisson(gaussian(v), 0.1) * 20, 1.0),
    "rate": (lambda v: poisson(STEP, v) * 20, 0.1),
    "count": (lambda v: poisson(STEP, 0.1) * v, 20.0),
}


SLOW = [("PLD", "beta", "rate"), ("RDP", "delta", "noise"), ("RDP", "trajectory", "count")]


@pytest.mark.parametrize(
    ("accountant", "question", "which"),
    [("RDP", "epsilon", "rate"), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_one_traced_number_among_known_ones_is_answered(accountant, question, which):
    """Under jit with all else concrete: close to the answer outside, on its private side (float32)."""
    make, value = TRACED[which]
    how = {"accountant": getattr(acc, accountant)()}
    known = float(ASKED[question](make(value), **how))
    ask = jax.jit(lambda v: ASKED[question](make(v), **how))
    found = float(ask(value))
    assert found == pytest.approx(known, rel=2e-3)
    assert (found <= known * (1 + 1e-4)) if question == "beta" else (found >= known * (1 - 1e-4))
    worst = {"epsilon": INF, "delta": 1.0, "beta": 0.0, "trajectory": INF}[question]
    assert float(ask(-value)) == worst


def test_a_traced_false_positive_rate_outside_0_to_1_has_no_beta():
    ask = jax.jit(lambda a: (STEP * 3).beta_at(a))
    assert [float(ask(a)) for a in (-1.0, 1.5, NAN)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("process", [STEP, poisson(STEP, 0.01) * 1000, STEP | acc.laplace(1.0)])
def test_a_tiny_delta_is_not_zero(process):
    """0 would claim pure DP, which no Gaussian has."""
    assert 0 < process.delta_at(1000.0) < 1e-300
    assert acc.laplace(1.0).delta_at(1.0) == 0.0
    assert str(acc.identity().delta_at(0.0)) == "0.0"


ANY_NOISE = {
    "gaussian": lambda g: g * 10,
    "poisson": lambda g: poisson(g, 0.05) * 10,
    "two phases": lambda g: poisson(g, 0.05) * 10 | poisson(STEP, 0.1) * 3,
    "truncated": lambda g: poisson(g, 0.01, **CAPPED) * 10,
    "parallel": lambda g: acc.parallel_poisson(g, 0.01, 4) * 10,
    "fixed size": lambda g: acc.fixed_size(g, batch_size=5, dataset_size=100) * 10,
    "allocation": lambda g: acc.k_out_of_t(g, k=1, t=10),
    "shuffled": lambda g: acc.shuffled(g, relation=NeighboringRelation.ZERO_OUT),
}


SIZES = [5e-324, 2.5e-208, 1e-59, 1e-7, 1e7, 1e59, 1e208, 1e308]
QUICK = "gaussian", "poisson", "allocation", "shuffled"  # the others share the engine of the second


@pytest.mark.parametrize(
    ("name", "sigma"), [(n, s) for n in ANY_NOISE for s in (SIZES if n in QUICK else SIZES[::7])]
)
def test_noise_of_any_size_is_answered(name, sigma):
    process = ANY_NOISE[name](gaussian(sigma))
    lower, upper, _ = process.epsilon_bounds(1e-5)
    assert 0 <= lower <= upper
    assert upper > 100 or sigma > 1
    assert 0 <= process.beta_at(0.1) <= 0.9
    assert 0 < process.delta_at(1.0) <= 1
    if name != "allocation":
        assert process.epsilon_at(1e-5, accountant=acc.RDP()) >= lower
