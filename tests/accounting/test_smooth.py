"""The law itself against mpmath: moments, characteristic function, and every bound as a bound."""

import itertools
import math

import mpmath
import numpy as np
import pytest

import opake_jax.accounting as acc
from opake_jax.accounting import _pld_beta as beta_engine
from opake_jax.accounting import _pld_smooth as smooth
from opake_jax.accounting import _smooth_lines as lines
from opake_jax.accounting._evaluate import quietly
from opake_jax.accounting._gaussian_pairs import GaussianMixturePair
from opake_jax.accounting._pairs import MixturePair, dominating_pairs
from opake_jax.accounting._pld_bounds import answer
from opake_jax.accounting._pld_levels import Problem
from opake_jax.accounting._pld_tilt import Query
from opake_jax.types import NeighboringRelation

NONE = np.zeros(0)


def one(sigma, p, m, q=(), n=(), reverse=0.0):
    p, m, q, n = (np.asarray(a, np.float64) for a in (p, m, q, n))
    return GaussianMixturePair(p, m, q, n, np.float64(sigma), reverse)


# Poisson both ways, one kind of Gaussian, replace-one, several shifts, small and large sigma.
PAIRS = {
    "poisson": one(1.0, [0.01], [1.0]),
    "poisson, added": one(1.0, [0.01], [1.0], reverse=1.0),
    "half, added": one(0.7, [0.5], [1.0], reverse=1.0),
    "gaussian": one(1.0, [1.0], [0.8]),
    "replace one": one(1.3, [0.1], [1.0], [0.1], [-1.0]),
    "two shifts": one(0.9, [0.05, 0.01], [1.0, 2.0]),
    "unequal": one(1.1, [0.2, 0.1], [1.0, 3.0], [0.3], [-0.5], reverse=1.0),
    "little noise": one(0.25, [0.02], [1.0]),
    "much noise": one(40.0, [0.3], [1.0]),
}


def log_density(pair, x):
    """log p, log q at a complex or real x."""

    def mixture(weights, means):
        parts = [(1 - mpmath.fsum(map(mpmath.mpf, map(float, weights))), mpmath.mpf(0))]
        parts += [
            (mpmath.mpf(float(w)), mpmath.mpf(float(m)))
            for w, m in zip(weights, means, strict=True)
        ]
        s = mpmath.mpf(float(pair.sigma))
        return mpmath.log(
            mpmath.fsum(
                w * mpmath.exp(-((x - m) ** 2) / (2 * s * s)) / (s * mpmath.sqrt(2 * mpmath.pi))
                for w, m in parts
                if w != 0
            )
        )

    p = mixture(pair.p_weights, pair.p_means)
    q = mixture(pair.q_weights, pair.q_means)
    return (q, p) if float(pair.reverse) else (p, q)


def integrand(pair, s):
    def f(x):
        p, q = log_density(pair, x)
        return mpmath.exp(p + s * (p - q))

    return f


def transform(pair, s):
    """E_P e^(sL) to 20 digits: the trapezoidal rule, ten times finer than 1e-13 takes."""
    sigma, w = float(pair.sigma), abs(complex(s).imag)
    reach = max(map(float, (*pair.p_means, *map(abs, pair.q_means))))
    step = min(0.25 * sigma, 0.5 * sigma**2 / reach / (1 + 0.2 * w))
    far = 10.5 * sigma + (1 + abs(s)) * reach if w == 0 else 10.5 * sigma + (1 + s.real) * reach
    f = integrand(pair, s)
    with mpmath.workdps(25):
        nodes = range(-math.ceil(far / step), math.ceil(far / step) + 1)
        return complex(mpmath.fsum(f(mpmath.mpf(k) * step) for k in nodes) * step)


@pytest.mark.parametrize("s", [0.5, 1.0 + 3.0j])
@pytest.mark.parametrize("name", ["poisson", "unequal"])
def test_the_truth_is_another_rules_truth(name, s):
    pair = PAIRS[name]
    cuts = [mpmath.mpf(x) for x in np.linspace(-16, 20, 19)]
    with mpmath.workdps(25):
        other = complex(mpmath.quad(integrand(pair, s), cuts))
    assert abs(transform(pair, s) - other) < 1e-15 * abs(other)


