"""Our bounds against another accountant's, over random settings, and against themselves.

The other accountant is the tests' own lattice (lattice.py, judged in test_reference_lattice.py). Its bracket is
certified, so that the property needs no tolerance but rounding: the two brackets overlap.
"""

import dataclasses
import itertools
import json
import math
import pathlib
import sys
from typing import Any

import lattice
import numpy as np
import pytest

import opake_jax.accounting as acc
import opake_jax.dpsgd.accounting as dpsgd
from opake_jax.types import NeighboringRelation

# Rounding in the lattice: about 1e-11 relative, its worst where a delta is tiny.
ROUNDING = 1e-8
# What our own bracket may be wide (accounting.md): the slack of monotonicity.
SLACK, FLOOR = 1e-4, 1e-9
DIRECTIONS = ("remove", "add")


# --- Random settings ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Setting:
    """A process, the same thing for the lattice, and where to ask."""

    words: str
    process: Any
    directions: Any
    delta: float


def draw(rng, low, high):
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


def poisson(sigma, q):
    return dpsgd.poisson(dpsgd.gaussian(sigma), q)


def poisson_setting(rng, most_steps):
    sigma, q = draw(rng, 0.35, 30), draw(rng, 1e-4, 0.5)
    steps, delta = int(draw(rng, 1, most_steps)), draw(rng, 1e-15, 1e-3)
    pairs = [[(lattice.poisson(sigma, q, d), steps)] for d in DIRECTIONS]
    words = f"poisson sigma {sigma} q {q} T {steps}"
    return Setting(words, poisson(sigma, q) * steps, pairs, delta)


def two_phase_setting(rng, most_steps):
    one, two = ((draw(rng, 0.5, 10), draw(rng, 1e-3, 0.3)) for _ in range(2))
    first, second = (int(draw(rng, 1, most_steps / 10)) for _ in range(2))
    pairs = [
        [(lattice.poisson(*one, d), first), (lattice.poisson(*two, d), second)] for d in DIRECTIONS
    ]
    words = f"phases (sigma, q) {one} T {first}, {two} T {second}"
    process = poisson(*one) * first | poisson(*two) * second
    return Setting(words, process, pairs, draw(rng, 1e-12, 1e-4))


def parallel_setting(rng, most_steps):
    sigma, q, steps = draw(rng, 0.7, 10), draw(rng, 1e-3, 0.2), int(draw(rng, 1, most_steps))
    step = dpsgd.parallel_poisson(dpsgd.gaussian(sigma), sample_rate=q, num_workers=4)
    pairs = [[(lattice.parallel_poisson(sigma, q, 4, d), steps)] for d in DIRECTIONS]
    words = f"parallel sigma {sigma} q {q} W 4 T {steps}"
    return Setting(words, step * steps, pairs, draw(rng, 1e-12, 1e-4))


def truncated_setting(rng, most_steps):
    sigma, size = draw(rng, 0.7, 10), int(draw(rng, 50, 1e5))
    batch = draw(rng, 2, size / 4)
    cap = max(1, round(batch + rng.uniform(-0.5, 5) * math.sqrt(batch)))
    steps = int(draw(rng, 1, most_steps / 10))
    zero_out = bool(rng.integers(2))
    relation = NeighboringRelation.ZERO_OUT if zero_out else NeighboringRelation.ADD_REMOVE
    step = dpsgd.poisson(
        dpsgd.gaussian(sigma),
        batch / size,
        truncated_batch_size=cap,
        dataset_size=size,
        relation=relation,
    )
    pairs = [
        [(lattice.truncated_poisson(sigma, batch / size, cap, size, d, zero_out=zero_out), steps)]
        for d in DIRECTIONS
    ]
    words = f"truncated sigma {sigma} q {batch / size} n {size} cap {cap} T {steps} {relation.name}"
    return Setting(words, step * steps, pairs, draw(rng, 1e-12, 1e-4))


