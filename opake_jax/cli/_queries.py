"""The commands that ask the accountant: epsilon, delta, calibrate, curve, compare."""

import argparse
import contextlib
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from opake_jax._numerics.rounding import round_down, round_up
from opake_jax.cli import _setting as given
from opake_jax.cli._answer import Answer, as_number, shortest, table
from opake_jax.cli._setting import PARAMETERS, Setting

__all__ = ["calibrate", "compare", "curve", "delta", "epsilon"]


def epsilon(args: argparse.Namespace) -> Answer:
    """Returns epsilon at delta."""
    return _query(
        args,
        ("epsilon", "delta"),
        lambda process, at: process.epsilon_bounds(at),
        lambda process, at: process.epsilon_at(at),
    )


def delta(args: argparse.Namespace) -> Answer:
    """Returns delta at epsilon."""
    return _query(
        args,
        ("delta", "epsilon"),
        lambda process, at: process.delta_bounds(at),
        lambda process, at: process.delta_at(at),
    )


def _query(
    args: argparse.Namespace,
    names: tuple[str, str],
    bounds: Callable[[Any, Any], Any],
    upper_bound: Callable[[Any, Any], Any],
) -> Answer:
    """Returns one bracket, or a table of upper bounds where a range was given."""
    asked, at = names
    given.need(args, "noise_multiplier", at)
    setting = given.setting(args)
    rows = given.grid(args, (*PARAMETERS, at))
    head = {"mechanism": str(setting), "relation": setting.relation}
    if len(rows) > 1:
        for row in rows:
            row[asked] = float(upper_bound(_process(setting, row), row[at]))
        hidden = {asked} if setting.sampling != "none" else {asked, "sample_rate"}
        shown = [
            {k: shortest(v) for k, v in row.items() if k not in hidden}
            | {f"{asked} <=": round_up(row[asked])}
            for row in rows
        ]
        return Answer({**head, "rows": rows}, f"{setting}; {setting.relation}\n{table(shown)}")
    (row,) = rows
    lower, upper, tight = bounds(_process(setting, row), row[at])
    data = {**head, **row, asked: upper, f"{asked}_lower": lower, "pair_is_tight": tight}
    text = [
        f"{asked} <= {round_up(upper)} at {at} = {shortest(row[at])}",
        f"  bracket    [{round_down(lower, 7)}, {round_up(upper, 7)}] (the dominating pair is "
        f"{'exact' if tight else 'an upper bound'} for this mechanism)",
        f"  mechanism  {setting}: {given.show(row)}",
        f"  relation   {setting.relation}",
    ]
    return Answer(data, "\n".join(text))


def _process(setting: Setting, row: dict[str, Any]) -> Any:
    return setting.process(*(row[name] for name in PARAMETERS))


def calibrate(args: argparse.Namespace) -> Answer:
    """Returns the least noise multiplier, or the most steps, that keep a budget."""
    from opake_jax import accounting

    budget, target = _budget(args)
    setting = given.setting(args)
    if (args.steps is None) == (args.noise_multiplier is None):
        raise ValueError(
            "give --steps (and the least noise multiplier is found) or --noise-multiplier (and the "
            "most steps are found)"
        )
    wanted = "steps" if args.steps is None else "noise_multiplier"
    rows = given.grid(args, tuple(name for name in PARAMETERS if name != wanted))
    for row in rows:

        def make(value: Any, row: dict[str, Any] = row) -> Any:
            return _process(setting, {**row, wanted: value})

        # `calibrate` widens either bracket by itself; integer ends ask for an integer.
        low, high = (1, 1000) if wanted == "steps" else (0.1, 20.0)
        found = accounting.calibrate(budget, make, low, high)
        row[wanted], row["achieved"] = as_number(found.param), float(found.achieved)
    # More noise and fewer steps are the private side; what is achieved is a cost, or an attack's error.
    outward = round_down if {"beta", "risk"} & set(target) else round_up
    hidden = (
        {wanted, "achieved"} if setting.sampling != "none" else {wanted, "achieved", "sample_rate"}
    )
    shown = [
        {k: shortest(v) for k, v in row.items() if k not in hidden}
        | {wanted: str(row[wanted]) if wanted == "steps" else round_up(row[wanted], 6)}
        | {"achieved": outward(row["achieved"])}
        for row in rows
    ]
    asked = ", ".join(f"{name} {shortest(value)}" for name, value in target.items())
    return Answer(
        {"budget": target, "mechanism": str(setting), "relation": setting.relation, "rows": rows},
        f"budget: {asked}; {setting}; {setting.relation}\n{table(shown)}",
    )


