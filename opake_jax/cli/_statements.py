"""The commands that state something about a run: its privacy report, and what an audit found."""

import argparse
import zipfile
from typing import Any

from opake_jax._numerics.rounding import round_down, round_up
from opake_jax.cli import _setting as given
from opake_jax.cli._answer import Answer, shortest

__all__ = ["audit", "report"]

# Attacks are commonly compared by their true positives at this false-positive rate.
_AUDITED_FPR = 0.01


def report(args: argparse.Namespace) -> Answer:
    """Returns the privacy statement of a planned DP-SGD run."""
    from opake_jax import accounting, dpsgd

    given.need(args, "dataset_size", "batch_size", "steps", "delta")
    delta = given.one(args, "delta")
    budget, noise_multiplier = None, None
    if args.epsilon is not None:
        budget = accounting.epsilon_budget(given.one(args, "epsilon"), delta)
    if args.noise_multiplier is not None:
        noise_multiplier = given.one(args, "noise_multiplier")
    if (budget is None) == (noise_multiplier is None):
        raise ValueError("give one of --epsilon (the noise is calibrated) and --noise-multiplier")
    plan = dpsgd.plan(
        dataset_size=args.dataset_size,
        expected_batch_size=given.one(args, "batch_size"),
        num_steps=given.one(args, "steps"),
        clipping_norm=args.clipping_norm,
        budget=budget,
        noise_multiplier=noise_multiplier,
        delta=delta,
        capacity=args.capacity,
    )
    made = plan.report()
    return Answer(made.to_dict(), str(made))


def audit(args: argparse.Namespace) -> Answer:
    """Returns lower bounds from the scores of an attack on runs with and without a canary."""
    from opake_jax import auditing

    delta, confidence = given.one(args, "delta"), given.one(args, "confidence")
    ins, outs = _scores(args.scores)
    points = auditing.points_from_scores(ins, outs, confidence=confidence)
    area = auditing.auroc(ins, outs, confidence=confidence)
    power = auditing.tpr_at_fpr(ins, outs, _AUDITED_FPR, confidence=confidence)
    epsilon = float(auditing.epsilon_lower_bound(points, delta))
    mu = float(auditing.gdp_lower_bound(points))
    text = [
        f"epsilon >= {round_down(epsilon)} at delta = {shortest(delta)}; each line by itself with "
        f"confidence {shortest(confidence)}",
        f"  mu                 >= {round_down(mu)}, if the mechanism is Gaussian",
        f"  AUROC              {_interval(area)}",
        f"  power at FPR {_AUDITED_FPR}  {_interval(power)}",
        f"  runs               {len(ins)} with the canary, {len(outs)} without",
    ]
    data = {
        "delta": delta,
        "confidence": confidence,
        "runs_in": len(ins),
        "runs_out": len(outs),
        "epsilon_lower": epsilon,
        "mu_lower": mu,
        "auroc": area._asdict(),
        f"tpr_at_fpr_{_AUDITED_FPR}": power._asdict(),
    }
    return Answer(data, "\n".join(text))


def _scores(path: str) -> list[Any]:
    """Returns the arrays in_scores and out_scores of a .npz file."""
    import numpy as np

    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is no .npz file: numpy.savez writes one")
    names = ("in_scores", "out_scores")
    try:
        # (Opened here: numpy leaves a damaged file open.)
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            found = {name: file[name] for name in names if name in file.files}
    except (
        Exception
    ) as error:  # a damaged file: numpy, zipfile and zlib each have errors of their own
        raise ValueError(f"{path} cannot be read: {error}") from error
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{path} lacks the array {' and '.join(missing)}")
    return [found[name] for name in names]


def _interval(found: Any) -> str:
    return f"{found.estimate:.4f} in [{round_down(found.lower)}, {round_up(found.upper)}]"