def fixed_size_setting(rng, most_steps):
    sigma, size = draw(rng, 0.7, 10), int(draw(rng, 50, 1e5))
    batch = max(1, int(size * draw(rng, 1e-3, 0.5)))
    steps = int(draw(rng, 1, most_steps / 10))
    step = dpsgd.fixed_size(dpsgd.gaussian(sigma), batch_size=batch, dataset_size=size)
    pairs = [[(lattice.fixed_size(sigma, batch / size), steps)]]
    words = f"fixed size sigma {sigma} b {batch} n {size} T {steps}"
    return Setting(words, step * steps, pairs, draw(rng, 1e-12, 1e-4))


MAKERS = (
    [poisson_setting] * 12
    + [two_phase_setting] * 2
    + [parallel_setting] * 2
    + [truncated_setting] * 2
    + [fixed_size_setting] * 2
)


def setting(seed, most_steps=1e5):
    """Returns the random setting of this seed: kinds in turn, numbers log-uniform."""
    return MAKERS[seed % len(MAKERS)](np.random.default_rng(seed), most_steps)


def complaint(case, fineness, limit):
    """Returns what is wrong with our bracket of a setting, or None; and its width."""
    lower, upper, _ = case.process.epsilon_bounds(case.delta)
    # Many steps at a tiny rate on a coarse lattice: its own bracket comes out upside down, which is no
    # answer. Then it is asked again on a finer one.
    for points in (limit, 8 * limit):
        low, high = lattice.epsilon_bracket(
            case.directions, case.delta, fineness=fineness, limit=points
        )
        if low <= high:
            break
    assert low <= high, f"the lattice has no answer for {case.words}"
    wrong = []
    if not upper >= low * (1 - ROUNDING):
        wrong.append("upper below the other accountant's lower")
    if not lower <= high * (1 + ROUNDING) + FLOOR:
        wrong.append("lower above the other accountant's upper")
    if not lower <= upper:
        wrong.append("lower above upper")
    report = f"{case.words} delta {case.delta}: [{lower}, {upper}] against [{low}, {high}]: "
    return (report + ", ".join(wrong) if wrong else None), (upper - lower, upper)


# --- Against the lattice -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", list(range(40)))
def test_the_bracket_overlaps_the_lattice(seed):
    wrong, (width, upper) = complaint(setting(seed, most_steps=2e4), 0.04, 2**15)
    assert wrong is None, wrong
    assert upper < math.inf
    assert width <= max(0.01 * upper, FLOOR)


# 100 settings in two parts, for two workers; sweep.py asks for 2,000 and more, by hand.
@pytest.mark.slow
@pytest.mark.parametrize("block", list(range(2)))
def test_the_bracket_overlaps_the_lattice_over_many_settings(block):
    wrong, wide = [], 0
    for seed in range(1000 + 50 * block, 1050 + 50 * block):
        found, (width, upper) = complaint(setting(seed), 0.05, 2**14)
        wide += not width <= max(SLACK * upper, FLOOR)
        if found:
            wrong.append(found)
    assert not wrong, "\n".join(wrong)
    assert wide == 0


# --- Against dp_accounting -----------------------------------------------------------------------------

PEERS = pathlib.Path(__file__).parent.parent / "reference" / "peers.json"


def peer_complaints(rows):
    """Returns what contradicts the rows of peers.json, of which each end is a bound up to its rounding: see peers.py there."""
    wrong = []
    for sigma, q, steps, delta, optimistic, pessimistic, renyi in rows:
        process = poisson(sigma, q) * steps
        lower, upper, _ = process.epsilon_bounds(delta)
        rounding = steps * 2.0**-52  # of a step's masses, in delta
        below = optimistic is not None and upper < optimistic * (1 - 1e-6) - FLOOR
        if below and process.delta_bounds(optimistic)[1] < delta - rounding:
            wrong.append(f"{sigma, q, steps, delta}: {upper} below its optimistic {optimistic}")
        above = pessimistic is not None and lower > pessimistic * (1 + 1e-6) + FLOOR
        if above and process.delta_bounds(pessimistic)[0] > delta + rounding:
            wrong.append(f"{sigma, q, steps, delta}: {lower} above its pessimistic {pessimistic}")
        if renyi is not None and lower > renyi * (1 + 1e-6) + FLOOR:
            wrong.append(f"{sigma, q, steps, delta}: {lower} above its RDP {renyi}")
    return wrong