def branch_of(pair):
    (branch,) = lines.branches_of(pair)
    return branch


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("tilt", [-0.5, 0.3, 4.0])
def test_moments_err_by_less_than_they_say(name, tilt):
    pair = PAIRS[name]
    branch = branch_of(pair)
    line = lines.coarse_line(branch, (-5.0, 6.0))
    with quietly():
        found = lines.moment_of([branch], [line], tilt)
    truth = math.log(transform(pair, tilt).real)
    assert found.error < 1e-10
    assert abs(found.log - truth) <= found.error + 4e-16 * abs(truth)


@pytest.mark.parametrize("name", ["poisson", "poisson, added", "replace one", "unequal"])
@pytest.mark.parametrize("w", [0.0, 3.0])
def test_the_rules_error_is_bounded_where_it_can_be_seen(name, w):
    """Steps so large that the trapezoidal rule errs by 1e-9 to 1e-2: at any place of its nodes."""
    pair, tilt = PAIRS[name], 1.5
    branch = branch_of(pair)
    reach = 12 * branch.sigma + 4 * branch.reach
    truth, total = transform(pair, tilt + 1j * w), transform(pair, tilt).real
    seen = 0
    for step in np.array([0.5, 0.7, 1.0, 1.4]) * min(branch.sigma, branch.sigma**2):
        worst = 0.0
        for shift in np.arange(6) / 6:
            with quietly():
                line = lines.line_of(branch, -reach + shift * step, reach, step)
            value = np.exp(line.log_mass + (tilt + 1j * w) * line.loss).sum()
            worst = max(worst, abs(value - truth) / total)
        allowed = line.strip.error(branch.exponents(tilt), w)
        assert worst <= allowed + 1e-13
        seen += worst > 1e-11
    assert seen


def direct(branch, tilt, w):
    """|E e^(iwL)| of the tilted law, by nodes much finer than w needs."""
    step = 0.02 * branch.sigma**2 / branch.reach / max(1.0, np.max(w) / 50)
    reach = 12 * branch.sigma + (2 + abs(tilt)) * branch.reach
    with quietly():
        line = lines.line_of(branch, -reach, reach, step)
    f = np.exp(line.log_mass + tilt * line.loss)
    return np.abs(np.exp(1j * np.outer(w, line.loss)) @ f) / f.sum(), line, f / f.sum()


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("tilt", [0.2, 2.0])
def test_what_bounds_the_modulus_bounds_it_for_all_frequencies_above(name, tilt):
    branch = branch_of(PAIRS[name])
    line = lines.coarse_line(branch, (-3.0, 3.0))
    with quietly():
        total = lines.moment_of([branch], [line], tilt)
        (cells,) = smooth._cells_of([branch], [line], total, tilt)
        scale = 1 / np.sqrt(np.var(line.loss[cells.mass > 0.05]) + 1e-12)
        at = scale * np.array([0.3, 1.0, 3.0, 20.0])
        bounds = np.exp(smooth._log_beyond([cells], at))
    factors = np.array([1.0, 1.1, 1.5, 2.0, 5.7])
    for w, bound in zip(at, bounds, strict=True):
        moduli, _, _ = direct(branch, tilt, w * factors)
        assert np.all(moduli <= bound * (1 + 1e-9))
    assert bounds[-1] < 0.95  # and says something


