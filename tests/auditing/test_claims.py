"""Claims against points: with Gaussian processes, of which scipy knows every curve."""

import numpy as np
import pytest
from scipy import stats

import opake_jax.accounting as acc
from opake_jax import auditing
from opake_jax.auditing import OperatingPoints


def gaussian_curve(alpha, mu):
    """f(alpha) = Phi(Phi^-1(1 - alpha) - mu)."""
    return stats.norm.cdf(stats.norm.isf(alpha) - mu)


def test_a_point_under_the_curve_contradicts_and_a_point_on_it_does_not():
    alpha = np.array([1e-4, 0.03, 0.5, 0.9])
    beta = gaussian_curve(alpha, 1.25)
    claim = acc.gaussian(0.8)
    assert not auditing.contradicts(OperatingPoints(alpha, beta * (1 + 1e-6)), claim)
    for i in range(4):
        factor = np.where(np.arange(4) == i, 1 - 1e-6, 1 + 1e-6)
        assert auditing.contradicts(OperatingPoints(alpha, beta * factor), claim)
    # K points in the last axis, one answer for each row
    rows = np.stack([beta * 1.01, beta * 0.99])
    got = auditing.contradicts(OperatingPoints(np.stack([alpha, alpha]), rows), claim)
    assert got.tolist() == [False, True]


def test_the_bound_on_the_noise_is_the_gaussian_fit_for_the_gaussian_mechanism():
    rng = np.random.default_rng(5)
    points = auditing.points_from_scores(rng.normal(size=2000) + 1, rng.normal(size=2000))
    exact = 1 / float(auditing.gdp_lower_bound(points))
    for start in (0.03, 1.0, 7.0):
        got = auditing.noise_multiplier_bound(points, acc.gaussian, start, tolerance=1e-4)
        assert exact <= got <= exact * 1.0002
    steps = auditing.noise_multiplier_bound(
        points, lambda s: acc.gaussian(s) * 4, 1.0, tolerance=1e-4
    )
    assert steps == pytest.approx(2 * exact, rel=2e-4)


def test_a_verdict_gathers_the_bounds():
    rng = np.random.default_rng(6)
    points = auditing.points_from_scores(rng.normal(size=9000) + 1, rng.normal(size=9000))
    found = auditing.judge(points, acc.gaussian, 1.0, delta=1e-5)
    assert found.claimed == acc.gaussian(1.0).epsilon_at(1e-5)
    assert found.lower == auditing.epsilon_lower_bound(points, 1e-5)
    fit = auditing.gdp_epsilon(auditing.gdp_lower_bound(points), 1e-5)
    assert found.lower_in_family == pytest.approx(fit, rel=0.03)
    assert not found.contradicted
    assert auditing.judge(points, acc.gaussian, 1.5, delta=1e-5).contradicted


def test_only_corners_of_the_hull_are_asked_and_they_decide():
    """Oracle: every point against the curve, for random points."""
    rng = np.random.default_rng(7)
    for _ in range(200):
        a, b = rng.random((2, 12)) ** 2
        mu = rng.random() * 3
        expected = np.any(b < gaussian_curve(a, mu))
        got = auditing.contradicts(OperatingPoints(a, b), acc.gaussian(1 / mu))
        assert got == expected


def test_no_bound_on_the_noise_where_nothing_was_learnt():
    points = OperatingPoints(np.array([0.6]), np.array([0.6]))
    assert auditing.noise_multiplier_bound(points, acc.gaussian, 1.0) == np.inf


def test_the_search_ends_where_everything_is_refuted():
    points = OperatingPoints(np.array([1e-12]), np.array([1e-12]))
    bound = auditing.noise_multiplier_bound(points, acc.gaussian, 1000.0)
    assert bound == 1000.0 / 1024


@pytest.mark.parametrize("mu", [0.05, 1.0, 8.0])
def test_gdp_epsilon_meets_its_delta_from_below(mu):
    """Oracle: delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) (Balle and Wang 2018)."""

    def delta(eps):
        return stats.norm.cdf(mu / 2 - eps / mu) - np.exp(
            eps + stats.norm.logcdf(-mu / 2 - eps / mu)
        )

    epsilon = auditing.gdp_epsilon(mu, 1e-4)
    assert delta(epsilon) >= 1e-4 * (1 - 1e-9)
    assert delta(epsilon + 1e-6) < 1e-4
    assert auditing.gdp_epsilon(0.0, 1e-4) == 0.0


@pytest.mark.parametrize(("r", "v"), [(100, 100), (300, 240)])
def test_one_run_contradicts_what_the_gaussian_bound_excludes(r, v):
    """`one_run_gdp` is tested against a linear program; the tabulated curve gives little away."""
    mu = float(auditing.one_run_gdp(1000, r, v))

    def refuted(mu):
        claim = acc.gaussian(1 / mu)
        return auditing.one_run_contradicts(1000, r, v, process=claim)

    assert refuted(0.95 * mu)
    assert not refuted(1.001 * mu)
    assert not auditing.one_run_contradicts(1000, 10, 0, process=acc.gaussian(100.0))


@pytest.mark.parametrize(
    ("start", "changed", "words"),
    [(0.0, {}, "start"), (np.inf, {}, "start"), (1.0, {"tolerance": 0.0}, "tolerance")],
)
def test_bad_searches_raise_by_name(start, changed, words):
    points = OperatingPoints(np.array([0.1]), np.array([0.1]))
    with pytest.raises(ValueError, match=words):
        auditing.noise_multiplier_bound(points, acc.gaussian, start, **changed)


def test_one_game_at_a_time():
    with pytest.raises(ValueError, match="one game"):
        auditing.one_run_contradicts([10, 10], 5, 5, process=acc.gaussian(1.0))


def test_a_claim_that_is_no_process_is_refused():
    with pytest.raises(TypeError, match="process"):
        auditing.contradicts(auditing.points_from_scores([1.0] * 50, [1.0] * 50), "none")
