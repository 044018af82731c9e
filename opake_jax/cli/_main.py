"""The commands and their options, and what becomes of an error."""

import argparse
import importlib
import json
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from opake_jax.cli._answer import plain
from opake_jax.cli._setting import RELATIONS

__all__ = ["main"]

# False-positive rates at which `curve` reads the trade-off: decades, then the middle.
_ALPHAS = "0.0001,0.001,0.01,0.05,0.1,0.2,0.3,0.4,0.5"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code of the console script: 0, or 2 after one line on stderr.

    Args:
      argv: the arguments; None takes those of the process.
    """
    # An epsilon is computed in float64 on the CPU; jax would otherwise seize an accelerator for it.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    args = _parser().parse_args(argv)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            room = importlib.import_module(f"opake_jax.cli.{args.module}")
            answer = getattr(room, args.name)(args)
    except (ValueError, TypeError, NotImplementedError, OSError, ImportError) as error:
        _say("error", error)
        return 2
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            _say("warning", warning.message)
    text = json.dumps(plain(answer.data), indent=2) if args.json else answer.text
    sys.stdout.write(f"{text}\n")
    return 0


def _say(kind: str, message: Any) -> None:
    """Writes one line to stderr."""
    sys.stderr.write(f"opake-jax: {kind}: {' '.join(str(message).split())}\n")


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        _say("error", message)
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="opake-jax", description="What does a differentially private run cost?")
    commands = parser.add_subparsers(dest="name", required=True, parser_class=_Parser)

    def command(name: str, module: str, text: str, more: str = "") -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text, epilog=more)
        made.set_defaults(module=module)
        made.add_argument("--json", action="store_true", help="print everything as JSON")
        return made

    ranges = "S, T, Q, B, D, E may be lists (0.5,1,2) or ranges (0.5:2:16: first, last, how many)."
    made = command("epsilon", "_queries", "epsilon of a run at a given delta", ranges)
    _add_process(made)
    made.add_argument("--delta", metavar="D", help="in (0, 1)")
    made = command("delta", "_queries", "delta of a run at a given epsilon", ranges)
    _add_process(made)
    made.add_argument("--epsilon", metavar="E", help="at least 0")
    made = command(
        "calibrate",
        "_queries",
        "the least noise that keeps a budget; or, given the noise, the most steps",
        "S, T, Q, B may be lists (0.5,1,2) or ranges (0.5:2:16: first, last, how many).",
    )
    _add_process(made)
    for names, text in (
        (("epsilon", "delta"), "a budget: epsilon at delta"),
        (("advantage",), "a budget: the best attack's true minus false positives"),
        (("beta", "alpha"), "a budget: false negatives at false-positive rate alpha, at least"),
        (("risk", "prior"), "a budget: the error of the best guess under a prior, at least"),
    ):
        for name in names:
            made.add_argument(f"--{name}", metavar=name[0].upper(), help=text)
    made = command("curve", "_queries", "the trade-off between the errors of any attack on a run")
    _add_process(made)
    made.add_argument("--alpha", default=_ALPHAS, metavar="A", help="false-positive rates")
    made.add_argument("--save", metavar="FILE", help="also draw it: .png, .svg or .pdf")
    made = command("compare", "_queries", "what other ways to count say about the same run")
    _add_process(made)
    made.add_argument("--delta", metavar="D", help="in (0, 1)")
    made = command("report", "_statements", "the privacy statement of a planned DP-SGD run")
    _add_run(made)
    made.add_argument("--dataset-size", type=int, metavar="N", help="records, public")
    made.add_argument("--batch-size", metavar="B", help="expected records of a step")
    made.add_argument("--clipping-norm", type=float, default=1.0, metavar="C", help="default 1")
    made.add_argument("--capacity", type=int, metavar="CAP", help="rows of a batch; else chosen")
    made.add_argument("--delta", metavar="D", help="of the statement, in (0, 1)")
    made.add_argument("--epsilon", metavar="E", help="calibrate the noise to it")
    made = command("audit", "_statements", "a lower bound of epsilon from the scores of canaries")
    made.add_argument("scores", help=".npz file with the arrays in_scores and out_scores")
    made.add_argument("--delta", default="0", metavar="D", help="in [0, 1), default 0")
    made.add_argument(
        "--confidence", default="0.95", metavar="P", help="of the bound, in (0, 1), default 0.95"
    )
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--noise-multiplier", metavar="S", help="noise std / clipping norm")
    parser.add_argument("--steps", metavar="T", help="number of steps")


def _add_process(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say what was run."""
    _add_run(parser)
    parser.add_argument("--sample-rate", metavar="Q", help="of Poisson sampling, in [0, 1]")
    parser.add_argument("--batch-size", metavar="B", help="expected; with --dataset-size")
    parser.add_argument("--dataset-size", type=int, metavar="N", help="units, public")
    parser.add_argument("--relation", choices=RELATIONS, help="default add_remove")
    parser.add_argument(
        "--capacity", type=int, metavar="CAP", help="Poisson batches are cut to so many units"
    )
    parser.add_argument(
        "--workers", type=int, metavar="W", help="workers that draw Poisson batches, each its own"
    )
    parser.add_argument(
        "--fixed-size", action="store_true", help="batches of exactly B units, drawn anew each step"
    )
