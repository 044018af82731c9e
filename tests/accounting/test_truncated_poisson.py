"""Truncated Poisson: brute force over tiny mechanisms, and figures of other accountants."""

import itertools
import math

import jax
import numpy as np
import pytest
from scipy import stats

from opake_jax.accounting import RDP, NeighboringRelation, gaussian, poisson
from opake_jax.accounting._truncated_poisson import _overflow, truncated_poisson

ADD, ZERO, REPLACE = NeighboringRelation
X = np.linspace(-25.0, 25.0, 20_001)


def density(values, cap, rate, sigma):
    """Returns the output density of the mechanism on these contributions, by enumerating all draws."""
    weights = {}
    for drawn in itertools.product((0, 1), repeat=len(values)):
        chance = math.prod(rate if d else 1 - rate for d in drawn)
        chosen = [v for v, d in zip(values, drawn, strict=True) if d]
        subsets = list(itertools.combinations(chosen, min(cap, len(chosen))))
        for subset in subsets:
            total = sum(subset)
            weights[total] = weights.get(total, 0.0) + chance / len(subsets)
    return sum(w * stats.norm.pdf(X, mean, sigma) for mean, w in weights.items())


def hockey_stick(p, q, epsilon):
    return float(np.sum(np.maximum(p - np.exp(epsilon) * q, 0)) * (X[1] - X[0]))


def worst(n, cap, rate, sigma, epsilon, relation):
    """Returns the largest divergence, both ways, over all contributions in {-1, 0, 1} of n records."""
    best = 0.0
    for others in itertools.combinations_with_replacement((-1, 0, 1), n - 1):
        mine = [(1,), (-1,)]
        for (x,) in mine:
            p = density((*others, x), cap, rate, sigma)
            if relation is ADD:
                q = density(others, cap, rate, sigma)
            else:
                q = density((*others, 0 if relation is ZERO else -x), cap, rate, sigma)
            best = max(best, hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))
    return best


@pytest.mark.parametrize("relation", list(NeighboringRelation))
@pytest.mark.parametrize(
    ("n", "cap", "rate", "sigma"), [(3, 1, 0.5, 1.0), (4, 2, 0.5, 1.0), (5, 2, 0.4, 0.7)]
)
def test_brute_force_never_exceeds_the_formula(relation, n, cap, rate, sigma):
    step = poisson(
        gaussian(sigma, relation=relation), rate, truncated_batch_size=cap, dataset_size=n
    )
    assert not step.pair_is_tight
    for epsilon in (0.0, 0.3, 1.0):
        truth = worst(n, cap, rate, sigma, epsilon, relation)
        assert truth <= step.delta_at(epsilon) * (1 + 1e-6)


# The formula has some power: at epsilon 0 and a cap of 1 it is nearly attained.
@pytest.mark.parametrize(("n", "rate", "sigma"), [(3, 0.5, 1.0), (5, 0.2, 2.0)])
def test_brute_force_comes_near_the_add_remove_formula(n, rate, sigma):
    step = poisson(gaussian(sigma), rate, truncated_batch_size=1, dataset_size=n)
    assert step.advantage() <= 1.03 * worst(n, 1, rate, sigma, 0.0, ADD)


# accounting.md; the ZERO_OUT figures are dp_accounting's formula (rows truncated_* of the reference table).
@pytest.mark.parametrize(
    ("relation", "cap", "epsilon"),
    [
        (ADD, 256, 6.4521),
        (ADD, 300, 2.8177),
        (ADD, 320, 0.9385),
        (ZERO, 256, 6.7979),
        (ZERO, 320, 0.9394),
    ],
)
def test_the_figures_of_the_design(relation, cap, epsilon):
    n = 50_000
    step = truncated_poisson(
        gaussian(1.0, relation=relation), 256 / n, truncated_batch_size=cap, dataset_size=n
    )
    value = (step * 1000).epsilon_at(1e-5)
    assert value == pytest.approx(epsilon, rel=1e-4)


def test_renyi_lies_above():
    for relation in (ADD, ZERO):
        step = truncated_poisson(
            gaussian(1.0, relation=relation), 0.1, truncated_batch_size=110, dataset_size=1000
        )
        process = step * 100
        assert process.epsilon_bounds(1e-5)[0] <= process.epsilon_at(1e-5, accountant=RDP())


def test_overflow_probabilities():
    """scipy's binomial, where it does not underflow; and not 0 where it does."""
    step = poisson(gaussian(1.0), 0.1, truncated_batch_size=110, dataset_size=1000)
    with jax.enable_x64(True):
        spare, full, kept = (float(v) for v in _overflow(step))
        p = stats.binom.sf(109, 999, 0.1)
        assert full == pytest.approx(p, rel=1e-9)
        assert spare == pytest.approx(1 - p, rel=1e-9)
        assert kept == pytest.approx(110 * stats.binom.sf(110, 1000, 0.1) / (1000 * p), rel=1e-9)
        far = poisson(gaussian(1.0), 0.001, truncated_batch_size=900, dataset_size=1000)
        assert float(_overflow(far)[1]) > 0


def test_epsilon_falls_as_the_cap_rises():
    # report R03, dp_accounting: 25.25 (100), 16.67 (110), 7.797 (130), 7.0466 without, ZERO_OUT.
    values = []
    for cap, reported in [(100, 25.25), (110, 16.67), (130, 7.797), (None, 7.0466)]:
        size = None if cap is None else 1000
        step = poisson(
            gaussian(1.0, relation=ZERO), 0.1, truncated_batch_size=cap, dataset_size=size
        )
        values.append((step * 100).epsilon_at(1e-5))
        assert values[-1] == pytest.approx(reported, rel=2e-3)
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("relation", [NeighboringRelation.ADD_REMOVE, NeighboringRelation.ZERO_OUT])
@pytest.mark.parametrize("cap", [200, 400, 500, 600, 5000])
def test_a_cap_that_is_hardly_ever_reached_costs_nothing(relation, cap):
    """Overflow with probability 1e-18 to 1e-300: at caps of 500 and 600 its tiny branch once ruled the whole answer."""
    inner = gaussian(1.0, relation=relation)
    plain = (poisson(inner, 1e-4) * 1000).epsilon_at(1e-6)
    capped = poisson(inner, 1e-4, truncated_batch_size=cap, dataset_size=10**6) * 1000
    low, up, _ = capped.epsilon_bounds(1e-6)
    assert plain * (1 - 2e-5) <= up <= plain * (1 + 2e-5)
    assert low <= plain
