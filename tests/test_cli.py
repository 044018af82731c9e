"""The console script: right numbers, rounded to the private side; one line and exit code 2 for anything else."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

import opake_jax.accounting as acc
from opake_jax.cli import _main, _setting, main
from opake_jax.types import NeighboringRelation

RUN = ["--noise-multiplier", "1", "--sample-rate", "0.01", "--steps", "1000"]
# An independent tilted-FFT lattice: tests/reference/accounting_reference.json.
W1_EPSILON = 1.8282367


def ask(capsys, *argv):
    """Runs a command that must succeed; returns what it printed."""
    assert main(list(argv)) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def ask_json(capsys, *argv):
    return json.loads(ask(capsys, *argv, "--json"))


def first_number(text):
    """The number after the first `<=` or `>=`."""
    return float(text.split("=", 1)[1].split()[0])


def test_epsilon_is_bracketed_and_printed_rounded_up(capsys):
    data = ask_json(capsys, "epsilon", *RUN, "--delta", "1e-5")
    assert data["epsilon_lower"] <= W1_EPSILON + 1e-7
    assert W1_EPSILON - 1e-7 <= data["epsilon"] <= W1_EPSILON * (1 + 1e-4)
    assert data["pair_is_tight"] is True
    assert data["relation"] == "add_remove"
    text = ask(capsys, "epsilon", *RUN, "--delta", "1e-5")
    assert data["epsilon"] <= first_number(text) <= data["epsilon"] * (1 + 1e-4)


def test_delta_is_bracketed(capsys):
    """[9.2218e-10, 9.2240e-10] at epsilon 3: dp_accounting 0.6 and the lattice."""
    data = ask_json(capsys, "delta", *RUN, "--epsilon", "3")
    assert data["delta_lower"] <= 9.2240e-10
    assert 9.2218e-10 <= data["delta"] <= 9.2240e-10


GAUSSIAN = acc.gaussian(1.0)
REPLACE = NeighboringRelation.REPLACE_ONE
# The options, what they mean, and where epsilon at delta 1e-5 lies: the closed form (mpmath) or the lattices of
# tests/accounting/lattice.py and ../shared/design/accounting.md, "Amplification".
KINDS = {
    "": (lambda: GAUSSIAN * 1, 4.377178, 4.377179),
    "--relation replace_one": (lambda: acc.gaussian(1.0, relation=REPLACE) * 1, 9.9965, 9.9975),
    "--sample-rate 0.01 --steps 1000": (
        lambda: acc.poisson(GAUSSIAN, 0.01) * 1000, 1.8282366, 1.8285,
    ),
    "--batch-size 500 --dataset-size 50000 --steps 1000": (
        lambda: acc.poisson(GAUSSIAN, 0.01) * 1000, 1.8282366, 1.8285,
    ),
    "--batch-size 256 --dataset-size 50000 --capacity 256 --steps 1000": (
        lambda: acc.poisson(
            GAUSSIAN, 256 / 50000, truncated_batch_size=256, dataset_size=50000
        ) * 1000, 6.4518, 6.4528,
    ),
    "--sample-rate 0.01 --workers 2 --steps 1000": (
        lambda: acc.parallel_poisson(GAUSSIAN, 0.01, num_workers=2) * 1000, 3.9785, 3.9795,
    ),
    "--batch-size 10 --dataset-size 1000 --fixed-size --steps 1000": (
        lambda: acc.fixed_size(
            acc.gaussian(1.0, relation=REPLACE), batch_size=10, dataset_size=1000
        ) * 1000, 14.8206, 14.8225,
    ),
}  # fmt: skip


@pytest.mark.parametrize("options", KINDS, ids=lambda o: o or "none")
def test_each_kind_of_sampling_is_its_own_process(options):
    argv = ["epsilon", "--noise-multiplier", "1", *options.split()]
    args = _main._parser().parse_args(argv)
    (row,) = _setting.grid(args, _setting.PARAMETERS)
    asked = _setting.setting(args).process(*row.values())
    meant = KINDS[options][0]()
    assert jax.tree.structure(asked) == jax.tree.structure(meant)
    assert jax.tree.leaves(asked) == jax.tree.leaves(meant)


@pytest.mark.slow
@pytest.mark.parametrize("options", KINDS, ids=lambda o: o or "none")
def test_each_kind_of_sampling_has_its_own_epsilon(capsys, options):
    argv = ["epsilon", "--noise-multiplier", "1", *options.split(), "--delta", "1e-5"]
    _, low, high = KINDS[options]
    assert low <= ask_json(capsys, *argv)["epsilon"] <= high


def test_a_table_agrees_with_single_answers_from_above(capsys):
    data = ask_json(
        capsys, "epsilon", "--noise-multiplier", "0.8:1.2:3", "--sample-rate", "0.01,0.02",
        "--steps", "1000", "--delta", "1e-5",
    )  # fmt: skip
    assert [(r["noise_multiplier"], r["sample_rate"]) for r in data["rows"]] == [
        (s, q) for s in (0.8, 1, 1.2) for q in (0.01, 0.02)
    ]
    for row in data["rows"]:
        step = acc.poisson(acc.gaussian(row["noise_multiplier"]), row["sample_rate"])
        lower, upper, _ = (step * 1000).epsilon_bounds(1e-5)
        assert lower <= row["epsilon"] <= upper * (1 + 1e-3)


def test_a_table_shows_what_was_computed(capsys):
    text = ask(capsys, "epsilon", "--noise-multiplier", "0.5:0.8:4", "--delta", "1e-5")
    assert [line.split()[0] for line in text.splitlines()[2:]] == ["0.5", "0.6", "0.7", "0.8"]


def test_calibration_finds_the_noise_and_rounds_it_up(capsys):
    options = ["--epsilon", "3", "--delta", "1e-5", "--sample-rate", "0.01", "--steps", "1000"]
    (row,) = ask_json(capsys, "calibrate", *options)["rows"]
    # 0.8135845: direct sums (tests/accounting/test_smooth.py); a lattice's upper bound gives 0.8135916.
    assert 0.813584 <= row["noise_multiplier"] <= 0.813586
    assert 2.9999 <= row["achieved"] <= 3.0
    shown = float(ask(capsys, "calibrate", *options).splitlines()[-1].split()[-2])
    assert shown >= row["noise_multiplier"]


def test_calibration_finds_the_most_steps(capsys):
    (row,) = ask_json(
        capsys, "calibrate", "--epsilon", "4", "--delta", "1e-5", "--noise-multiplier", "4",
    )["rows"]  # fmt: skip
    # Closed form: T steps are gaussian(4 / sqrt(T)).
    steps = row["steps"]
    assert acc.gaussian(4 / steps**0.5).epsilon_at(1e-5) <= 4
    assert acc.gaussian(4 / (steps + 1) ** 0.5).epsilon_at(1e-5) > 4


@pytest.mark.parametrize(
    ("options", "query"),
    [
        (["--advantage", "0.1"], lambda p: p.advantage() <= 0.1),
        (["--beta", "0.9", "--alpha", "0.05"], lambda p: p.beta_at(0.05) >= 0.9),
        (["--risk", "0.4", "--prior", "0.5"], lambda p: p.risk_at(0.5) >= 0.4),
    ],
    ids=["advantage", "beta", "risk"],
)
def test_every_budget_is_kept(capsys, options, query):
    (row,) = ask_json(capsys, "calibrate", *options, "--steps", "10")["rows"]
    assert query(acc.gaussian(row["noise_multiplier"]) * 10)


def test_the_curve_is_rounded_to_the_private_side_and_drawn(capsys, tmp_path):
    path = tmp_path / "curve.svg"
    options = ["--noise-multiplier", "1", "--alpha", "0.01,0.1", "--save", str(path)]
    data = ask_json(capsys, "curve", *options)
    # Phi(Phi^-1(1 - alpha) - 1) and 2 Phi(1/2) - 1, mpmath.
    assert 0.90763 <= data["rows"][0]["beta"] <= 0.907642
    assert 0.61085 <= data["rows"][1]["beta"] <= 0.610863
    assert 0.382924 <= data["advantage"] <= 0.382925
    assert path.read_text().startswith("<?xml")


def test_compare_never_shows_an_epsilon_below_the_certified_lower_end(capsys):
    data = ask_json(capsys, "compare", *RUN, "--delta", "1e-5")
    assert data["epsilon_lower"] <= W1_EPSILON
    assert len(data["rows"]) >= 2
    for row in data["rows"]:
        assert row["epsilon"] == "inf" or row["epsilon"] >= data["epsilon_lower"]


def test_compare_shows_the_classical_answers_where_they_are_proved(capsys):
    """By hand, sigma 200, T 1000: basic 1000 sqrt(2 ln(1.25 / 1e-8)) / 200 = 30.53181; advanced, with e =
    sqrt(2 ln(1.25 / 5e-9)) / 200 = 0.03109419: e sqrt(2000 ln(1 / 5e-6)) + 1000 e (exp(e) - 1) = 5.840314."""
    data = ask_json(
        capsys, "compare", "--noise-multiplier", "200", "--steps", "1000", "--delta", "1e-5"
    )
    found = {row["method"]: row["epsilon"] for row in data["rows"]}
    assert found["classical formula, basic composition"] == pytest.approx(30.53181, rel=1e-6)
    assert found["classical formula, advanced composition"] == pytest.approx(5.840314, rel=1e-6)
    assert min(found.values()) == found["PLD, certified"]
    data = ask_json(
        capsys, "compare", "--noise-multiplier", "1", "--steps", "10", "--delta", "1e-5"
    )
    assert [row["epsilon"] for row in data["rows"][2:]] == [
        "inf",
        "inf",
    ]  # a step's epsilon is above 1


def test_report_is_the_plans(capsys):
    data = ask_json(
        capsys, "report", "--dataset-size", "1000", "--batch-size", "50", "--steps", "20",
        "--noise-multiplier", "1", "--delta", "1e-5",
    )  # fmt: skip
    assert (data["steps"], data["delta"]) == (20, 1e-5)
    assert "zero-out" in data["relation"]
    plain = acc.poisson(acc.gaussian(1.0), 0.05) * 20
    assert plain.epsilon_bounds(1e-5)[0] <= data["epsilon"] <= 1.01 * plain.epsilon_at(1e-5)


def test_audit_stays_below_the_truth_of_a_gaussian(capsys, tmp_path):
    """Scores N(1, 1) against N(0, 1) are a Gaussian of noise multiplier 1: epsilon 4.3772 at 1e-5."""
    rng = np.random.default_rng(0)
    path = tmp_path / "scores.npz"
    np.savez(path, in_scores=1 + rng.normal(size=2000), out_scores=rng.normal(size=2000))
    data = ask_json(capsys, "audit", str(path), "--delta", "1e-5")
    assert 0.5 < data["epsilon_lower"] <= 4.3772
    assert 0.5 < data["mu_lower"] <= 1.0
    text = ask(capsys, "audit", str(path), "--delta", "1e-5")
    assert first_number(text) <= data["epsilon_lower"]


def test_infinity_is_a_string_in_json(capsys):
    data = ask_json(capsys, "epsilon", "--noise-multiplier", "0", "--delta", "1e-5")
    assert data["epsilon"] == "inf"


BAD = {
    "epsilon --noise-multiplier 1": "--delta",
    "epsilon --delta 1e-5": "--noise-multiplier",
    "epsilon --noise-multiplier -1 --delta 1e-5": "noise_multiplier",
    "epsilon --noise-multiplier nan --delta 1e-5": "noise_multiplier",
    "epsilon --noise-multiplier x --delta 1e-5": "--noise-multiplier",
    "epsilon --noise-multiplier 1:2 --delta 1e-5": "--noise-multiplier",
    "epsilon --noise-multiplier 1:2:1 --delta 1e-5": "range",
    "epsilon --noise-multiplier 1:2:99999 --delta 1e-5": "range",
    "epsilon --noise-multiplier=-1:2:4 --delta 1e-5": "noise_multiplier",
    "epsilon --noise-multiplier 1 --delta 2": "delta",
    "epsilon --noise-multiplier 1 --delta 1e-5,2": "delta",
    "epsilon --noise-multiplier 1 --delta 1e-5 --sample-rate 1.1": "sample_rate",
    "epsilon --noise-multiplier 1 --delta 1e-5 --steps 2.5": "count",
    "epsilon --noise-multiplier 1 --delta 1e-5 --batch-size 5": "--dataset-size",
    "epsilon --noise-multiplier 1 --delta 1e-5 --batch-size 5 --dataset-size 0": "dataset",
    "epsilon --noise-multiplier 1 --delta 1e-5 --batch-size 5 --sample-rate 0.1": "--sample-rate",
    "epsilon --noise-multiplier 1 --delta 1e-5 --capacity 5": "--capacity",
    "epsilon --noise-multiplier 1 --delta 1e-5 --sample-rate 0.1 --capacity 5": "--dataset-size",
    "epsilon --noise-multiplier 1 --delta 1e-5 --sample-rate 0.1 --workers 0": "num_workers",
    "epsilon --noise-multiplier 1 --delta 1e-5 --batch-size 5 --dataset-size 9 --capacity 0": (
        "truncated_batch_size"
    ),
    "epsilon --noise-multiplier 1 --delta 1e-5 --sample-rate 0.1 --workers 2 --capacity 5": "exclude",
    "epsilon --noise-multiplier 1 --delta 1e-5 --batch-size 5 --dataset-size 9 --fixed-size"
    " --relation add_remove": "replace_one",
    "epsilon --noise-multiplier 1 --delta 1e-5 --relation other": "relation",
    "delta --noise-multiplier 1 --epsilon -1": "epsilon",
    "calibrate --steps 10": "budget",
    "calibrate --steps 10 --epsilon 1": "--delta",
    "calibrate --steps 10 --epsilon 1 --delta 1e-5 --advantage 0.1": "budget",
    "calibrate --epsilon 1 --delta 1e-5": "--steps",
    "calibrate --steps 10 --epsilon 0 --delta 0": "",
    "curve --noise-multiplier 1,2": "range",
    "curve --noise-multiplier 1 --alpha 2": "alpha",
    "report --dataset-size 10 --batch-size 5 --steps 3": "--delta",
    "audit missing.npz": "missing.npz",
    f"audit {__file__}": "savez",
    "unknown": "unknown",
    "": "name",
}


@pytest.mark.parametrize("command", BAD, ids=lambda c: c or "nothing")
def test_bad_input_is_one_line_and_exit_code_2(capsys, command):
    try:
        code = main(command.split())
    except SystemExit as stop:  # argparse's way
        code = stop.code
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert printed.err.startswith("opake-jax: error: ")
    assert printed.err.count("\n") == 1
    assert BAD[command] in printed.err


def test_an_epsilon_does_not_pay_for_training_or_drawing():
    script = (
        "import sys; from opake_jax.cli import main; "
        "main(['epsilon', '--noise-multiplier', '1', '--delta', '1e-5']); "
        "print([m for m in ('optax', 'matplotlib', 'flax') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_does_not_even_load_jax():
    script = (
        "import sys\nfrom opake_jax.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    print('jax' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"
