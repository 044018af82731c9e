"""The judge is judged: the tests' lattice accountant brackets the tabulated values, and tightly."""

import json
import pathlib
import sys

import lattice
import pytest

REFERENCE = pathlib.Path(__file__).parent.parent / "reference"
ROWS = {row["id"]: row for row in json.loads((REFERENCE / "accounting_reference.json").read_text())}

# One row for each kind of step, query and size of delta; closed forms where there are any.
CHOSEN = {
    "gauss_eps_5": 2e-4,
    "gauss_eps_16": 1e-3,
    "gauss_delta_8": 5e-2,
    "gauss_adv_4": 1e-3,
    "sub1_remove_11": 5e-3,
    "sub1_remove_15": 1e-2,
    "mog1_remove_4": 3e-3,
    "wor1_5": 1e-3,
    "lap1_delta_2": 1e-4,
    "laplace_4": 1e-4,
    "poisson_gaussian_3": 2e-4,
    "poisson_gaussian_9": 2e-4,
    "heterogeneous_poisson_gaussian_1": 1e-3,
    "parallel_poisson_3": 2e-4,
    "truncated_poisson_dpacc_formula_5": 2e-4,
    "fixed_size_wor_4": 2e-4,
}


@pytest.fixture(scope="module")
def composed():
    sys.path.insert(0, str(REFERENCE))
    try:
        import composed
    finally:
        sys.path.remove(str(REFERENCE))
    return composed


@pytest.mark.parametrize(("name", "width"), list(CHOSEN.items()))
def test_the_lattice_brackets_the_reference(name, width, composed):
    row = ROWS[name]
    low, high = composed.bracket(row, limit=2**16)
    assert low <= row["high"] * (1 + 1e-9)
    assert high >= row["low"] * (1 - 1e-9)
    assert high - low <= width * high


def test_the_lattice_knows_the_two_directions_apart():
    # User report R35 (dp_accounting 0.6.0): sigma 0.5, q 0.1, one step, delta 1e-5.
    remove, add = (
        lattice.epsilon_bracket([[(lattice.poisson(0.5, 0.1, d), 1)]], 1e-5)
        for d in ("remove", "add")
    )
    assert remove[0] <= 6.576 * 1.001
    assert remove[1] >= 6.576 * 0.999
    assert add[0] <= 0.1054 <= add[1] * 1.001  # the loss cannot exceed -log(1 - q) = 0.10536


def test_the_joint_pair_of_fixed_size_sampling_is_no_maximum_of_directions():
    # accounting.md: sigma 1, q 0.01, T 1000, delta 1e-5 is 14.8207; the maximum would say 13.361.
    low, high = lattice.epsilon_bracket([[(lattice.fixed_size(1.0, 0.01), 1000)]], 1e-5)
    assert 14.8 <= low <= 14.8207 * 1.00001
    assert 14.8207 * 0.99999 <= high <= 14.83
