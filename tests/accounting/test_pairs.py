"""Atoms on both sides of the truth, against exact hockey-stick divergences (mpmath, scipy)."""

import functools
import math

import jax
import mpmath
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from opake_jax.accounting._evaluate import quietly
from opake_jax.accounting._gaussian_pairs import (
    GaussianMixturePair,
    JointPair,
    mixtures_of,
    ratios,
)
from opake_jax.accounting._laplace_pair import LaplacePair
from opake_jax.accounting._pairs import ULP, DiscretePair, MixturePair, Tails
from opake_jax.accounting._smooth_lines import branches_of, line_of

SIZE = 512
TAILS = Tails(math.log(1e-16), math.log(1e-14))
EPSILONS = (0.0, 1e-4, 0.003, 0.05, 0.3, 1.0, 3.0)
NONE = np.zeros(0)


@functools.partial(jax.jit, static_argnums=1)
def atoms_of(pair, size):
    return pair.atoms(size, TAILS)


def atoms(pair, size=SIZE):
    with jax.enable_x64(True):
        pair = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), pair)
        return jax.device_get(atoms_of(pair, size))


def delta(found, row, epsilon):
    """E (1 - e^(epsilon - loss))_+ over the atoms of a row, by math.fsum."""
    mass, loss = np.exp(found.log_mass[row]), found.loss[row]
    above = loss > epsilon
    terms = mass[above] * -np.expm1(epsilon - loss[above])
    return math.fsum(terms) + (math.exp(found.log_infinity) if row == 0 else 0.0)


def gaussian_mixture_delta(p, q, sigma, epsilon):
    """H of two mixtures [(weight, mean)] with increasing log ratio: threshold by brentq, tails by scipy."""

    def loss(x):
        def ratio(mix):
            return np.logaddexp.reduce(
                [math.log(w) + norm.logpdf(x, m, sigma) for w, m in mix if w > 0]
            )

        return ratio(p) - ratio(q) - epsilon

    low, high = -60 * sigma - 3, 60 * sigma + 8
    if loss(low) > 0:
        x = -np.inf
    elif loss(high) < 0:
        return 0.0
    else:
        x = brentq(loss, low, high, xtol=1e-14)

    def tail(mix):
        return sum(w * norm.sf(x, m, sigma) for w, m in mix)

    return tail(p) - math.exp(epsilon) * tail(q)


def mixture(p, q, sigma):
    def split(mix):
        return [np.array([v[i] for v in mix if v[1] != 0]) for i in (0, 1)]

    return GaussianMixturePair(*split(p), *split(q), sigma)


CASES = {
    "gaussian": ([(1.0, 1.0)], [(1.0, 0.0)], 1.0),
    "poisson": ([(0.99, 0.0), (0.01, 1.0)], [(1.0, 0.0)], 1.0),
    "small_sigma": ([(0.9, 0.0), (0.1, 1.0)], [(1.0, 0.0)], 0.3),
    "large_sigma": ([(0.9, 0.0), (0.1, 1.0)], [(1.0, 0.0)], 50.0),
    "two_copies": ([(0.81, 0.0), (0.18, 1.0), (0.01, 2.0)], [(1.0, 0.0)], 0.8),
    "replace_one": ([(0.9, 0.0), (0.1, 1.0)], [(0.9, 0.0), (0.1, -1.0)], 1.0),
}


def brackets(found, truth):
    for epsilon in EPSILONS:
        low, up = delta(found, 1, epsilon), delta(found, 0, epsilon)
        want = truth(epsilon)
        # The reference subtracts probabilities: 4e-16 is its own rounding.
        assert low <= want + 4e-16, epsilon
        assert up >= want - 4e-16, epsilon
        assert up - low <= 2e-2 * want + 1e-9, epsilon  # one step, 512 atoms: (cell width)^2


@pytest.mark.parametrize("name", CASES)
def test_atoms_of_gaussian_mixtures_bracket_the_exact_divergence(name):
    p, q, sigma = CASES[name]
    brackets(atoms(mixture(p, q, sigma)), lambda e: gaussian_mixture_delta(p, q, sigma, e))


@pytest.mark.parametrize("name", CASES)
def test_atoms_of_the_reversed_pair_bracket_its_divergence(name):
    p, q, sigma = CASES[name]

    # x -> -x makes the log ratio of (Q, P) increasing.
    def flip(mix):
        return [(w, -m) for w, m in mix]

    brackets(
        atoms(mixture(p, q, sigma).reversed()),
        lambda e: gaussian_mixture_delta(flip(q), flip(p), sigma, e),
    )


def test_the_joint_pair_has_each_direction_on_its_side_of_zero():
    q, sigma, shift = 0.1, 1.0, 2.0
    p = [(1 - q, 0.0), (q, shift)]
    pair = GaussianMixturePair(np.array([q]), np.array([shift]), NONE, NONE, sigma)
    found = atoms(JointPair(pair), 2 * SIZE)
    brackets(found, lambda e: gaussian_mixture_delta(p, [(1.0, 0.0)], sigma, e))

    def back(e):
        return gaussian_mixture_delta([(1.0, 0.0)], [(1 - q, 0.0), (q, -shift)], sigma, e)

    for epsilon in (-0.01, -0.05, -0.09):
        assert delta(found, 1, epsilon) <= back(epsilon) + 4e-16
        assert delta(found, 0, epsilon) >= back(epsilon) - 4e-16