# Some of them; `sweep.py --peers` compares all.
@pytest.mark.parametrize(
    "some", [slice(0, None, 40), pytest.param(slice(1, None, 8), marks=pytest.mark.slow)]
)
def test_no_bracket_contradicts_dp_accounting(some):
    rows = json.loads(PEERS.read_text())["rows"]
    assert sum(row[5] is not None for row in rows) >= 2000
    wrong = peer_complaints(rows[some])
    assert not wrong, "\n".join(wrong)


# --- Hard settings -------------------------------------------------------------------------------------

# Settings at the edge of what accountants can do (accounting.md): sigma, q, T, delta and a bracket of the
# truth from the reference table (rows 48, 31, 44), from that page, or None: the lattice's.
HARD = [
    (1.0, 0.01, 1000, 1e-15, None),
    (1.0, 0.01, 1000, 1e-30, None),
    (1.0, 0.01, 1000, 1e-100, (29.5984, 29.5992)),
    (0.1, 0.01, 1000, 1e-5, (1194.7491, 1194.7511)),
    (0.05, 0.01, 100, 1e-5, None),
    (20.0, 0.01, 10**6, 1e-12, (3.451883647, 3.451884456)),
    (1.0, 1e-6, 10**6, 1e-12, (0.0, 0.00765)),
    (1000.0, 0.5, 10**6, 1e-9, (2.909735975, 2.909736995)),
    (1.0, 0.01, 10**7, 1e-5, (1014.066, 1014.068)),
    (1e6, 0.01, 1000, 1e-9, None),
]


@pytest.mark.parametrize(("sigma", "q", "steps", "delta", "truth"), HARD)
def test_hard_settings_are_answered(sigma, q, steps, delta, truth):
    lower, upper, _ = (poisson(sigma, q) * steps).epsilon_bounds(delta)
    if truth is None:
        truth = lattice.epsilon_bracket(
            [[(lattice.poisson(sigma, q, d), steps)] for d in DIRECTIONS], delta, fineness=0.02
        )
    assert upper >= truth[0]
    assert lower <= truth[1]
    # Within what is known of the truth, and the bracket that is promised.
    assert upper <= truth[1] * (1 + SLACK) + FLOOR
    assert upper - lower <= 2 * SLACK * upper + FLOOR


# --- Against closed forms ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def closed_forms():
    folder = str(pathlib.Path(__file__).parent.parent / "reference")
    sys.path.insert(0, folder)
    try:
        import closed_forms
    finally:
        sys.path.remove(folder)
    return closed_forms


@pytest.mark.parametrize(
    ("phases", "delta"),
    [
        ([(1.0, 1)], 1e-5),
        ([(1.0, 1000)], 1e-5),
        ([(50.0, 1000)], 1e-30),
        ([(3.0, 1)], 1e-100),
        ([(1000.0, 10**6)], 1e-9),
        ([(0.1, 1)], 1e-6),
        ([(100.0, 1)], 1e-3),
        ([(2.0, 50), (8.0, 700)], 1e-8),
    ],
)
def test_gaussians_composed_numerically_bracket_the_closed_form(phases, delta, closed_forms):
    mu = math.sqrt(sum(steps / sigma**2 for sigma, steps in phases))
    truth = closed_forms.gaussian({"sigma": 1 / mu, "T": 1}, {"type": "epsilon", "delta": delta})
    process = acc.compose(*(dpsgd.gaussian(sigma) * steps for sigma, steps in phases))
    # The accountant itself, past the closed form that a query would take.
    lower, upper = acc.PLD().epsilon_bounds(process.parts, delta)
    assert lower <= float(truth) * (1 + 1e-12) + 1e-15
    assert upper >= float(truth) * (1 - 1e-12)
    assert upper - lower <= 2 * SLACK * upper + FLOOR