@pytest.mark.parametrize("name", PAIRS)
def test_masses_and_variations_of_cells_lie_on_their_side(name):
    """R_c below and V_c above the same by nodes that are many times finer."""
    branch, tilt = branch_of(PAIRS[name]), 1.0
    line = lines.coarse_line(branch, (-3.0, 3.0))
    with quietly():
        total = lines.moment_of([branch], [line], tilt)
        (cells,) = smooth._cells_of([branch], [line], total, tilt)
        fine = lines.line_of(branch, line.x[0], line.x[-1], line.step / 40)
        f = np.exp(fine.log_mass + tilt * fine.loss - total.log)
        g = f / fine.step / ((fine.mean[0] - fine.mean[1]) / branch.sigma**2)
    mass = np.cumsum(f[::-1])[::-1]
    variation = g[:-1] + np.cumsum(np.abs(np.diff(g))[::-1])[::-1]
    places = np.arange(len(line.x) - 2)
    there = places[(f[40 * places] > 1e-13 * f.max()) & np.isfinite(cells.variation[places])]
    assert len(there) > 20
    assert np.all(cells.mass[there] <= mass[40 * there] + f[40 * there])
    assert np.all(cells.variation[there] >= variation[40 * there] * (1 - 1e-9))
    middle = there[(mass[40 * there] > 0.1) & (mass[40 * there] < 0.9)]
    assert np.all(cells.mass[middle] > 0.5 * mass[40 * middle])
    assert np.all(cells.variation[middle] < 3 * variation[40 * middle])
    low, high = cells.ends
    outside = f[(fine.x < low) | (fine.x > high)].sum()
    assert outside <= cells.left_out + 1e-25
    assert cells.left_out < 1e-14


@pytest.mark.parametrize(
    ("name", "tilt"), [*itertools.product(["poisson", "two shifts", "unequal"], [0.5, 3.0])]
)
def test_the_characteristic_function_errs_by_less_than_it_says(name, tilt):
    pair = PAIRS[name]
    query = Query(math.log(1e-6), 0.0, True, 1.0)
    with quietly():
        law = smooth.smooth_of([pair], np.array([400.0]), query)
        contour = law.contour(query)._replace(tilt=np.float64(tilt))
        step = law.spectrum(contour._replace(right=np.float64(0.1), left=np.float64(0.1)))
    total = transform(pair, tilt).real
    assert abs(step.log_moment[0, 0] - math.log(total)) < 1e-11
    for k in (1, 20, len(step.frequency) - 1):
        w = step.frequency[k]
        truth = transform(pair, tilt + 1j * w) / total
        phi = np.exp(step.log_modulus[0, 0, k] + 1j * (step.angle[0, 0, k] + w * step.mean[0, 0]))
        assert abs(phi - truth) <= step.relative[0, 0, k] * abs(phi)
        assert np.exp(step.log_modulus[0, 0, k]) >= abs(truth)


@pytest.mark.parametrize("name", ["poisson", "replace one", "two shifts", "unequal"])
def test_the_reverse_has_the_moments_of_the_other_side(name):
    pair = PAIRS[name]
    query = Query(math.log(1e-6), 0.0, True, 1.0)
    with quietly():
        there = smooth.smooth_of([pair], np.array([100.0]), query)
        back = smooth.smooth_of([pair.reversed()], np.array([100.0]), query)
        for tilt in (0.3, 0.9):
            found = [there.reverse_law().moment(tilt, side, 0) for side in (-1.0, 1.0)]
            truth = [back.law().moment(tilt, side, 0) for side in (-1.0, 1.0)]
            assert found[0] <= truth[1]
            assert truth[0] <= found[1]
            assert found[1] - found[0] < 1e-8


def test_what_is_a_reverse_and_what_is_not():
    poisson, other = PAIRS["poisson"], PAIRS["two shifts"]
    assert lines.is_reverse(poisson, poisson.reversed())
    assert not lines.is_reverse(poisson, poisson)  # one direction standing for both
    assert not lines.is_reverse(poisson, other.reversed())
    assert lines.is_reverse(PAIRS["gaussian"], PAIRS["gaussian"])
    assert lines.is_reverse(PAIRS["replace one"], PAIRS["replace one"])
    assert not lines.is_reverse(PAIRS["unequal"], PAIRS["unequal"])
    excess = np.zeros((2, 2))
    mixed = MixturePair(np.array([0.5, 0.5]), (poisson, other), excess)
    turned = MixturePair(np.array([0.5, 0.5]), (poisson.reversed(), other.reversed()), excess)
    assert lines.is_reverse(mixed, turned)
    assert not lines.is_reverse(mixed, mixed)
    assert not lines.is_reverse(mixed, MixturePair(np.array([0.6, 0.4]), turned.pairs, excess))