@pytest.mark.parametrize("scale", [0.05, 0.5, 10.0])
def test_atoms_of_laplace_bracket_its_closed_form(scale):
    # delta(epsilon) = 1 - e^((epsilon - 1/b)/2) below 1/b (Dwork and Roth; reference rows laplace).
    found = atoms(LaplacePair(scale))
    for epsilon in (0.0, 0.25 / scale, 0.9 / scale):
        want = -math.expm1((epsilon - 1 / scale) / 2)
        assert delta(found, 1, epsilon) <= want <= delta(found, 0, epsilon)
        assert delta(found, 0, epsilon) - delta(found, 1, epsilon) < 1e-3 * want
    assert delta(found, 0, 1.0001 / scale) == 0.0


def test_discrete_pairs_are_exact_and_keep_infinite_losses():
    p, q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.2, 0.7, 0.0, 0.1])
    with np.errstate(divide="ignore"):
        found = atoms(DiscretePair(np.log(p), np.log(q)))
    for epsilon in (-1.0, 0.0, 0.5, 2.0):
        want = float(sum(max(a - mpmath.exp(epsilon) * b, 0) for a, b in zip(p, q, strict=True)))
        assert delta(found, 0, epsilon) == pytest.approx(want, rel=1e-13)
        assert delta(found, 0, epsilon) >= want * (1 - 1e-15)
        # Below, the infinite loss is left out.
        assert delta(found, 1, epsilon) == pytest.approx(want - 0.2, rel=1e-13, abs=1e-15)


def test_a_public_mixture_has_the_mean_of_its_branches_deltas():
    p, q, sigma = CASES["gaussian"]
    other = CASES["small_sigma"]
    pair = MixturePair(
        np.array([0.7, 0.3]), (mixture(p, q, sigma), mixture(*other)), np.zeros((2, 2))
    )
    brackets(
        atoms(pair, 2 * SIZE),
        lambda e: (
            0.7 * gaussian_mixture_delta(p, q, sigma, e) + 0.3 * gaussian_mixture_delta(*other, e)
        ),
    )


def test_what_was_rounded_up_is_taken_off_below():
    # Weights 1 % and losses 0.02 too large, told so: the truth, by mpmath, has neither.
    def point(log_p, log_q):
        return DiscretePair(np.log(log_p), np.log(log_q))

    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.7, 0.1])
    branches = (point(p * math.exp(0.02), q), point(q, p))
    excess = np.array([[0.02 + math.log(1.01), math.log(1.01)], [0.02, 0.0]])
    found = atoms(MixturePair(np.array([0.7, 0.3]) * 1.01, branches, excess), SIZE)
    for epsilon in (0.0, 0.5):
        e = mpmath.exp(epsilon)
        want = sum(
            w * max(a - e * b, 0)
            for w, x, y in ((0.7, p, q), (0.3, q, p))
            for a, b in zip(x, y, strict=True)
        )
        assert delta(found, 1, epsilon) <= want < delta(found, 0, epsilon)
        assert delta(found, 1, epsilon) == pytest.approx(float(want), rel=1e-12)


def test_upper_atoms_never_hold_less_than_all_of_the_mass():
    for name, (p, q, sigma) in CASES.items():
        for pair in (mixture(p, q, sigma), mixture(p, q, sigma).reversed()):
            found = atoms(pair)
            total = math.fsum(np.exp(found.log_mass[0])) + math.exp(found.log_infinity)
            held = math.fsum(np.exp(found.log_mass[1]))
            assert 1 - 1e-15 <= total < 1 + 1e-9, name
            assert 1 - 1e-9 < held <= 1 + 1e-15, name


def test_cells_too_wide_for_the_quadrature_stay_on_both_sides():
    # sigma 1e-3: the line between the components is crossed in steps of many sigma.
    found = atoms(mixture([(0.9, 0.0), (0.1, 1.0)], [(1.0, 0.0)], 1e-3))
    assert delta(found, 1, 0.5) <= 0.1 <= delta(found, 0, 0.5)


@pytest.mark.parametrize("weights", [[0.5, 0.3, 0.2], [0.1] * 10, [0.3, 0.2, 0.5 - 1e-16]])
def test_an_unshifted_weight_that_may_be_rounding_bounds_no_ratio(weights):
    """They add up to 1, or to an ulp less: left of all of them log r is that of the shifted ones, or that of an ulp."""
    sigma, means = 0.2, np.arange(1.0, 1 + len(weights))
    pair = GaussianMixturePair(np.array(weights), means, NONE, NONE, np.float64(sigma))
    x = np.linspace(-3.0, 1.0, 41)
    shifted = [
        float(mpmath.log(sum(w * mpmath.exp(m * (2 * t - m) / (2 * sigma**2)) for w, m in zip(weights, means, strict=True))))
        for t in x
    ]  # fmt: skip
    with quietly():
        log_ratio, _, rounding, _ = ratios(mixtures_of(pair), x)
        line = line_of(branches_of(pair)[0], -3.0, 1.0, 0.1)
    assert np.all(log_ratio[0] - ULP * rounding[0] <= shifted)
    assert np.all(log_ratio[0] + ULP * rounding[0] >= np.logaddexp(shifted, math.log(1e-16)))
    shifted = np.interp(line.x[:-1], x, shifted)  # (linear but for log r about 0)
    assert np.all((line.loss - line.loss_error)[:-1] <= shifted + 0.2)
