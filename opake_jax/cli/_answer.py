"""How is an answer written? As text for people, as JSON for programs."""

import dataclasses
import math
from typing import Any

__all__ = ["Answer", "as_number", "plain", "shortest", "table"]


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a command found: `data` for `--json`, `text` for people."""

    data: dict[str, Any]
    text: str


def as_number(value: Any) -> Any:
    """Returns a whole number as an int, any other as a float."""
    real = float(value)
    return int(real) if math.isfinite(real) and real == math.floor(real) else real


def shortest(value: float) -> str:
    """Returns the shortest digits that mean exactly this number: rounding an input could flatter a bound.

    >>> shortest(1e-5), shortest(0.6)
    ('1e-05', '0.6')
    """
    return repr(value)


def table(rows: list[dict[str, str]]) -> str:
    """Returns the rows under their names, columns aligned to the right.

    >>> print(table([{"a": "1", "long": "2"}]))
    a  long
    1     2
    """
    names = list(rows[0])
    lines = [names, *([row[name] for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def plain(value: Any) -> Any:
    """Returns the value for json.dumps: what JSON has no number for becomes a string.

    >>> plain({"epsilon": math.inf, "rows": [1.5]})
    {'epsilon': 'inf', 'rows': [1.5]}
    """
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
