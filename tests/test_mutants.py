"""The mutants of `mutants.py` still fit the code: each place is there once, each named test exists, each report has one."""

import pathlib
import re

import pytest
from mutants import MUTANTS, REPO

HERE = pathlib.Path(__file__).parent


def test_every_report_has_a_mutant():
    assert {m.reports for m in MUTANTS} >= {f"R{n:02d}" for n in range(1, 43)}
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_fits_the_code(mutant):
    text = (REPO / "opake_jax" / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert mutant.tests
    for name in mutant.tests:
        path, _, test = re.sub(r"\[.*", "", name).partition("::")
        assert f"def {test}(" in (HERE / path).read_text(), name


def test_every_mutant_is_listed():
    listed = re.findall(
        r"^\| ([RA]\d\d) \| `(\w+)` \|", (HERE / "README.md").read_text(), re.MULTILINE
    )
    assert listed == [(m.reports, m.name) for m in MUTANTS]
