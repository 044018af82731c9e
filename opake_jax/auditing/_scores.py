"""How well do the scores tell members from others? AUROC and TPR at an FPR, with intervals."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax._checks import check_real, require
from opake_jax.auditing._binomial import check_confidence, cpu_float64, upper_bound
from opake_jax.auditing._points import check_scores

__all__ = ["Interval", "auroc", "tpr_at_fpr"]

# Halving [0, 1] that often leaves 1e-18.
_HALVINGS = 60


class Interval(NamedTuple):
    """An estimate and the two ends of its confidence interval, each rounded outward."""

    estimate: float
    lower: float
    upper: float


def auroc(in_scores: Any, out_scores: Any, *, confidence: float = 0.95) -> Interval:
    """Returns P[in score > out score] + P[equal] / 2 with a finite-sample interval.

    The estimate averages over all pairs. Its deviations obey the Chernoff bound of min(n_in, n_out)
    independent pairs (Hoeffding 1963, section 5b), so that the interval holds for any law of the
    scores and any size, perfect separation included, at the price of some 1.5 to 2 times the width
    of the usual asymptotic one. (1/2 means no information. A mu-GDP mechanism has at most
    Phi(mu / sqrt 2).)

    Args:
      in_scores: one-dimensional, one score for each independent run (or canary) with it.
      out_scores: one-dimensional, without it.
      confidence: in (0, 1), two-sided.

    >>> interval = auroc([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
    >>> round(interval.estimate, 4), round(interval.lower, 4)
    (0.9444, 0.2199)
    """
    level = check_confidence(confidence)
    ins, outs = _one_dimensional(in_scores, out_scores)
    outs = np.sort(outs)
    below, up_to = np.searchsorted(outs, ins, "left"), np.searchsorted(outs, ins, "right")
    estimate = float(np.mean((below + up_to) / 2.0) / len(outs))
    radius = np.log(2.0 / level) / min(len(ins), len(outs))
    lower, upper = cpu_float64(_kl_ends, estimate, radius * (1 + 1e-12))  # 1e-12: rounding of kl
    return Interval(estimate, float(lower), float(upper))


def tpr_at_fpr(
    in_scores: Any, out_scores: Any, fpr: float, *, confidence: float = 0.95
) -> Interval:
    """Returns the true positive rate of the score at a false positive rate, with an interval.

    The interval covers the ROC curve at `fpr` itself: the threshold is taken at an out score of
    which the rank makes its own rate lie on the safe side of `fpr`, and the count of in scores
    beyond it has a Clopper-Pearson bound; each of the four errors has (1 - confidence) / 4.

    Args:
      in_scores: one-dimensional, one score for each independent run (or canary) with it.
      out_scores: one-dimensional, without it.
      fpr: in (0, 1).
      confidence: in (0, 1), two-sided.

    Returns:
      Interval; lower = 0 or upper = 1 where there are too few out scores for that `fpr`.
    """
    level = check_confidence(confidence) / 4.0
    check_real("fpr", fpr, high=1.0, low_open=True)
    ins, outs = _one_dimensional(in_scores, out_scores)
    ins, outs = np.sort(ins), np.sort(outs)[::-1]
    n_in, n_out = len(ins), len(outs)

    def missed(rank: int, side: Any) -> int:  # in scores not beyond the rank-th largest out score
        return int(np.searchsorted(ins, outs[rank - 1], side))

    lower, upper = 0.0, 1.0
    strict = _largest_count(n_out, fpr, level) + 1
    if strict >= 1:
        lower = 1.0 - float(upper_bound(missed(strict, "right"), n_in, level))
    wide = n_out - _largest_count(n_out, 1.0 - fpr, level)
    if wide <= n_out:
        upper = float(upper_bound(n_in - missed(wide, "left"), n_in, level))
    middle = min(int(fpr * n_out) + 1, n_out)
    return Interval(1.0 - missed(middle, "right") / n_in, max(lower, 0.0), upper)


def _one_dimensional(in_scores: Any, out_scores: Any) -> list[np.ndarray]:
    arrays = check_scores(in_scores=in_scores, out_scores=out_scores)
    require(all(a.ndim == 1 for a in arrays), "in_scores and out_scores must be one-dimensional")
    return arrays


def _largest_count(trials: int, probability: float, level: float) -> int:
    """Returns the largest c with P[Binomial(trials, probability) <= c] <= level, or -1.

    `upper_bound(c)` is at most `probability` exactly then, and grows with c.
    """
    low, high = -1, trials  # at `trials` the bound is 1
    while high - low > 1:
        tried = np.unique(np.linspace(low, high, 34).astype(np.int64))[1:-1]
        fits = upper_bound(tried, trials, level) <= probability
        low = int(np.max(tried[fits], initial=low))
        high = int(np.min(tried[~fits], initial=high))
    return low


@jax.jit
def _kl_ends(estimate: jax.Array, radius: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the ends of {t: kl(estimate, t) <= radius} for Bernoulli laws, rounded outward."""

    def inside(t: jax.Array) -> jax.Array:
        one = jax.scipy.special.xlogy(estimate, estimate / t)
        other = jax.scipy.special.xlogy(1 - estimate, (1 - estimate) / (1 - t))
        return one + other <= radius

    def halve(_: Any, ends: tuple[jax.Array, jax.Array, jax.Array, jax.Array]) -> Any:
        a, b, c, d = ends  # the lower end lies in [a, b], the upper one in [c, d]
        left, right = 0.5 * (a + b), 0.5 * (c + d)
        yes, too = inside(left), inside(right)
        return (
            jnp.where(yes, a, left),
            jnp.where(yes, left, b),
            jnp.where(too, right, c),
            jnp.where(too, d, right),
        )

    zero, one = jnp.zeros_like(estimate), jnp.ones_like(estimate)
    lower, _, _, upper = jax.lax.fori_loop(0, _HALVINGS, halve, (zero, estimate, estimate, one))
    return lower, upper
