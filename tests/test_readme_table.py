"""The table of reports in tests/README.md names every report, and tests that exist."""

import pathlib
import re

HERE = pathlib.Path(__file__).parent
ROWS = re.findall(
    r"^\| (R\d\d) \| [^`|]* \| (`[^|]*`) \| (`[^|]*`) \|$",
    (HERE / "README.md").read_text(),
    re.MULTILINE,
)
FOUND = re.findall(
    r"^\| (A\d\d) \| [^`|]* \| (`[^|]*::[^|]*`) \|$", (HERE / "README.md").read_text(), re.MULTILINE
)


def test_every_report_has_a_test_and_its_kind_a_property():
    assert [report for report, _, _ in ROWS] == [f"R{n:02d}" for n in range(1, 43)]


def test_every_test_named_in_the_tables_exists():
    assert len(FOUND) == 22
    for report, *cells in [*ROWS, *FOUND]:
        for name in re.findall(r"`([^`]+)`", " ".join(cells)):
            path, _, test = name.partition("::")
            assert f"def {test}(" in (HERE / path).read_text(), (report, name)