def problem(step, count):
    return Problem([(step, count)])


SETTINGS = [
    (acc.poisson(acc.gaussian(1.0), 0.01), 1000, 1e-5),
    (acc.poisson(acc.gaussian(0.6), 0.003), 5000, 1e-7),
    (acc.poisson(acc.gaussian(5.0), 0.2), 300, 1e-10),
    (acc.poisson(acc.gaussian(1.5, relation=NeighboringRelation.REPLACE_ONE), 0.05), 200, 1e-5),
    (acc.parallel_poisson(acc.gaussian(1.0), sample_rate=0.01, num_workers=3), 400, 1e-5),
    (
        acc.poisson(acc.gaussian(1.0), 0.02, truncated_batch_size=30, dataset_size=1000),
        300,
        1e-5,
    ),
]


@pytest.mark.parametrize("index", range(len(SETTINGS)))
@pytest.mark.parametrize("direction", [0, 1])
def test_the_law_and_its_atoms_agree(index, direction):
    """Two methods that share the pair and the inversion formula, and neither nodes nor band limit."""
    step, count, delta = SETTINGS[index]
    ((mechanism, _),) = step.parts
    case = problem(mechanism, count)
    query = Query(math.log(delta), 0.0, True, 1.0)
    direction = min(direction, case.directions - 1)
    with quietly():
        bounds, _ = case.smooth(direction, query).answer(query)
        steps = case.steps(direction, case._tails(math.log(delta)), 6144)
        atoms, _ = answer(steps, query, 18432)
    assert bounds.lower <= bounds.upper
    assert bounds.upper - bounds.lower < 3e-5 * bounds.upper
    assert bounds.lower <= atoms.upper
    assert atoms.lower <= bounds.upper


def test_what_was_rounded_up_is_taken_off_below():
    """A mixture whose losses may be too large by 1e-6 a step, and masses by 1e-7: both, times the steps."""
    pair, count = PAIRS["poisson"], 500.0
    query = Query(math.log(1e-5), 0.0, True, 1.0)
    found = {}
    for loss in (0.0, 1e-6):
        excess = np.array([[0.1 * loss], [loss]])
        mixed = MixturePair(np.ones(1), (pair,), excess)
        with quietly():
            found[loss], _ = smooth.smooth_of([mixed], np.array([count]), query).answer(query)
    fall = found[0.0].lower - found[1e-6].lower
    assert fall >= count * 1e-6 * (1 - 1e-6)
    assert fall <= 1.5 * count * 1e-6


def test_no_pair_without_a_density_gets_here():
    fixed = acc.fixed_size(acc.gaussian(1.0), batch_size=10, dataset_size=1000)
    pairs = [dominating_pairs(m) for m, _ in (fixed * 10).parts]
    query = Query(math.log(1e-5), 0.0, True, 1.0)
    assert smooth.smooth_of([p[0] for p in pairs], np.array([10.0]), query) is None
    laplace = [dominating_pairs(m) for m, _ in (acc.laplace(1.0) * 10).parts]
    assert smooth.smooth_of([p[0] for p in laplace], np.array([10.0]), query) is None
    both = [PAIRS["poisson"], laplace[0][0]]
    assert smooth.smooth_of(both, np.array([10.0, 10.0]), query) is None


def delta_by_direct_sums(sigma, q, count, epsilon, tilt, window):
    """delta(epsilon) of Poisson sampling by the same integral, written out: direct sums in place of every method and bound."""
    x = np.arange(-12 * sigma, 12 * sigma + 2 + tilt, 0.004)
    loss = np.log1p(q * np.expm1((2 * x - 1) / (2 * sigma**2)))
    log_f = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi)) + (1 + tilt) * loss
    f = np.exp(log_f) * 0.004
    total, mean = f.sum(), (f @ loss) / f.sum()
    w = 2 * np.pi / window * np.arange(900)
    phi = np.array([np.exp(1j * v * (loss - mean)) @ f for v in w]) / total
    s = tilt + 1j * w
    phase = count * np.angle(phi) + w * (count * mean - epsilon)
    terms = (np.abs(phi) ** count * np.exp(1j * phase) / (s * (s + 1))).real
    integral = (2 * terms.sum() - terms[0]) / window
    return math.exp(count * math.log(total) - tilt * epsilon) * integral


