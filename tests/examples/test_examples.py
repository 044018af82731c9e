"""Each example runs for a few steps, with its data and without it; the first one as a reader would run it."""

import importlib
import pathlib
import re
import subprocess
import sys

import pytest
from programs import run_here

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
PROGRAMS = [
    ["mnist.py", "--model", "scattering"],
    ["mnist.py", "--model", "cnn"],
    ["adult.py"],
    ["federated.py"],
    ["transformer.py"],
]
DATA_DIR = EXAMPLES.parents[1] / "shared" / "data"  # the examples' default


def run(program, *more):
    """Returns what the program printed."""
    return run_here(EXAMPLES / program[0], *program[1:], *more)


def check(printed):
    assert re.search(r"^test accuracy: \d+\.\d+ %", printed, re.MULTILINE)
    assert re.search(r"epsilon <= \d", printed)
    assert "SEEDED" in printed  # the report owns up to the seed


@pytest.mark.slow
def test_a_process_of_its_own_without_a_warning():
    command = [sys.executable, "-W", "error", str(EXAMPLES / "digits.py"), "--smoke", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    check(done.stdout)


# Where no data lie, the others would run as they do below.
@pytest.mark.slow
@pytest.mark.parametrize(
    "program", PROGRAMS[:-1] if DATA_DIR.is_dir() else [PROGRAMS[1]], ids=" ".join
)
def test_smoke_run_prints_accuracy_and_report(program):
    check(run(program, "--smoke", "--seed", "1"))


@pytest.mark.skipif(not DATA_DIR.is_dir(), reason=f"no data in {DATA_DIR}")
def test_the_transformer_reads_its_text_into_windows_of_one_size(monkeypatch):
    """Its smoke run, the longest, is below: from there on it is one program for any text."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    texts = importlib.import_module("transformer").load(DATA_DIR)
    for train, test in texts:
        assert train.ndim == test.ndim == 2
        assert train.shape[1] == test.shape[1] == texts[0][0].shape[1]
        assert len(train) > 1500 > 16 < len(test)


# (mnist.py reads its data alike for both models.)
@pytest.mark.slow
@pytest.mark.parametrize("program", [PROGRAMS[0], *PROGRAMS[2:]], ids=" ".join)
def test_smoke_run_without_the_data_says_what_stands_in(program, tmp_path):
    printed = run(program, "--smoke", "--seed", "1", "--data-dir", str(tmp_path))
    assert f"{tmp_path}" in printed
    assert "is missing: " in printed
    assert "scikit-learn" in printed
    check(printed)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_an_example_is_short(path):
    assert len(path.read_text().splitlines()) <= 150
