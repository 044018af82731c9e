"""How does it look? Pictures of accounting results, for papers and for tuning (extra `plot`).

Each function takes a process (or data) and returns the matplotlib Figure, which saves itself:
`figure.savefig("curve.png")`, `.svg`, `.pdf`. No pyplot and no global state are involved. Curves are
told apart by colour and by line style; the colours stay apart for colour-blind readers (Okabe and Ito
2008, "Color universal design"). Drawn values are the private side, as everywhere in this package.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from opake_jax import accounting
from opake_jax._checks import check_count, check_real, require
from opake_jax._numerics.rounding import round_up
from opake_jax.types import ClippedSum

__all__ = ["epsilon_against_noise", "epsilon_over_steps", "noise_to_signal", "trade_off"]

# Okabe and Ito's palette without its yellow, which is too pale for lines on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_GREY = "#666666"
# Points of a curve: at 600 pixels across, more would not be seen.
_POINTS = 61


def trade_off(
    processes: accounting.Process | Mapping[str, accounting.Process], *, axes: Axes | None = None
) -> Figure:
    """Returns the trade-off curve: the least false-negative rate of any attack that tells neighbours apart.

    The dotted segment is the largest advantage over guessing, at the false-positive rate where it is
    reached.

    Args:
      processes: what was run; or several, by the name for the legend (at most 7).
      axes: where to draw; None makes a figure.
    """
    named = _named(processes)
    figure, axes = _canvas(axes, width=4.6, height=4.8)
    # Attacks are judged at small false-positive rates, where the curve is steep: denser there.
    alphas = np.linspace(0.0, 1.0, _POINTS) ** 2
    axes.plot([0, 1], [1, 0], color=_GREY, linewidth=1, label="guessing")
    for i, (name, process) in enumerate(named.items()):
        betas = np.array([float(process.beta_at(float(a))) for a in alphas])
        advantage = float(process.advantage())
        shown = f"advantage {round_up(advantage, 3)}"
        label = f"{name}: {shown}" if name else shown
        axes.plot(alphas, betas, color=_COLOURS[i], linestyle=_STYLES[i], label=label)
        best = int(np.argmax(1 - alphas - betas))
        axes.plot(
            [alphas[best]] * 2,
            [betas[best], 1 - alphas[best]],
            color=_COLOURS[i],
            linestyle=":",
            linewidth=1,
        )
    axes.set(
        xlabel=r"false-positive rate of the attack, $\alpha$",
        ylabel=r"false-negative rate of the attack, $\beta$ (at least)",
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
    )
    axes.plot(
        [], [], color=_GREY, linestyle=":", linewidth=1, label="where the advantage is largest"
    )
    # Above the square: within it long names would lie on the curves.
    axes.legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 1.0))
    return figure


def epsilon_over_steps(
    steps: accounting.Process | Mapping[str, accounting.Process],
    num_steps: int,
    delta: float,
    *,
    axes: Axes | None = None,
) -> Figure:
    """Returns epsilon at delta after 0 to `num_steps` repetitions of one step.

    Args:
      steps: the process of one step; or several, by the name for the legend (at most 7).
      num_steps: the last number of steps, at least 1.
      delta: in (0, 1).
      axes: where to draw; None makes a figure.
    """
    check_count("num_steps", num_steps, minimum=1)
    check_real("delta", delta, high=1.0, low_open=True)
    named = _named(steps)
    figure, axes = _canvas(axes)
    # The first steps cost most, and a chord of a concave curve lies below it: denser there.
    counts = np.unique((np.linspace(0, 1, _POINTS) ** 2 * num_steps).round().astype(int))
    for i, (name, step) in enumerate(named.items()):
        epsilons = np.asarray(accounting.epsilon_trajectory(step, counts, delta))
        axes.plot(counts, epsilons, color=_COLOURS[i], linestyle=_STYLES[i], label=name)
        _end_label(axes, counts[-1], epsilons[-1], _COLOURS[i])
    axes.set(
        xlabel="steps",
        ylabel=rf"$\varepsilon$ at $\delta$ = {float(delta)} (at most)",
        xlim=(0, num_steps),
        ylim=(0, None),
    )
    if any(named):
        axes.legend(frameon=False)
    return figure


def epsilon_against_noise(
    noise_multipliers: Sequence[float],
    sample_rates: Sequence[float],
    *,
    num_steps: int,
    delta: float,
    axes: Axes | None = None,
) -> Figure:
    """Returns epsilon at delta against the noise multiplier, one curve for each sample rate.

    DP-SGD with Poisson sampling, add or remove one unit.

    Args:
      noise_multipliers: noise std over the clipping norm, positive, at least two.
      sample_rates: each in (0, 1], at most 7.
      num_steps: steps of the run, at least 1.
      delta: in (0, 1).
      axes: where to draw; None makes a figure.
    """
    check_count("num_steps", num_steps, minimum=1)
    check_real("delta", delta, high=1.0, low_open=True)
    sigmas = np.sort(np.asarray(noise_multipliers, np.float64))
    require(sigmas.ndim == 1 and sigmas.size > 1, "noise_multipliers must be two numbers or more")
    for sigma in sigmas:
        check_real("noise_multiplier", float(sigma), low_open=True)
    for rate in sample_rates:
        check_real("sample_rate", rate, high=1.0, low_open=True, high_open=False)
    named = _named({f"q = {rate:g}": rate for rate in sample_rates})
    figure, axes = _canvas(axes)

    for i, (name, rate) in enumerate(named.items()):
        steps = [accounting.poisson(accounting.gaussian(float(s)), float(rate)) for s in sigmas]
        epsilons = [(step * num_steps).epsilon_at(float(delta)) for step in steps]
        axes.plot(sigmas, epsilons, color=_COLOURS[i], linestyle=_STYLES[i], label=name)
    axes.set(
        xlabel=r"noise multiplier $\sigma$ (noise std / clipping norm)",
        ylabel=rf"$\varepsilon$ at $\delta$ = {float(delta)} (at most)",
        yscale="log",
        xlim=(sigmas[0], sigmas[-1]),
        title=f"{num_steps:,} steps, Poisson sampling",
    )
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(title="sample rate", frameon=False)
    return figure


def noise_to_signal(
    clipped: ClippedSum, noise_multiplier: float, *, axes: Axes | None = None
) -> Figure:
    """Returns the noise-to-signal ratio of each layer: expected L2 norm of the noise over that of the sum.

    A ratio of 1 means as much noise as signal in this step; momentum and many steps average the
    noise out. The picture shows unreleased norms, so it is *private data*: for tuning on public or
    synthetic data, not for publication. It says so at its foot.

    Args:
      clipped: the sum of clipped gradients of one batch.
      noise_multiplier: noise std over the sensitivity, positive.
      axes: where to draw; None makes a figure.
    """
    if not isinstance(clipped, ClippedSum):
        raise TypeError(
            f"clipped must be a ClippedSum (what clipped_grad returns), got {type(clipped).__name__}"
        )
    check_real("noise_multiplier", noise_multiplier, low_open=True)
    ratios = _ratios(clipped, noise_multiplier)
    require(bool(ratios), "the sum has no leaves: nothing was trained")
    figure, axes = _canvas(axes, height=1.6 + 0.32 * len(ratios))
    finite = [r for r in ratios.values() if np.isfinite(r)]
    # A layer without any gradient has an infinite ratio: its bar ends at the right edge.
    edge = 2.0 * max(finite, default=1.0)
    shown = [min(r, edge) for r in ratios.values()]
    axes.barh(range(len(ratios)), shown, color=_COLOURS[0])
    for row, ratio in enumerate(ratios.values()):
        text = f" {ratio:.2g}" if np.isfinite(ratio) else " no signal"
        axes.text(min(ratio, edge), row, text, va="center", fontsize="small")
    axes.axvline(1.0, color=_COLOURS[1], linestyle="--", linewidth=1)
    low = min([1.0, *finite]) / 2
    axes.set(
        xlabel="noise norm / signal norm of one step (no unit)\n"
        "unreleased gradients: this picture is private data",
        xscale="log",
        xlim=(low, max(4 * edge, 4.0)),
        yticks=range(len(ratios)),
        yticklabels=list(ratios),
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.invert_yaxis()
    return figure


def _ratios(clipped: ClippedSum, noise_multiplier: float) -> dict[str, float]:
    """Returns for each leaf its path and E|noise| / |sum|, with E|noise| taken as std sqrt(size)."""
    sensitivity = np.atleast_1d(np.asarray(clipped.sensitivity, np.float64))
    shares = clipped.shares
    weights = np.ones(len(sensitivity)) if shares is None else np.asarray(shares, np.float64)
    if clipped.groups is not None:
        # Equal shares of one Gaussian among G groups are 1 / G each (ClippedSum, `shares`).
        weights = weights / weights.sum()
    stds = noise_multiplier * sensitivity / np.sqrt(weights)
    leaves = jax.tree_util.tree_leaves_with_path(clipped.tree)
    groups = clipped.groups or (0,) * len(leaves)
    ratios = {}
    for (path, leaf), group in zip(leaves, groups, strict=True):
        signal = float(np.linalg.norm(np.asarray(leaf, np.float64)))
        noise = float(stds[group] * np.sqrt(leaf.size))
        ratios[jax.tree_util.keystr(path, simple=True, separator="/") or "all"] = (
            noise / signal if signal else np.inf
        )
    return ratios


def _named(items: Any) -> dict[str, Any]:
    """Returns the items by name; a lone one gets the empty name."""
    named = dict(items) if isinstance(items, Mapping) else {"": items}
    require(
        1 <= len(named) <= len(_COLOURS),
        f"one to {len(_COLOURS)} curves can be told apart in one picture, got {len(named)}",
    )
    return named


def _canvas(axes: Axes | None, width: float = 6.0, height: float = 4.0) -> tuple[Figure, Axes]:
    """Returns the figure and its axes: given ones, or new ones of this size in inches."""
    if axes is None:
        axes = Figure(figsize=(width, height), dpi=150, layout="constrained").subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    return figure, axes


def _end_label(axes: Axes, x: float, y: float, colour: str) -> None:
    axes.annotate(
        round_up(y, 3), (x, y), xytext=(4, 0), textcoords="offset points", color=colour, va="center"
    )
