"""The best of many runs: against exact laws of what is released, and against what others have proved."""

import math

import jax
import numpy as np
import pytest
from scipy import integrate, stats

import opake_jax.accounting as acc
from opake_jax.accounting import NeighboringRelation, gaussian, poisson, private_selection
from opake_jax.random import key

SHAPES = [-0.5, 0.0, 1.0, 3.0]
TRAINING = poisson(gaussian(1.0), 0.01) * 1000


def generating(x, eta, log_inverse_gamma):
    """E x^K: Papernot and Steinke 2022, Definition 1, summed."""
    rest = -math.expm1(-log_inverse_gamma) * x
    if eta == 0:
        return np.log1p(-rest) / -log_inverse_gamma
    return np.expm1(-eta * np.log1p(-rest)) / math.expm1(eta * log_inverse_gamma)


def released(law, search):
    """The law of the best run: outcomes in the order of their scores, the worst first."""
    reached = np.concatenate([[0.0], np.cumsum(law)]).clip(0, 1)
    reached[-1] = 1.0
    return np.diff(generating(reached, search.shape, search.log_inverse_gamma))


@pytest.mark.parametrize("eta", SHAPES)
def test_the_bound_holds_for_any_mechanism_of_a_few_outcomes(eta):
    """Every (epsilon, delta) mechanism is a channel behind randomised response that fails with probability delta."""
    rng = np.random.default_rng(0)
    closest = 0.0
    for _ in range(30):
        epsilon, delta = float(rng.choice([0.1, 1.0, 2.0])), float(rng.choice([0.0, 1e-3, 0.05]))
        search = private_selection(
            acc.eps_delta(epsilon, delta), float(rng.choice([1.5, 4.0, 20.0])), shape=eta
        )
        odds = math.exp(epsilon)
        told = np.array([delta, (1 - delta) * odds / (1 + odds), (1 - delta) / (1 + odds), 0.0])
        channel = rng.dirichlet(np.full(rng.integers(2, 7), 0.15), 4)
        a, b = (released(law @ channel, search) for law in (told, told[::-1]))
        for one, other in ((a, b), (b, a)):
            for asked in rng.uniform(0, (2 + eta) * epsilon, 3):
                truth = np.maximum(one - math.exp(asked) * other, 0).sum()
                bound = search.delta_at(float(asked))
                assert truth <= bound * (1 + 1e-9) + 1e-13
                closest = max(closest, truth / bound) if bound else closest
    assert closest > 0.3


@pytest.mark.parametrize("eta", SHAPES)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_it_is_exact_for_pure_mechanisms(eta, epsilon):
    """The worst: better outcomes are as likely as randomised response's rare answer, the released one tells most."""
    search = private_selection(acc.eps_delta(epsilon, 0.0), 10.0, shape=eta)
    rare, tiny = 1 / (1 + math.exp(epsilon)), 1e-9
    often = 1 - rare
    law = np.array([often - tiny * math.exp(epsilon), tiny * math.exp(epsilon), rare])
    other = np.array([rare - tiny, tiny, often])
    assert np.log(law / other).max() <= epsilon * (1 + 1e-6)
    ratio = released(law, search)[1] / released(other, search)[1]
    bound = search.epsilon_at(0.0)
    assert math.log(ratio) == pytest.approx(bound, rel=1e-5)
    assert epsilon < bound <= (2 + eta) * epsilon * (1 + 1e-6)  # Papernot and Steinke, Corollary 3


@pytest.mark.parametrize("eta", SHAPES)
@pytest.mark.parametrize("shift", [-1.0, 1.0])
def test_the_best_of_gaussian_scores(eta, shift):
    """Scores N(0, s^2) and N(shift, s^2), released themselves: their density is q f'(Q(<= x)), by quadrature."""
    sigma, search = 1.5, private_selection(gaussian(1.5), 10.0, shape=eta)
    kappa = math.expm1(search.log_inverse_gamma)

    def density(x, mean):
        better = stats.norm.sf(x, mean, sigma)
        one = stats.norm.pdf(x, mean, sigma)
        return search.mean_runs * one * (1 + kappa * better) ** (-1 - eta)

    assert integrate.quad(density, -30, 30, args=(0.0,))[0] == pytest.approx(1.0)
    for epsilon in (0.5, 1.5, 3.0, 5.0):

        def excess(x, e=epsilon):
            return max(density(x, shift) - math.exp(e) * density(x, 0.0), 0.0)

        truth = integrate.quad(excess, -15, 15, limit=400, points=[-5, -2, 0, 2, 5])[0]
        assert truth <= search.delta_at(epsilon)


@pytest.mark.parametrize(("mean", "eta"), [(2.0, -0.5), (10.0, 0.0), (100.0, 1.0), (5.0, 3.0)])
def test_it_costs_less_than_published_bounds_and_more_than_one_run(mean, eta):
    """Papernot and Steinke 2022, Theorem 2, with the Renyi conversion; Koskela et al. 2024 with the best of 40."""
    delta, search = 1e-5, private_selection(TRAINING, mean, shape=eta)
    found = search.epsilon_at(delta)
    orders = 1 + np.geomspace(0.05, 300, 200)
    renyi = 1000 * poisson(gaussian(1.0), 0.01).renyi(orders)
    log_gamma = -search.log_inverse_gamma
    chosen = (1 + eta) * np.min((1 - 1 / orders) * renyi - log_gamma / orders)
    whole = renyi + chosen + math.log(mean) / (orders - 1)
    theirs = np.min(whole + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1))
    grid = np.linspace(0, search.log_inverse_gamma, 40)
    kappa = math.expm1(search.log_inverse_gamma)
    b = np.min(np.exp(grid) + kappa * TRAINING.delta_at(grid))
    profile = TRAINING.epsilon_at(delta / mean) + (1 + eta) * math.log(b)
    assert TRAINING.epsilon_at(delta) < found < profile < theirs
    assert search.delta_at(found) <= delta * (1 + 1e-4)