# --- Against ourselves -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", list(range(2000, 2025)))
def test_all_levels_agree(seed):
    # No level meets a tolerance of 1e-12, so that each is asked; the answer is the intersection of
    # their brackets, which is empty if two disagree.
    case = setting(seed)
    lower, upper = acc.PLD(rtol=1e-12).epsilon_bounds(case.process.parts, case.delta)
    assert lower <= upper


@pytest.mark.parametrize("seed", [0, 3, 7, 12, 14, 16, 18])
def test_delta_inverts_epsilon(seed):
    # The two questions take different contours; each certifies the other.
    case = setting(seed, most_steps=2e4)
    lower, upper, _ = case.process.epsilon_bounds(case.delta)
    assert case.process.delta_bounds(upper)[0] <= case.delta * (1 + ROUNDING)
    if lower > 0:
        assert case.process.delta_bounds(lower)[1] >= case.delta * (1 - ROUNDING)


@pytest.mark.parametrize("seed", list(range(100, 108)))
def test_epsilon_is_monotone_in_every_parameter(seed):
    rng = np.random.default_rng(seed)
    sigma, q = draw(rng, 0.5, 10), draw(rng, 1e-3, 0.3)
    steps, delta = int(draw(rng, 10, 1e4)), draw(rng, 1e-12, 1e-4)

    def epsilon(sigma=sigma, q=q, steps=steps, delta=delta):
        return (poisson(sigma, q) * steps).epsilon_at(delta)

    base = epsilon()
    above = base * (1 - SLACK) - FLOOR
    for factor in (1.0005, 1.2):
        assert epsilon(sigma=sigma / factor) >= above
        assert epsilon(q=q * factor) >= above
        assert epsilon(steps=steps + math.ceil(steps * (factor - 1))) >= above
        assert epsilon(delta=delta / factor) >= above
    # ... and each truly matters.
    assert epsilon(sigma=sigma / 1.2) > base
    assert epsilon(q=q * 1.2) > base
    assert epsilon(steps=math.ceil(steps * 1.2)) > base
    assert epsilon(delta=delta / 1.2) > base


def test_epsilon_is_monotone_over_thirty_orders_of_delta():
    values = (poisson(1.0, 0.01) * 1000).epsilon_at(np.geomspace(1e-30, 1e-2, 57))
    assert np.all(np.diff(values) < 0)


def test_composition_has_no_order():
    parts = [poisson(1.0, 0.01) * 300, poisson(2.0, 0.05) * 100]
    values = [acc.compose(*some).epsilon_at(1e-6) for some in itertools.permutations(parts)]
    assert values[0] == pytest.approx(values[1], rel=ROUNDING)
    split = parts[0] | parts[1] * 3 | parts[0] * 2
    merged = acc.compose(parts[0] * 3, parts[1] * 3)
    assert split.epsilon_at(1e-6) == pytest.approx(merged.epsilon_at(1e-6), rel=ROUNDING)


@pytest.mark.parametrize("seed", [0, 5, 12, 18])
def test_risk_at_even_odds_is_half_of_what_the_advantage_leaves(seed):
    process = setting(seed, most_steps=2e4).process
    risk, advantage = process.risk_at(0.5), process.advantage()
    assert risk == pytest.approx((1 - advantage) / 2, rel=SLACK, abs=SLACK)
    # risk(1/2) = min over alpha of (alpha + beta(alpha)) / 2
    alpha = np.linspace(0.02, 0.98, 9)
    assert np.all((alpha + process.beta_at(alpha)) / 2 >= risk - SLACK)


@pytest.mark.parametrize("seed", list(range(200, 250)))
def test_renyi_epsilon_is_above_the_lower_bound(seed):
    rng = np.random.default_rng(seed)
    process = poisson(draw(rng, 0.5, 10), draw(rng, 1e-4, 0.5)) * int(draw(rng, 1, 1e4))
    delta = draw(rng, 1e-12, 1e-4)
    renyi = process.epsilon_at(delta, accountant=acc.RDP())
    assert renyi >= process.epsilon_bounds(delta)[0]
