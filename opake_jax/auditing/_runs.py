"""How are scores collected? Thousands of whole runs of the mechanism in one jitted program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from opake_jax._checks import check_count, check_key, check_real, require
from opake_jax.auditing._binomial import as_numbers
from opake_jax.auditing._points import OperatingPoints, points_from_scores
from opake_jax.random import tagged
from opake_jax.types import PyTree

__all__ = [
    "collect",
    "likelihood_ratio",
    "paired",
    "points_from_runs",
    "run_of",
    "split",
    "spread",
    "total",
]

Run = Callable[[jax.Array, jax.Array], jax.Array]


def run_of(
    sample: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]],
    grad_fn: Callable[..., Any],
    noise: Callable[[jax.Array], Any],
    *,
    params: PyTree,
    data: PyTree,
    num_steps: int,
    read: Callable[[PyTree, PyTree], jax.Array],
    update: Callable[[PyTree, PyTree], PyTree] | None = None,
    absent: PyTree | None = None,
) -> Run:
    """Returns `run(key, member)`: one training run of the mechanism as it is shipped.

    The parts are passed in and used through the calls that a training loop makes, so that what is
    audited is what trains. `member`, boolean of shape (M,), says which of the first M rows (the
    canaries) are in the data; the rest always are.

    Args:
      sample: `(key, step) -> (indices, mask)`: the `sample` of a sampler, step int32 and traced.
      grad_fn: `(params, batch, mask=mask) -> (ClippedSum, aux)`.
      noise: `key -> transform` with `init(params)` and `update(clipped, state, params)`.
      params: parameters at the start.
      data: pytree of rows, the canaries first.
      num_steps: length of the run, at least 1.
      read: `(released, params) -> scores (M,)` of one step; `params` are those after the step.
      update: `(params, released) -> params`; None leaves the parameters where they are, the usual
        choice for gradient-space canaries, which do not depend on them.
      absent: None: an absent canary is masked out wherever it is drawn (add-remove and zero-out). A
        pytree like `data`: its row stands in for the absent one (replace-one).

    Returns:
      The function; it gives what was seen, shape (num_steps, M). Jittable.
    """
    check_count("num_steps", num_steps, minimum=1)
    size = jax.tree.leaves(data)[0].shape[0]

    def run(key: jax.Array, member: jax.Array) -> jax.Array:
        present = jnp.concatenate([member, jnp.ones(size - member.shape[0], bool)])
        transform = noise(tagged(key, "audit noise"))
        draws = tagged(key, "audit sampling")

        def step(carry: tuple[PyTree, Any], t: jax.Array) -> tuple[tuple[PyTree, Any], jax.Array]:
            params, state = carry
            indices, mask = sample(draws, t)
            here = present[indices]
            batch = jax.tree.map(lambda x: x[indices], data)
            if absent is None:
                mask = mask & here
            else:
                batch = jax.tree.map(lambda b, x: _rows(here, b, x[indices]), batch, absent)
            clipped, _ = grad_fn(params, batch, mask=mask)
            released, state = transform.update(clipped, state, params)
            if update is not None:
                params = update(params, released)
            return (params, state), read(released, params)

        _, seen = jax.lax.scan(step, (params, transform.init(params)), jnp.arange(num_steps))
        return seen

    return run


def collect(
    run: Run,
    members: Any,
    *,
    key: jax.Array,
    statistic: Callable[[jax.Array], jax.Array],
    chunk: int = 1024,
) -> jax.Array:
    """Returns the canaries' scores in one run for each row of `members`, all in one jitted call.

    Under an outer `jax.jit` it becomes part of that program: so one compilation can serve many noise
    multipliers or many variants of a mechanism.

    Args:
      run: from `run_of`, or any jittable `(key, member) -> seen`, shape (steps, M).
      members: boolean, shape (runs, M): which canaries are in. For the bounds on many runs, one
        canary and half the rows True; for the one-run bounds, one row of fair coins.
      key: typed key; each run gets a child of it.
      statistic: `seen -> scores (M,)`: what the attacker makes of all steps: `total`, `spread`,
        `likelihood_ratio(...)`. It may not look at `members`.
      chunk: how many runs are computed side by side, for memory.

    Returns:
      Float32 array, shape (runs, M); scores that a run could not compute are NaN.
    """
    check_key("key", key)
    check_count("chunk", chunk, minimum=1)
    members = np.asarray(members)
    require(
        members.ndim == 2 and members.dtype == bool and members.size > 0,
        f"members must be boolean of shape (runs, canaries), got {members.dtype} {members.shape}",
    )
    count = len(members)
    chunk = min(chunk, count)
    padded = jnp.asarray(np.pad(members, ((0, -count % chunk), (0, 0))))

    @jax.jit
    def play(key: jax.Array, padded: jax.Array) -> jax.Array:
        root = tagged(key, "audit runs")

        def one(numbered: tuple[jax.Array, jax.Array]) -> jax.Array:
            number, member = numbered
            return statistic(run(jax.random.fold_in(root, number), member))

        return jax.lax.map(one, (jnp.arange(len(padded)), padded), batch_size=chunk)

    return play(key, padded)[:count]


def points_from_runs(
    run: Run,
    *,
    num_runs: int,
    key: jax.Array,
    statistic: Callable[[jax.Array], jax.Array],
    confidence: float = 0.95,
    num_thresholds: int = 24,
    chunk: int = 1024,
) -> OperatingPoints:
    """Returns the operating points of an attack on one canary: `collect`, then `points_from_scores`.

    The canary is in for every other run.
    """
    check_count("num_runs", num_runs, minimum=2, maximum=10**8)  # 100 MB of members
    members = (np.arange(int(num_runs)) % 2 == 0)[:, None]
    scores = collect(run, members, key=key, statistic=statistic, chunk=chunk)
    return points_from_scores(
        *split(scores, members), confidence=confidence, num_thresholds=num_thresholds
    )


def paired(present: Run, absent: Run) -> Run:
    """Returns the run of one canary that plays `present` if it is in, else `absent`.

    For add-remove audits of what depends on the number of records (a cap on the batch): `absent` is a
    run of the data without the canary's row.
    """

    def run(key: jax.Array, member: jax.Array) -> jax.Array:
        always = jnp.ones_like(member)
        return jnp.where(member, present(key, always), absent(key, always))

    return run


def split(scores: Any, members: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns (in_scores, out_scores), each one-dimensional."""
    scores, members = np.asarray(scores), np.asarray(members)
    return scores[members], scores[~members]


