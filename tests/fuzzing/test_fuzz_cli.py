"""The console script under odd words: an answer on the private side, or one line and exit code 2."""

import json
import math

import numpy as np
import pytest
from fuzz_tools import fuzz, time_limit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opake_jax.cli import main

WORDS = (
    *("0", "1", "-1", "0.5", "1e-5", "1e-320", "1e308", "1e400", "-1e400", "nan", "inf", "9" * 400, "1_0", "1/3"),
    *("", " ", "x", "0x10", "1,2", "0.5,1", "1,,2", "1:2", "1:2:3", "1:2:1", "2:1:4", "1:2:99999", "0:1:3", "a:b:c"),
    *("--json", "-5", "é", "1e-5 ", "None", "True", "1:nan:3", "nan,1", "1e5", "2147483648"),
)  # fmt: skip
NUMBER = st.one_of(st.sampled_from(WORDS), st.floats().map(str), st.text(max_size=4))
USUAL = {
    "--noise-multiplier": ("1", "2.5", "0.5,1"), "--steps": ("10", "1000"), "--sample-rate": ("0.01", "0.5"),
    "--batch-size": ("10", "50"), "--dataset-size": ("1000",), "--relation": ("add_remove", "zero_out", "replace_one"),
    "--capacity": ("50", "100"), "--workers": ("2",), "--delta": ("1e-5",), "--epsilon": ("1", "8"),
    "--advantage": ("0.2",), "--beta": ("0.5",), "--alpha": ("0.1",), "--risk": ("0.2",), "--prior": ("0.4",),
    "--clipping-norm": ("1",), "--save": ("nowhere/else.png",),
}  # fmt: skip
PROCESS = (
    "--noise-multiplier",
    "--steps",
    "--sample-rate",
    "--batch-size",
    "--dataset-size",
    "--relation",
    "--capacity",
    "--workers",
)
COMMANDS = {
    "epsilon": (*PROCESS, "--delta"), "delta": (*PROCESS, "--epsilon"), "compare": (*PROCESS, "--delta"),
    "curve": (*PROCESS, "--alpha", "--save"),
    "calibrate": (*PROCESS, "--epsilon", "--delta", "--advantage", "--beta", "--alpha", "--risk", "--prior"),
    "report": (
        "--noise-multiplier", "--steps", "--dataset-size", "--batch-size", "--clipping-norm", "--capacity", "--delta", "--epsilon",
    ),
}  # fmt: skip
# A setting that each command answers; the fuzz takes away, adds and changes.
WHOLE = {
    "epsilon": {"--noise-multiplier": "1", "--delta": "1e-5"},
    "delta": {"--noise-multiplier": "1", "--epsilon": "1"},
    "compare": {"--noise-multiplier": "1", "--delta": "1e-5"},
    "curve": {"--noise-multiplier": "1", "--alpha": "0.1"},
    "calibrate": {"--steps": "10", "--epsilon": "1", "--delta": "1e-5"},
    "report": {
        "--noise-multiplier": "1", "--steps": "10", "--dataset-size": "1000", "--batch-size": "50", "--delta": "1e-5", "--capacity": "100",
    },
}  # fmt: skip


@st.composite
def command_lines(draw):
    name = draw(st.sampled_from(sorted(COMMANDS)))
    options = dict(WHOLE[name])
    for option in draw(st.sets(st.sampled_from(COMMANDS[name]), max_size=3)):
        odd = st.just("no/such/place.png") if option == "--save" else NUMBER  # nothing is written
        options[option] = draw(st.one_of(st.sampled_from(USUAL[option]), odd))
    for option in draw(st.sets(st.sampled_from(sorted(options)), max_size=1)):
        if draw(st.booleans()):
            del options[option]
    return [name, *(f"{option}={value}" for option, value in options.items()), "--json"]


def run(argv):
    """Returns (exit code, what it printed, what it complained about)."""
    with time_limit(20):  # one traced table may be compiled
        try:
            return main(argv)
        except SystemExit as end:
            return end.code


@settings(
    fuzz(300), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(argv=command_lines())
def test_a_command_answers_or_says_in_one_line_why_not(argv, capsys):
    judge(argv, capsys)


def judge(argv, capsys):
    huge = [w for w in argv if "e+" in w or "e308" in w]
    if huge:  # open: test_fuzz_accounting.py::test_open, numbers beyond squares
        return
    code = run(argv)
    printed = capsys.readouterr()
    assert code in (0, 2), argv
    if code == 2:
        assert printed.out == ""
        (line,) = printed.err.splitlines()
        assert line.startswith("opake-jax: error: ")
        assert "Traceback" not in line
        return
    data = json.loads(printed.out, parse_constant=pytest.fail)  # no NaN, no bare infinity
    for row in data.get("rows", [data]):
        for name in ("epsilon", "delta"):
            if f"{name}_lower" in row and name in row:
                assert 0 <= float(row[f"{name}_lower"]) <= float(row[name])
        if "beta" in row and "alpha" in row:
            assert 0 <= row["beta"] <= 1 - row["alpha"] + 1e-12
        assert not any(isinstance(v, float) and math.isnan(v) for v in row.values())


@settings(
    fuzz(80), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    content=st.one_of(
        st.binary(max_size=40),
        st.binary(max_size=40).map(lambda b: b"PK\x03\x04" + b + b"PK\x05\x06" + bytes(18)),
        st.integers(0, 400),
    ),
    arrays=st.sampled_from(
        [
            (np.arange(30.0), np.zeros(30)), (np.zeros(0), np.ones(3)), (np.array(["x"]), np.ones(3)), (np.ones((2, 3)), np.ones(3)),
            (np.array([np.nan]), np.ones(3)), (np.array([1j]), np.ones(3)), (np.float64(1), np.ones(3)),
        ]
    ),
    delta=NUMBER, confidence=st.one_of(st.just("0.95"), NUMBER),
)  # fmt: skip
def test_an_audit_of_any_file_ends_in_one_line_or_a_bound(
    content, arrays, delta, confidence, capsys, tmp_path_factory
):
    path = tmp_path_factory.mktemp("scores") / "scores.npz"
    np.savez(path, in_scores=arrays[0], out_scores=arrays[1])
    if isinstance(content, int):  # a file that was cut, or changed in one byte, or whole
        whole = bytearray(path.read_bytes())
        if content < 200:
            path.write_bytes(whole[: len(whole) * content // 200])
        elif content < 399:
            whole[len(whole) * (content - 200) // 200] ^= 0xFF
            path.write_bytes(whole)
    else:
        path.write_bytes(content)
    code = run(["audit", str(path), f"--delta={delta}", f"--confidence={confidence}", "--json"])
    printed = capsys.readouterr()
    assert code in (0, 2)
    if code == 2:
        (line,) = printed.err.splitlines()
        assert line.startswith("opake-jax: error: ")
    else:
        found = json.loads(printed.out)
        assert float(found["epsilon_lower"]) >= 0