def test_epsilon_to_nine_digits():
    """W1 of the benchmark: two tilts and windows agree to 1e-10, and the bracket holds what they say."""
    low, high, _ = (acc.poisson(acc.gaussian(1.0), 0.01) * 1000).epsilon_bounds(1e-5)
    assert high - low < 1e-6
    truth = 1.8282366665
    for tilt, window in ((6.3, 25.0), (5.0, 40.0)):
        found = [delta_by_direct_sums(1.0, 0.01, 1000, e, tilt, window) for e in (low, truth, high)]
        assert found[0] >= 1e-5 >= found[2]
        assert found[1] == pytest.approx(1e-5, rel=1e-9)


def test_calibrated_noise_meets_its_target_by_direct_sums():
    found = acc.calibrate(
        acc.epsilon_budget(3.0, delta=1e-5),
        lambda s: acc.poisson(acc.gaussian(s), 0.01) * 1000,
        param_min=0.3,
        param_max=10.0,
    )
    delta = delta_by_direct_sums(found.param, 0.01, 1000, 3.0, 3.5, 60.0)
    assert 1e-5 * (1 - 2e-5) <= delta <= 1e-5


@pytest.mark.parametrize("index", [0, 2, 3])
@pytest.mark.parametrize("alpha", [1e-9, 0.01, 0.3, 0.9])
def test_beta_by_the_law_and_by_atoms_agree(index, alpha):
    step, count, _ = SETTINGS[index]
    case, atoms = (problem(step.parts[0][0], count) for _ in range(2))
    atoms.smooth = lambda direction, query: None
    with quietly():
        low, up = case.beta(alpha, lambda lower, upper: 0.0)  # the first answer
        atoms_low, atoms_up = atoms.beta(alpha, lambda lower, upper: 2.0)  # the finest
    assert 0 <= low <= up <= 1 - alpha
    assert low <= atoms_up
    assert atoms_low <= up


@pytest.mark.parametrize("alpha", [1e-4, 0.01, 0.5, 0.9])
def test_one_law_exchanged_is_the_other(alpha):
    laws = [
        problem(SETTINGS[0][0].parts[0][0], 1000).smooth(d, Query(math.log(alpha), 0.0, True, 1.0))
        for d in (0, 1)
    ]
    with quietly():
        for first in (0, 1):
            one = beta_engine._direction(laws[first], alpha, None)
            exchanged, other = (
                one.reverse(),
                beta_engine._direction(laws[1 - first], alpha, one.points),
            )
            assert np.all(exchanged.lower <= other.upper)
            assert np.all(other.lower <= exchanged.upper)
            assert np.all(other.upper - other.lower < 1e-5)
            if alpha >= 0.5:  # far from the contour's centre less is known, or nothing
                assert np.all(exchanged.upper - exchanged.lower < 2e-5)


@pytest.mark.parametrize("share", [0.15, 0.3])
def test_the_law_is_below_the_truth_with_a_narrow_window(share):
    """What wraps around is visible, and taken off below: 1.8282366665 stays inside."""
    query = Query(math.log(1e-5), 0.0, True, 1.0)
    with quietly():
        law = problem(SETTINGS[0][0].parts[0][0], 1000).smooth(0, query)
        contour = law.contour(query)
        narrow = contour._replace(window=share * contour.window)
        spectrum = law.spectrum_on(narrow, 1.0)
        bounds = smooth.bounds_on(law.law(), query, narrow, spectrum)
    assert bounds.lower <= 1.8282366665 <= bounds.upper