def _budget(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Returns the one budget that was given, and its numbers by name."""
    from opake_jax import accounting

    makers: dict[tuple[str, ...], Callable[..., Any]] = {
        ("epsilon", "delta"): accounting.epsilon_budget,
        ("advantage",): accounting.advantage_budget,
        ("beta", "alpha"): accounting.beta_budget,
        ("risk", "prior"): accounting.risk_budget,
    }
    named = [names for names in makers if any(getattr(args, n) is not None for n in names)]
    if len(named) != 1:
        raise ValueError(
            "give one budget: --epsilon with --delta, --advantage, --beta with --alpha, or --risk "
            "with --prior"
        )
    given.need(args, *named[0])
    target = {name: given.one(args, name) for name in named[0]}
    return makers[named[0]](**target), target


def curve(args: argparse.Namespace) -> Answer:
    """Returns the trade-off between an attack's errors, and draws it on request."""
    setting, row, process = _single(args)
    advantage = float(process.advantage())
    rows = [
        {"alpha": alpha, "beta": float(process.beta_at(alpha))}
        for alpha in given.numbers(args.alpha, "alpha")
    ]
    saved = ""
    if args.save is not None:
        from opake_jax import plotting

        plotting.trade_off(process).savefig(args.save)
        saved = f"\nsaved {args.save}"
    shown = [
        {
            "false positives": shortest(found["alpha"]),
            "false negatives >=": round_down(found["beta"]),
            "true positives <=": round_up(1 - Decimal(found["beta"])),
        }
        for found in rows
    ]
    data = {"mechanism": str(setting), "relation": setting.relation, **row}
    return Answer(
        {**data, "advantage": advantage, "rows": rows},
        f"{setting}: {given.show(row)}; {setting.relation}\n"
        f"advantage of the best attack <= {round_up(advantage)}\n{table(shown)}{saved}",
    )


def compare(args: argparse.Namespace) -> Answer:
    """Returns what several ways to count say about one run."""
    given.need(args, "delta")
    setting, row, process = _single(args)
    at = given.one(args, "delta")
    lower, upper, tight = process.epsilon_bounds(at)
    rows = [{"method": "PLD, certified", "epsilon": upper}, *_others(setting, row, process, at)]
    shown = [
        {
            "method": found["method"],
            "epsilon <=": round_up(found["epsilon"]),
            "times the lower end": f"{found['epsilon'] / lower:.4f}" if lower > 0 else "-",
        }
        for found in rows
    ]
    data = {"mechanism": str(setting), "relation": setting.relation, **row, "delta": at}
    return Answer(
        {**data, "epsilon_lower": lower, "pair_is_tight": tight, "rows": rows},
        f"{setting}: {given.show(row)}; {setting.relation}; delta {shortest(at)}\n{table(shown)}",
    )


def _others(setting: Setting, row: dict[str, Any], process: Any, at: float) -> list[dict[str, Any]]:
    """Returns what looser ways to count say; each is a valid bound, or left out."""
    from opake_jax import accounting

    found = []
    with contextlib.suppress(NotImplementedError):  # where a sampling has no Renyi analysis
        rdp = process.epsilon_at(at, accountant=accounting.RDP())
        found.append({"method": "RDP", "epsilon": rdp})
    if setting.sampling in ("none", "poisson"):
        found += _classical(setting, row, at)
    return found


def _classical(setting: Setting, row: dict[str, Any], at: float) -> list[dict[str, Any]]:
    """Returns the textbook answers: one step by the classical formula, amplified, then composed.

    Half of delta goes to the steps' own failures and half to the slack of advanced composition (all of
    it to the steps in basic composition). Where the formula has no proof (a step's epsilon of 1 or
    more, before amplification) there is no answer: infinity.
    """
    from opake_jax.accounting import classical

    steps, rate = row["steps"], row["sample_rate"]
    moves = 2.0 if setting.relation == "replace_one" else 1.0
    if steps == 0 or row["noise_multiplier"] == 0:
        return []

    def one_step(share: float) -> tuple[float, float]:
        """Returns (epsilon, delta) of one amplified step that may spend `share` of delta."""
        if rate == 0:
            return 0.0, 0.0
        inner_delta = min(share / (steps * rate), 0.5)
        # sigma falls with epsilon as 1 / epsilon: one call at an epsilon in its range gives the constant.
        epsilon = classical.classical_sigma(0.5, inner_delta, moves) * 0.5 / row["noise_multiplier"]
        if epsilon >= 1:
            return math.inf, rate * inner_delta
        # Balle, Barthe and Gaboardi 2018, arXiv:1807.01647, theorem 8.
        return math.log1p(rate * math.expm1(epsilon)), rate * inner_delta

    basic, advanced = math.inf, math.inf
    epsilon, delta = one_step(at)
    if epsilon < math.inf:
        basic, _ = classical.basic_composition(epsilon, delta, steps)
    epsilon, delta = one_step(at / 2)
    if epsilon < math.inf:
        advanced, _ = classical.advanced_composition(epsilon, delta, steps, slack=at / 2)
    return [
        {"method": "classical formula, basic composition", "epsilon": basic},
        {"method": "classical formula, advanced composition", "epsilon": advanced},
    ]


def _single(args: argparse.Namespace) -> tuple[Setting, dict[str, Any], Any]:
    """Returns the setting, its numbers and its process; ranges raise ValueError."""
    given.need(args, "noise_multiplier")
    setting, rows = given.setting(args), given.grid(args, PARAMETERS)
    if len(rows) != 1:
        raise ValueError(f"{args.name} looks at one process: give single numbers, no ranges")
    return setting, rows[0], _process(setting, rows[0])
