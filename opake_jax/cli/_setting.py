"""What was asked about? From options to a process and to the numbers that a range varies."""

import argparse
import dataclasses
import itertools
import math
from typing import Any

from opake_jax.cli._answer import as_number, shortest

__all__ = [
    "PARAMETERS",
    "RELATIONS",
    "Setting",
    "grid",
    "need",
    "numbers",
    "one",
    "setting",
    "show",
]

RELATIONS = ("add_remove", "zero_out", "replace_one")
#: The numbers that make a process, in the order of `Setting.process`.
PARAMETERS = ("noise_multiplier", "sample_rate", "steps")
# Each point is a question to the accountant, of some 30 ms: more is a slip of the keyboard.
_MAX_POINTS = 1000
# Which analysis an option asks for.
_KINDS = {"capacity": "truncated", "workers": "parallel", "fixed_size": "fixed_size"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """The mechanism of one run, but for the numbers that a range may vary.

    Attributes:
      sampling: "none", "poisson", "truncated", "parallel" or "fixed_size".
      relation: one of `RELATIONS`.
      dataset_size, batch_size, capacity, workers: public counts, where the sampling has them.
    """

    sampling: str
    relation: str
    dataset_size: int | None
    batch_size: int | None
    capacity: int | None
    workers: int | None

    def process(self, noise_multiplier: Any, sample_rate: Any, steps: Any) -> Any:
        """Returns the accounting process of the whole run; its numbers may be traced."""
        from opake_jax import accounting
        from opake_jax.types import NeighboringRelation

        inner = accounting.gaussian(noise_multiplier, relation=NeighboringRelation(self.relation))
        return self._step(accounting, inner, sample_rate) * steps

    def _step(self, accounting: Any, inner: Any, sample_rate: Any) -> Any:
        match self.sampling:
            case "none":
                return inner
            case "poisson":
                return accounting.poisson(inner, sample_rate)
            case "truncated":
                return accounting.poisson(
                    inner,
                    sample_rate,
                    truncated_batch_size=self.capacity,
                    dataset_size=self.dataset_size,
                )
            case "parallel":
                return accounting.parallel_poisson(inner, sample_rate, num_workers=self.workers)
            case _:
                return accounting.fixed_size(
                    inner, batch_size=self.batch_size, dataset_size=self.dataset_size
                )

    def __str__(self) -> str:
        match self.sampling:
            case "none":
                return "Gaussian, every unit in every step"
            case "poisson":
                return "Gaussian, Poisson sampling"
            case "truncated":
                cut = f"batches cut to {self.capacity}"
                return f"Gaussian, Poisson sampling from {self.dataset_size} units, {cut}"
            case "parallel":
                return f"Gaussian, Poisson sampling by {self.workers} workers, each for itself"
            case _:
                chosen = f"{self.batch_size} of {self.dataset_size} units"
                return f"Gaussian, {chosen} without replacement"


def setting(args: argparse.Namespace) -> Setting:
    """Returns what the sampling options say, after they have been held against one another."""
    # By identity: 0 equals False, and --workers 0 must be refused, not overlooked.
    special = [n for n in _KINDS if getattr(args, n) is not None and getattr(args, n) is not False]
    if len(special) > 1:
        raise ValueError(f"{' and '.join(map(_option, special))} exclude one another")
    if args.sample_rate is not None and args.batch_size is not None:
        raise ValueError("give one of --sample-rate and --batch-size")
    sampled = args.sample_rate is not None or args.batch_size is not None
    if special and not sampled:
        raise ValueError(f"{_option(special[0])} needs --sample-rate or --batch-size")
    kind = _KINDS[special[0]] if special else ("poisson" if sampled else "none")
    if args.batch_size is not None or kind in ("truncated", "fixed_size"):
        need(args, "dataset_size")
    if args.dataset_size is not None and args.dataset_size < 1:
        raise ValueError(f"--dataset-size must be at least 1, got {args.dataset_size}")
    batch_size = None
    relation = args.relation or "add_remove"
    if kind == "fixed_size":
        need(args, "batch_size")
        batch_size = one(args, "batch_size")
        if args.relation not in (None, "replace_one"):
            raise ValueError(
                "batches of a fixed size are analysed under --relation replace_one only"
            )
        relation = "replace_one"
    return Setting(kind, relation, args.dataset_size, batch_size, args.capacity, args.workers)


def grid(args: argparse.Namespace, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Returns one row for each combination of the numbers that were given under these names."""
    columns = []
    for name in names:
        if name == "sample_rate" and args.batch_size is not None:
            sizes = numbers(args.batch_size, "batch_size")
            columns.append([size / args.dataset_size for size in sizes])
        elif getattr(args, name) is None:
            columns.append(
                [1]
            )  # without sampling every unit takes part; without steps there is one
        else:
            columns.append(numbers(getattr(args, name), name))
    if math.prod(map(len, columns)) > _MAX_POINTS:
        raise ValueError(f"the ranges make more than {_MAX_POINTS} combinations")
    return [dict(zip(names, row, strict=True)) for row in itertools.product(*columns)]


def need(args: argparse.Namespace, *names: str) -> None:
    """Raises ValueError if an option that the command cannot do without is missing."""
    missing = [_option(name) for name in names if getattr(args, name) is None]
    if missing:
        raise ValueError(f"{' and '.join(missing)} needed: see opake-jax {args.name} --help")


def numbers(text: str, name: str) -> list[Any]:
    """Returns the numbers of `0.5`, of a list `0.5,1,2` or of a range `0.5:2:16` (16 numbers).

    >>> numbers("0.5:0.8:4", "sigma")
    [0.5, 0.6, 0.7, 0.8]
    """
    try:
        if ":" not in text:
            return [as_number(part) for part in text.split(",")]
        low, high, count = text.split(":")
        first, last, points = float(low), float(high), int(count)
    except ValueError:
        raise ValueError(
            f"{_option(name)} must be a number, a list such as 0.5,1,2 or a range such as 0.5:2:16 "
            f"(first:last:how many), got {text!r}"
        ) from None
    if not 2 <= points <= _MAX_POINTS:
        raise ValueError(f"a range has 2 to {_MAX_POINTS} numbers, got {text!r}")
    inner = (first + (last - first) * i / (points - 1) for i in range(1, points - 1))
    # Nine digits, so that 0.6 is 0.6 and a table can show what was computed.
    between = (float(f"{number:.9g}") for number in inner)
    return [as_number(number) for number in (first, *between, last)]


def one(args: argparse.Namespace, name: str) -> Any:
    """Returns the one number that was given; a list or a range raises ValueError."""
    values = numbers(getattr(args, name), name)
    if len(values) != 1:
        raise ValueError(f"{_option(name)} must be one number here, got {len(values)}")
    return values[0]


def show(row: dict[str, Any]) -> str:
    """Returns the numbers of a process in words."""
    shown = {name: row[name] for name in PARAMETERS if (name, row[name]) != ("sample_rate", 1)}
    return ", ".join(f"{name.replace('_', ' ')} {shortest(v)}" for name, v in shown.items())


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