def total(seen: jax.Array) -> jax.Array:
    """Returns the sum over the steps: the best statistic where every step uses every record."""
    return jnp.sum(seen, axis=0)


def spread(seen: jax.Array) -> jax.Array:
    """Returns the largest difference between two steps: it finds noise that is used twice."""
    return jnp.max(seen, axis=0) - jnp.min(seen, axis=0)


def likelihood_ratio(
    noise_multiplier: float, participation: Any, *, unit: float = 1.0
) -> Callable[[jax.Array], jax.Array]:
    """Returns the statistic log P[seen | in] - log P[seen | out], for steps drawn independently.

    No attack on a Dirac canary that nothing else touches is stronger (Neyman and Pearson).

    Args:
      noise_multiplier: noise std over sensitivity.
      participation: a sample rate q; or the probabilities that a record takes part 0, 1, 2, ... times
        in a step (parallel Poisson sampling).
      unit: what one participation adds to the released value: clipping norm over denominator.
    """
    # Within float32, in which the scores are computed, squares included.
    check_real("noise_multiplier", noise_multiplier, low=1e-15, high=1e15)
    check_real("unit", unit, low=1e-15, high=1e15)
    sigma, unit = float(noise_multiplier), float(unit)
    p = np.atleast_1d(as_numbers("participation", participation).astype(np.float64))
    p = np.array([1.0 - p[0], p[0]]) if p.size == 1 else p
    require(
        p.ndim == 1 and bool(np.all(p >= 0)) and abs(float(p.sum()) - 1.0) < 1e-6,
        f"participation must be a rate or probabilities of sum 1, got {participation!r}",
    )
    times = [(k, float(np.log(q))) for k, q in enumerate(p) if q > 0]
    variance = sigma * sigma

    def statistic(seen: jax.Array) -> jax.Array:
        terms = [log_q + (2.0 * k * seen / unit - k**2) / (2.0 * variance) for k, log_q in times]
        return jnp.sum(jax.nn.logsumexp(jnp.stack(terms), axis=0), axis=0)

    return statistic


def _rows(chosen: jax.Array, ours: jax.Array, theirs: jax.Array) -> jax.Array:
    """Returns row i of `ours` where chosen[i], else of `theirs`."""
    return jnp.where(chosen.reshape(-1, *[1] * (ours.ndim - 1)), ours, theirs)
