"""What the tables share: medians with their spread, and rows that read well on a page and in a shell."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Call = Callable[[], Any]


def interleaved(
    calls: Mapping[str, Call], rounds: int, seconds: float = float("inf")
) -> dict[str, list[float]]:
    """Returns the wall seconds of each call, made in turn; each was called before and blocks.

    Args:
      calls: what to time.
      rounds: how often each is called.
      seconds: past this no further round begins, so that dear calls are made once.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    began = time.perf_counter()
    for n in range(rounds):
        if n and time.perf_counter() - began > seconds:
            break
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    return times


def spread(seconds: Sequence[float]) -> float:
    """Returns the middle half's width over the median: 0.1 says that half the runs lie within 10 %."""
    if len(seconds) < 2:
        return float("nan")
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / statistics.median(seconds)


def percent(share: float) -> str:
    """Returns "7 %", or "-" where nothing was repeated."""
    return "-" if share != share else f"{100 * share:.0f} %"


def markdown(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table that a page shows and a shell can read; all but the first column to the right."""
    cells = [list(columns), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    texts = [
        " | ".join(
            c.ljust(w) if i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    rule = "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths))
    return "\n".join(
        [f"\n### {title}\n", f"| {texts[0]} |", f"|{rule}|", *(f"| {t} |" for t in texts[1:])]
    )