def test_one_run_costs_itself_and_more_runs_cost_more():
    assert private_selection(TRAINING, 1).epsilon_at(1e-5) == pytest.approx(
        TRAINING.epsilon_at(1e-5), rel=1e-9
    )
    costs = [private_selection(TRAINING, m).epsilon_at(1e-5) for m in (1, 2, 8, 1000)]
    assert costs == sorted(costs)
    # The worst of several candidates counts.
    dear, cheap = gaussian(1.0), gaussian(3.0)
    both = private_selection([cheap, dear, acc.identity()], 5)
    assert both.epsilon_at(1e-5) == private_selection(dear, 5).epsilon_at(1e-5)
    assert private_selection(acc.nonprivate(), 5).epsilon_at(1e-5) == math.inf
    assert private_selection(acc.nonprivate(), 5).delta_at(100.0) == 1.0
    assert private_selection(dear, 5).delta_at(0.0) == 1.0
    assert private_selection(dear, 5).epsilon_at(0.0) == math.inf


def test_groups_and_the_renyi_accountant_cost_more():
    search = private_selection(TRAINING, 10)
    assert search.epsilon_at(1e-5, group_size=2) > search.epsilon_at(1e-5)
    assert search.epsilon_at(1e-5, accountant=acc.RDP()) > search.epsilon_at(1e-5)


def test_noise_is_calibrated_for_the_whole_search():
    def search(noise_multiplier):
        return private_selection(gaussian(noise_multiplier) * 10, 10)

    found = acc.calibrate(acc.epsilon_budget(3.0, delta=1e-5), search, 0.5, 2.0, tolerance=1e-4)
    assert 2.999 <= search(found.param).epsilon_at(1e-5) <= 3.0


LAWS = {
    0.0: lambda gamma: stats.logser(1 - gamma),
    1.0: stats.geom,
    3.0: lambda gamma: stats.nbinom(3, gamma),
}


@pytest.mark.parametrize("eta", sorted(LAWS))
def test_the_number_of_runs_has_its_law(eta):
    """Oracle: scipy's laws, the negative binomial given that it is not 0. False alarm: 1e-6."""
    search = private_selection(TRAINING, 4.0, shape=eta)
    law = LAWS[eta](math.exp(-search.log_inverse_gamma))
    drawn = np.array([search.draw_num_runs(key(i)) for i in range(400)])
    assert drawn.min() == 1
    edges = np.arange(1, 8)
    chance = law.pmf(edges) / (1 - law.cdf(0))
    expected = 400 * np.append(chance, 1 - chance.sum())
    seen = np.append([(drawn == k).sum() for k in edges], (drawn > 7).sum())
    assert stats.chisquare(seen, expected).pvalue > 1e-6
    assert search.mean_runs == pytest.approx(4.0)
    assert abs(drawn.mean() - 4) < 5 * drawn.std() / math.sqrt(400)


def test_long_searches_are_drawn_too():
    search = private_selection(TRAINING, 10_000)  # the geometric law, over several blocks
    drawn = [search.draw_num_runs(key(i)) for i in range(50)]
    assert stats.kstest(drawn, stats.geom(1e-4).cdf).pvalue > 1e-6
    assert private_selection(TRAINING, 1).draw_num_runs(key(0)) == 1
    # Shapes whose gamma^-eta no float holds, and whose first runs are all but impossible.
    for mean, eta in ((1e4, 200.0), (2000, 1000.0)):
        search = private_selection(TRAINING, mean, shape=eta)
        law = stats.nbinom(eta, math.exp(-search.log_inverse_gamma))
        drawn = [search.draw_num_runs(key(i)) for i in range(30)]
        assert stats.kstest(drawn, law.cdf).pvalue > 1e-6


def test_bad_searches_are_refused_by_name():
    for bad in (0.5, math.nan, math.inf, 1e5):
        with pytest.raises(ValueError, match="mean_runs"):
            private_selection(TRAINING, bad)
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="shape"):
            private_selection(TRAINING, 2, shape=bad)
    with pytest.raises(ValueError, match="larger shape"):
        private_selection(TRAINING, 10_000, shape=-0.995)
    for bad in (True, "2", None):
        with pytest.raises(TypeError, match="mean_runs"):
            private_selection(TRAINING, bad)
    for bad in (None, "gaussian", [TRAINING, 1.0]):
        with pytest.raises(TypeError, match="candidates"):
            private_selection(bad, 2)
    with pytest.raises(ValueError, match="at least one"):
        private_selection([], 2)
    with pytest.raises(ValueError, match="relations"):
        private_selection([TRAINING, gaussian(1.0, relation=NeighboringRelation.REPLACE_ONE)], 2)
    with pytest.raises(TypeError, match="concrete"):
        jax.jit(lambda s: private_selection(gaussian(s), 2).epsilon_at(1e-5))(1.0)
    with pytest.raises(TypeError, match="concrete"):
        jax.jit(private_selection(TRAINING, 2).epsilon_at)(1e-5)
    search = private_selection(TRAINING, 2)
    for bad in (-1e-9, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta"):
            search.epsilon_at(bad)
    for bad in (-1e-9, math.inf, math.nan):
        with pytest.raises(ValueError, match="epsilon"):
            search.delta_at(bad)
    with pytest.raises(TypeError, match="key"):
        search.draw_num_runs(0)
