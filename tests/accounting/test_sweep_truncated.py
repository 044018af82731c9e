"""Truncated Poisson sampling against brute force: every subset, every contribution, tiny datasets.

The formula (accounting.md, ADD_REMOVE) is a theorem about the worst case; here the exact hockey-stick divergence
of every dataset with contributions of -1, 0 or +1 is summed up and compared with it.
"""

import functools
import itertools
import math

import numpy as np
import pytest
from one_direction import DIRECTIONS, one_direction
from scipy import integrate, stats

import opake_jax.dpsgd.accounting as dpsgd

MECHANISMS = [
    # n, cap, q, sigma
    (3, 1, 0.5, 1.0),
    (4, 1, 0.3, 1.0),
    (4, 2, 0.5, 1.0),
    (5, 2, 0.4, 0.7),
    (5, 1, 0.2, 2.0),
    (6, 2, 0.3, 1.0),
]
EPSILONS = (0.0, 0.3, 1.0, 2.0)
X = np.linspace(-25.0, 25.0, 20001)


def sums(contributions, cap, q):
    """Returns {sum of the kept contributions: probability}."""
    n, found = len(contributions), {}
    for drawn in itertools.product((False, True), repeat=n):
        probability = math.prod(q if is_in else 1 - q for is_in in drawn)
        members = [i for i in range(n) if drawn[i]]
        kept = list(itertools.combinations(members, min(cap, len(members))))
        for subset in kept:
            total = sum(contributions[i] for i in subset)
            found[total] = found.get(total, 0.0) + probability / len(kept)
    return found


@functools.cache
def density(contributions, cap, q, sigma):
    parts = sums(contributions, cap, q)
    return sum(p * stats.norm.pdf(X, total, sigma) for total, p in parts.items())


def hockey_stick(p, q, epsilon):
    # Trapezoid over a kinked integrand: relative error about 1e-6 at this spacing.
    return float(integrate.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0.0), X))


def worst_divergence(n, cap, q, sigma, epsilon):
    """Returns the largest divergences of removing and of adding one record, over all datasets."""
    worst = {"remove": 0.0, "add": 0.0}
    # By symmetry the record's own contribution is +1 (0 costs nothing, -1 mirrors).
    for others in itertools.combinations_with_replacement((-1, 0, 1), n - 1):
        larger = density((*others, 1), cap, q, sigma)
        smaller = density(others, cap, q, sigma)
        worst["remove"] = max(worst["remove"], hockey_stick(larger, smaller, epsilon))
        worst["add"] = max(worst["add"], hockey_stick(smaller, larger, epsilon))
    return worst


def truncated(n, cap, q, sigma):
    return dpsgd.poisson(dpsgd.gaussian(sigma), q, truncated_batch_size=cap, dataset_size=n)


@pytest.mark.parametrize(("n", "cap", "q", "sigma"), MECHANISMS)
def test_no_dataset_costs_more_than_the_formula(n, cap, q, sigma):
    step = truncated(n, cap, q, sigma)
    for epsilon in EPSILONS:
        exact = worst_divergence(n, cap, q, sigma, epsilon)
        for direction in DIRECTIONS:
            bound = one_direction(step, direction).delta_at(epsilon)
            assert exact[direction] <= bound * (1 + 1e-5)
        assert max(exact.values()) <= step.delta_at(epsilon) * (1 + 1e-5)


def test_the_formula_is_nearly_reached():
    exact = max(worst_divergence(5, 1, 0.2, 2.0, 0.0).values())
    assert exact >= 0.98 * truncated(5, 1, 0.2, 2.0).delta_at(0.0)
